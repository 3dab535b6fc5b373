"""Several addresses, of which one leads."""

from __future__ import annotations

import os
import threading
import urllib.parse
from typing import Optional, Sequence, Union

from ._protocol import Reply, code_of, problem

DEFAULT_URL = "http://127.0.0.1:7420"
_HOPS = 5


class Endpoints:
    """Stays at the address that last answered, follows the leader, and goes on to the next address after a failure."""

    def __init__(self, urls: Union[str, Sequence[str], None]) -> None:
        if urls is None:
            urls = os.environ.get("PALISADE_URL") or DEFAULT_URL
        if isinstance(urls, str):
            urls = urls.split(",")
        self.urls = [_checked(url) for url in urls]
        if not self.urls:
            raise ValueError("the address of a Palisade server is needed")
        self._at = 0
        self._leader: Optional[str] = None
        self._hops = 0
        self._guard = threading.Lock()

    def current(self) -> str:
        with self._guard:
            return self._leader or self.urls[self._at]

    def failed(self, url: str) -> None:
        with self._guard:
            if url == self._leader:
                self._leader = None
            elif self._leader is None and url == self.urls[self._at]:
                self._at = (self._at + 1) % len(self.urls)

    def answered(self, url: str, reply: Reply) -> bool:
        """Takes note of what an answer says about the leader. True: ask again at once."""
        code = code_of(reply) if reply.status >= 500 else ""
        if code != "not_leader":
            with self._guard:
                self._hops = 0
            if code == "unavailable":
                self.failed(url)
            return False
        leader = problem(reply).get("leader")
        self.failed(url)
        with self._guard:
            self._hops += 1
            follow = isinstance(leader, str) and self._hops <= _HOPS and _may_follow(url, leader)
            if follow:
                self._leader = str(leader).rstrip("/")
            elif self._hops > _HOPS:
                self._hops = 0
            return follow


def _checked(url: str) -> str:
    url = url.strip().rstrip("/")
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
        raise ValueError(
            f"{parts.scheme}://{parts.hostname or '…'} is not the address of a server: http://HOST:PORT is needed"
        )
    if parts.username or parts.password:
        raise ValueError("an address with a password is not supported: give the bearer token as `token`")
    return url


def _may_follow(url: str, leader: str) -> bool:
    try:
        leader_url = _checked(leader.rstrip("/"))
    except ValueError:
        return False
    return leader_url.startswith("https:") or url.startswith("http:")
