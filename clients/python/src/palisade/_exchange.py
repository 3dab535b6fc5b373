"""The seam between a client and its way to a server. What a client decides is above it: addresses, repetitions,
deadlines, refusals. Below it is HTTP (`_transport`), or the double of `palisade.testing`."""

from __future__ import annotations

from typing import AsyncContextManager, AsyncIterator, Awaitable, Callable, ContextManager, Iterator, Protocol

from ._model import Malformed
from ._protocol import Fault, Reply, Send, read_reply


def believed(url: str, send: Send, status: int, body: bytes) -> Reply:
    """The answer, if it may be that of this request. Raises `Fault`."""
    reply = read_reply(status, body)
    try:
        send.check(reply)
    except Malformed as malformed:
        raise Fault(f"{url}: a broken answer: {malformed}", unknown=True) from None
    return reply


class Stream:
    """The answer to a watch: a head, and lines without end."""

    def __init__(self, status: int, read: Callable[[], bytes], lines: Callable[[], Iterator[str]]) -> None:
        #: The whole body, of a status that is not 200.
        self.status, self.read = status, read
        self.lines = lines


class AsyncStream:
    """As `Stream`."""

    def __init__(
        self, status: int, read: Callable[[], Awaitable[bytes]], lines: Callable[[], AsyncIterator[str]]
    ) -> None:
        self.status, self.read = status, read
        self.lines = lines


class Exchange(Protocol):
    """Carries requests and brings their answers. Every method but `close` raises `Fault` if there is none, and nothing
    that was open then is used for the next request."""

    def send(self, url: str, send: Send, until_ns: int) -> Reply:
        """Carries one request to an address. The answer is `believed`."""

    def watch(self, url: str, path: str, patience_ns: int) -> ContextManager[Stream]:
        """Opens a watch, in the time of one attempt."""

    def reconnect(self) -> None:
        """The next request has a new connection."""

    def close(self) -> None: ...


class AsyncExchange(Protocol):
    """As `Exchange`."""

    async def send(self, url: str, send: Send, until_ns: int) -> Reply: ...

    def watch(self, url: str, path: str, patience_ns: int) -> AsyncContextManager[AsyncStream]: ...

    async def reconnect(self) -> None: ...

    async def close(self) -> None: ...
