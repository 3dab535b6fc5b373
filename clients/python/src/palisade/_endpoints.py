"""Several addresses, of which one leads."""

from __future__ import annotations

import ipaddress
import os
import urllib.parse
from typing import Iterable, Optional, Sequence, Union

import httpx

from ._process import Guard
from ._protocol import Reply, code_of, fault_of, problem
from .errors import Invalid

DEFAULT_URL = "http://127.0.0.1:7420"
_HOPS = 5


class Endpoints:
    """Stays at the address that last answered, follows the leader, and goes on to the next address after a failure.
    `secret`: a bearer token is sent, so every address must keep it from others."""

    def __init__(self, urls: Union[str, Sequence[str], None], secret: bool = False) -> None:
        if urls is None:
            urls = _of_environment()
        if isinstance(urls, str):
            urls = urls.split(",")
        urls = list(urls) if isinstance(urls, Iterable) else [urls]
        for each in urls:
            if not isinstance(each, str):
                # The value of another kind may have a password.
                raise Invalid("invalid", f"url is a {type(each).__name__}: a text such as {DEFAULT_URL} is needed")
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
        #: How often an address failed, or did not lead.
        self.breaks = 0
        self._leader: Optional[str] = None
        self._hops = 0
        # The address whose last attempt was answered.
        self._answered: Optional[str] = None
        self._guard = Guard()

    def current(self) -> str:
        with self._guard:
            return self._leader or self.urls[self._at]

    def apart(self) -> Endpoints:
        """The same addresses, for requests whose failures say nothing about these. They begin where this is now."""
        apart = Endpoints(self.urls, self._secret)
        with self._guard:
            apart._at, apart._leader = self._at, self._leader
        return apart

    def proven(self, url: str) -> bool:
        """Whether the last attempt at this address was answered."""
        return self._answered == url

    def failed(self, url: str) -> None:
        """The next attempt is at the next address."""
        with self._guard:
            self.breaks += 1
            if url == self._answered:
                self._answered = None
            if url == self._leader:
                self._leader = None
            elif self._leader is None and url == self.urls[self._at]:
                self._at = (self._at + 1) % len(self.urls)

    def answered(self, url: str, reply: Reply) -> bool:
        """Records an answer's information about the leader. True: ask again at once."""
        code = code_of(reply) if reply.status >= 500 else ""
        if code != "not_leader":
            with self._guard:
                self._hops, self._answered = 0, url
            if fault_of(reply) is not None:
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


def _of_environment() -> str:
    """`palisade run` sets PALISADE_AUTHORITY for its command, which may have other schemes."""
    if os.environ.get("PALISADE_URL"):
        return os.environ["PALISADE_URL"]
    urls: list[str] = []
    for url in os.environ.get("PALISADE_AUTHORITY", DEFAULT_URL).split(","):
        scheme, _, rest = url.strip().partition("://")
        if not rest and urls:
            # As on the command line: it has the scheme of the one before it.
            scheme, rest = urls[0].split("://")[0], url.strip()
        if scheme == "palisade":
            scheme, rest = "http", rest if urllib.parse.urlsplit(f"//{rest}").port else f"{rest}:7420"
        if scheme not in ("http", "https") or not rest:
            raise Invalid(
                "invalid",
                f"PALISADE_AUTHORITY names no Palisade server over HTTP (its scheme is {url.partition(':')[0]!r}): "
                "set PALISADE_URL to http://HOST:PORT",
            )
        urls.append(f"{scheme}://{rest}")
    return ",".join(urls)


def _checked(given: str) -> str:
    """Never puts the password of an address into an error."""
    url = given.strip().rstrip("/")
    try:
        parts = urllib.parse.urlsplit(url)
        is_plain = not (parts.path or parts.query or parts.fragment) and parts.port != 0
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        raise Invalid("invalid", "an address cannot be read: http://HOST:PORT is needed") from None
    if parts.username or parts.password:
        raise Invalid("invalid", "an address with a password is not supported: give the bearer token as `token`")
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise Invalid("invalid", f"{url!r} is not the address of a server: http://HOST:PORT is needed")
    return url


def _keeps_secrets(url: str) -> bool:
    """Whether nobody on the way can read the requests: they use TLS, or stay on this machine."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
