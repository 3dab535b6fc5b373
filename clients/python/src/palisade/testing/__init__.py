"""A lock server in memory, for the unit tests of programs that use `palisade`. It needs no binary, no socket and no
folder:

    server = MemoryServer()
    client = server.client()                 # server.async_client() for asyncio
    …
    server.revoke("orders", "the test")      # and see what the program does

The client is the real one, with its renewals, deadlines and refusals; only the way to the server is another. Tokens
rise by one over all locks, as the real server's do, and waiting requests are granted in the order of their arrival.

The double does not promise what a test of one program does not need: nothing survives the process, a forked child has a
copy of its own, everybody may do everything, and there are no certificates, clusters, quotas, signed tokens or audit
files. The tests of the client run against the double and against the program."""

from __future__ import annotations

from typing import Any, Callable, Optional

from .. import _model
from .._async import AsyncClient
from .._client import Client
from .._exchange import AsyncExchange, Exchange
from .._model import Holder
from ._authority import DOWN, FOREVER, STALLED, UP, Authority, Grant, Pending
from ._wire import AsyncWire, Wire, holder

__all__ = ["Held", "MemoryServer"]

# What has no effect: where the server is, and how to be known to it.
_UNUSED = ("url", "token", "token_file", "verify", "cert")
_URL = "http://127.0.0.1:7420"


class MemoryServer:
    """An authority in memory. All its methods may be used by several threads. It has nothing to close."""

    def __init__(self) -> None:
        self._authority = Authority()

    def client(self, **options: Any) -> Client:
        """A client of this server, for threads. The options are those of `Client`; an address, a token and certificates
        have no effect."""
        return _Client(self._authority, _used(options))

    def async_client(self, **options: Any) -> AsyncClient:
        """A client of this server, for asyncio."""
        return _AsyncClient(self._authority, _used(options))

    def expire(self, lock: str) -> None:
        """Ends every grant of a lock, as if no renewal had come in time. Its holder learns of it by a notice, at once;
        of a client with `notices=False` from its next renewal, after a third of its ttl."""
        self._end_all(lock, "expired", "")

    def revoke(self, lock: str, reason: str = "") -> None:
        """Takes a lock from everybody who holds it, as `break_lock` does. A holder learns of it as with `expire`."""
        self._end_all(lock, "revoked", reason)

    def _end_all(self, lock: str, code: str, reason: str) -> None:
        with self._authority.settled():
            for grant in list(self._authority.lock(lock).grants):
                self._authority.end(grant, code, reason)

    def hold(self, lock: str, client_id: str = "other") -> Held:
        """Gives a free lock to another client, which keeps it until it is released, revoked or expired by the test.
        A ValueError says who has it, if it is not free."""
        authority = self._authority
        with authority.settled():
            pending = Pending([lock], client_id, FOREVER)
            found = authority.lock(lock)
            # The same client id would take its own grant over.
            if found.is_held_by(pending) or not authority.admits(found, pending):
                raise ValueError(f"{lock!r} is not free: {authority.denial(pending).message}")
            authority.grant(pending)
            return Held(authority, pending.grants[0])

    def down(self) -> None:
        """From now on every request is answered that the server is not available, and nothing happens."""
        self._authority.become(DOWN)

    def stall(self) -> None:
        """From now on nothing is answered. Requests that still wait for their answers get them after `up`."""
        self._authority.become(STALLED)

    def up(self) -> None:
        """Ends `down` and `stall`."""
        self._authority.become(UP)

    def tokens(self, lock: str) -> list[int]:
        """All tokens under which a lock was granted so far, in order."""
        with self._authority.guard:
            return list(self._authority.tokens.get(lock, []))

    def holder(self, lock: str) -> Optional[Holder]:
        """The client that has a lock now, the oldest of several; None if it is free."""
        with self._authority.settled():
            grants = self._authority.lock(lock).grants
            return _model.holder(holder(grants[0])) if grants else None


class Held:
    """A lock that another client has: see `MemoryServer.hold`. As a `with` block it is released at its end."""

    def __init__(self, authority: Authority, grant: Grant) -> None:
        self._authority, self._grant = authority, grant

    @property
    def token(self) -> int:
        """The fencing token with which it is held."""
        return self._grant.token

    def release(self) -> None:
        """Frees the lock. Releasing again is harmless."""
        with self._authority.settled():
            self._authority.end(self._grant, "not_held")

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _used(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _UNUSED}


class _Client(Client):
    def __init__(self, authority: Authority, options: dict[str, Any]) -> None:
        self._authority = authority
        super().__init__(_URL, **options)

    def _background_exchange(self) -> Callable[[], Exchange]:
        return _wires(self._authority)


class _AsyncClient(AsyncClient):
    def __init__(self, authority: Authority, options: dict[str, Any]) -> None:
        self._authority = authority
        super().__init__(_URL, **options)

    def _exchange(self) -> Callable[[], AsyncExchange]:
        authority = self._authority
        return lambda: AsyncWire(authority)

    def _background_exchange(self) -> Callable[[], Exchange]:
        return _wires(self._authority)


def _wires(authority: Authority) -> Callable[[], Exchange]:
    return lambda: Wire(authority)
