"""Several addresses, of which one leads."""

from __future__ import annotations

import ipaddress
import os
import threading
import urllib.parse
from typing import Optional, Sequence, Union

from ._protocol import Reply, code_of, problem
from .errors import Invalid

DEFAULT_URL = "http://127.0.0.1:7420"
_HOPS = 5


class Endpoints:
    """Stays at the address that last answered, follows the leader, and goes on to the next address after a failure.
    `secret`: a bearer token is sent, so every address must keep it from others."""

    def __init__(self, urls: Union[str, Sequence[str], None], secret: bool = False) -> None:
        if urls is None:
            urls = os.environ.get("PALISADE_URL") or DEFAULT_URL
        if isinstance(urls, str):
            urls = urls.split(",")
        self.urls = [_checked(url) for url in urls]
        if not self.urls:
            raise Invalid("invalid", f"the address of a server is needed, such as {DEFAULT_URL}")
        self._secret = secret
        for url in self.urls:
            if secret and not _keeps_secrets(url):
                raise Invalid(
                    "invalid", f"a token is not sent to {url} without TLS, because others could read it: write https://"
                )
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
            follow = isinstance(leader, str) and self._hops <= _HOPS and self._may_follow(url, leader)
            if follow:
                self._leader = str(leader).rstrip("/")
            elif self._hops > _HOPS:
                self._hops = 0
            return follow

    def _may_follow(self, url: str, leader: str) -> bool:
        try:
            leader = _checked(leader)
        except Invalid:
            return False
        if self._secret and not _keeps_secrets(leader):
            return False
        return leader.startswith("https:") or url.startswith("http:")


def _checked(given: str) -> str:
    """Never puts the password of an address into an error."""
    url = given.strip().rstrip("/")
    try:
        parts = urllib.parse.urlsplit(url)
        is_plain = not (parts.path or parts.query or parts.fragment) and parts.port != 0
    except ValueError:
        raise Invalid("invalid", "an address cannot be read: http://HOST:PORT is needed") from None
    if parts.username or parts.password:
        raise Invalid("invalid", "an address with a password is not supported: give the bearer token as `token`")
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise Invalid("invalid", f"{url!r} is not the address of a server: http://HOST:PORT is needed")
    return url


def _keeps_secrets(url: str) -> bool:
    """Whether nobody on the way can read what is sent there: TLS, or this machine."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
