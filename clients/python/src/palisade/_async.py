"""The client for asyncio. Everything is as in `palisade.Client`, with `async with`, `await` and `async for`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from types import TracebackType
from typing import Any, AsyncGenerator, AsyncIterator, Callable, Literal, Optional, TypeVar, Unpack

from . import _election
from . import _protocol as protocol
from ._base import BaseClient
from ._clock import SECOND, now_ns
from ._exchange import AsyncExchange
from ._grant import BaseGrant
from ._hold import Hold
from ._listening import AsyncListening
from ._model import Duration, Event, Leader, LockInfo, Status, lock_info, page, status
from ._notices import Listener
from ._options import GrantOptions, known
from ._process import OfOneProcess
from ._reports import CLOSE_NS
from ._requests import WAIT
from ._sse import Position
from ._transport import AsyncHttp, AsyncTransport, running_loop
from .errors import LeaseLost, LockHeld, PalisadeError, Unavailable, UnknownOutcome

log = logging.getLogger("palisade")
Result = TypeVar("Result")


class AsyncClient(BaseClient):
    """Asks a Palisade server for locks. The arguments are those of `palisade.Client`. It may be used on one event loop
    after the other, with connections of its own on each; a grant is renewed on the loop that acquired it."""

    def _open(self, notices: bool) -> None:
        exchange = self._exchange()
        self._transport = AsyncTransport(self._requests.endpoints, exchange())
        self._listening = AsyncListening(notices, self._requests.endpoints, exchange)
        # Tasks that nobody waits for: the event loop itself keeps only weak references.
        self._cleanups: set[asyncio.Task[None]] = set()

    def _exchange(self) -> Callable[[], AsyncExchange]:
        """It keeps no reference to the client."""
        settings = self._requests.settings
        return lambda: AsyncHttp(settings)

    def lock(
        self,
        name: str,
        *,
        ttl: Duration = "15s",
        wait: Optional[Duration] = None,
        client_id: Optional[str] = None,
        metadata: Optional[str] = None,
        shared: bool = False,
        update: bool = False,
        permits: Optional[tuple[int, int]] = None,
        **options: Unpack[GrantOptions],
    ) -> AsyncLock:
        """A request for a lock, sent by `async with` or by `await ….acquire()`; see `palisade.Client.lock`."""
        known(options)
        kind = shared, update, permits, options
        return AsyncLock(self, lambda waits: self._requests.wish((name,), ttl, wait, waits, client_id, metadata, *kind))

    def locks(
        self,
        *names: str,
        ttl: Duration = "15s",
        wait: Optional[Duration] = None,
        client_id: Optional[str] = None,
        metadata: Optional[str] = None,
    ) -> AsyncLock:
        """A request for several locks at once; see `palisade.Client.locks`."""
        return AsyncLock(self, lambda waits: self._requests.wish(names, ttl, wait, waits, client_id, metadata))

    async def adopt(self, text: str) -> AsyncGrant:
        """Takes over a lease that `grant.export()` handed over; see `palisade.Client.adopt`."""
        wish, granted, ref, steps = self._requests.adopts(text)
        try:
            t0_ns, valid_for_ms = await self._run(steps)
        except LeaseLost:
            if len(ref.locks) > 1:
                self._in_background(self._requests.gives_back(wish, ref), f"what is left of {wish.lock}")
            raise
        return AsyncGrant(self, wish, replace(granted, t0_ns=t0_ns, valid_for_ms=valid_for_ms))

    async def show(self, name: str) -> LockInfo:
        """The holder of a lock and the number of waiters."""
        return await self._ask("GET", protocol.lock_path(name), None, lock_info, name)

    async def list(self, prefix: str = "") -> AsyncIterator[LockInfo]:
        """The locks that are held and whose names start with `prefix`, page by page."""
        cursor: Optional[str] = None
        while True:
            locks, cursor = await self._ask("GET", self._requests.page(prefix, cursor), None, page)
            for lock in locks:
                yield lock
            if cursor is None:
                return

    async def break_lock(self, name: str, token: int, reason: str = "") -> None:
        """Takes a lock from its holder. `token` is that of the current grant: proof that the operator has looked."""
        body = self._requests.breaks(token, reason)
        await self._ask("POST", protocol.lock_path(name, "break"), body, dict, name)

    async def resize(self, name: str, permits: int) -> None:
        """Gives a semaphore that is in use another number of permits. Holders keep their slots; a lower number takes
        effect as they come free."""
        body = self._requests.resizes(permits)
        await self._ask("POST", protocol.lock_path(name, "permits"), body, dict, name)

    async def status(self) -> Status:
        return await self._ask("GET", "/v1/status", None, status)

    async def watch(self, prefix: str = "", after: Optional[int] = None) -> AsyncIterator[Event]:
        """Changes of the locks whose names start with `prefix`, without end, across broken connections."""
        async with contextlib.aclosing(self._changes(prefix, after)) as changes:
            async for event in changes:
                if event is not None:
                    yield event

    async def _changes(self, prefix: str, after: Optional[int]) -> AsyncGenerator[Optional[Event], None]:
        """None: a watch is open."""
        position = self._requests.watched(prefix, after)
        while True:
            url = self._requests.endpoints.current()
            try:
                async with contextlib.aclosing(self._watch_once(url, position)) as changes:
                    async for event in changes:
                        yield event
            except protocol.Fault as fault:
                log.debug("the watch of %s broke: %s", url, fault)
                self._requests.endpoints.failed(url)
            await asyncio.sleep(0.1)

    async def _watch_once(self, url: str, position: Position) -> AsyncGenerator[Optional[Event], None]:
        async with self._transport.exchange.watch(url, position.path(), self._requests.patience_ns) as stream:
            if stream.status != 200:
                if self._requests.watch_refused(url, stream.status, await stream.read(), position):
                    await self._transport.exchange.reconnect()
                return
            yield None
            for event in position.opened():
                yield event
            async for line in stream.lines():
                told = position.line(line)
                if told is not None:
                    yield told

    async def leader(self, name: str) -> Optional[Leader]:
        """The leader of an election; see `palisade.Client.leader`."""
        return (await self._leader(name))[0]

    def observe(self, name: str) -> AsyncGenerator[Optional[Leader], None]:
        """The present leader of an election at once, and then each change; see `palisade.Client.observe`."""
        return self._observe(name, _election.Observed(name))

    async def _observe(self, name: str, observed: _election.Observed) -> AsyncGenerator[Optional[Leader], None]:
        async with contextlib.aclosing(self._changes(name, None)) as changes:
            async for change in changes:
                while observed.concerns(change):
                    try:
                        found = await self._leader(name)
                    except (Unavailable, UnknownOutcome) as nobody:
                        log.debug("the leader of %s is not known: %s", name, nobody)
                        await asyncio.sleep(0.5)
                        continue
                    if observed.is_news(found):
                        yield found[0]
                    break

    async def _leader(self, name: str) -> _election.Shown:
        return await self._ask("GET", protocol.lock_path(name), None, _election.shown, name)

    async def aclose(self) -> None:
        """As `palisade.Client.close`."""
        await self._listening.close()
        until = now_ns() + CLOSE_NS
        while not self._reports.is_idle() and now_ns() < until:
            await asyncio.sleep(0.005)  # real time: the reports have a thread of their own
        self._reports.close()
        loop = asyncio.get_running_loop()
        # Those of a loop that is over were cancelled with it.
        cleanups = [task for task in self._cleanups if task.get_loop() is loop]
        if cleanups:
            await asyncio.wait(cleanups, timeout=self._requests.patience_ns / SECOND)
        await self._transport.exchange.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _ask(
        self,
        method: str,
        path: str,
        body: Optional[dict[str, Any]],
        read: Callable[[dict[str, Any]], Result],
        lock: Optional[str] = None,
    ) -> Result:
        until = now_ns() + self._requests.patience_ns
        return await self._run(protocol.asked(method, path, body, until, read, lock))

    async def _run(self, steps: protocol.Steps[Result]) -> Result:
        running_loop()
        outcome: protocol.Outcome = None
        try:
            while True:
                step = steps.send(outcome)
                outcome = None
                if isinstance(step, protocol.Send):
                    outcome = await self._transport.send(step)
                else:
                    await _sleep(step.until_ns)
        except StopIteration as end:
            result: Result = end.value
            return result

    async def _acquire(self, wish: protocol.Wish) -> AsyncGrant:
        running_loop()
        try:
            granted = await self._run(protocol.acquire(wish))
        except BaseException:
            if wish.may_have_happened:
                self._in_background(protocol.abandon(wish), f"the request for {wish.lock}")
            raise
        return AsyncGrant(self, wish, granted)

    def _in_background(self, steps: protocol.Steps[Any], what: str) -> None:
        async def run() -> None:
            try:
                await self._run(steps)
            except PalisadeError as error:
                log.info("%s is left to expire: %s", what, error)

        task = asyncio.get_running_loop().create_task(run())
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)


class AsyncLock(OfOneProcess):
    """A request for a lock; every `async with` and every `acquire` asks anew."""

    def __init__(self, client: AsyncClient, wish: Callable[[Duration], protocol.Wish]) -> None:
        self._client, self._wish = client, wish
        self._entered: list[AsyncGrant] = []

    async def acquire(self) -> AsyncGrant:
        """As `palisade.Lock.acquire`. When the task is cancelled, the request is abandoned in the background."""
        return await self._client._acquire(self._wish(WAIT))

    async def try_acquire(self) -> Optional[AsyncGrant]:
        """The grant, or None if another client has the lock; see `palisade.Lock.try_acquire`."""
        try:
            return await self._client._acquire(self._wish(0))
        except LockHeld:
            return None

    async def __aenter__(self) -> AsyncGrant:
        grant = await self.acquire()
        self._entered.append(grant)
        return grant

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self._entered.pop().__aexit__(kind, error, trace)


class _Lost(asyncio.Event):
    """A waiter looks at the deadline itself: the loop that renewed the grant may be over."""

    def __init__(self, hold: Callable[[], Hold]) -> None:
        super().__init__()
        self._hold = hold

    async def wait(self) -> Literal[True]:
        while not self.is_set():
            hold = self._hold()
            # Asking announces a loss. Nothing follows a release.
            left = min(hold.remaining_ns(), SECOND) / SECOND if hold.holds() else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await super().wait()
        return True


class AsyncGrant(BaseGrant):
    """A lock that is held, and renewed by a task, until it is released or lost. See `palisade.Grant`.

    A task that blocks the event loop also blocks the renewal; `check()` is right even then."""

    def __init__(self, client: AsyncClient, wish: protocol.Wish, granted: protocol.Granted) -> None:
        self._client = client
        #: Set when the lease is lost. Not set by a release.
        self.lost: asyncio.Event = _Lost(lambda: self._hold)
        self._tasks: list[asyncio.Task[None]] = []
        super().__init__(client, wish, granted)
        self._check_in_time()
        loop = asyncio.get_running_loop()
        self._tasks += [loop.create_task(client._run(self._renewal())), loop.create_task(self._alarm())]
        self._loop = loop
        self._tellings: set[asyncio.Task[None]] = set()
        client._listening.add(self._heard)

    async def downgrade(self) -> AsyncGrant:
        """Makes a writer a reader, in one step: no other writer gets in between. See `palisade.Grant.downgrade`."""
        if self.shared:
            return self
        reader = self._leave_for_reader()
        try:
            return await self._client._acquire(reader)
        except BaseException:
            self._give_back(f"the lock {self._ref.lock}")
            raise

    async def proclaim(self, value: str) -> None:
        """Changes the value that this leader announces; see `palisade.Grant.proclaim`."""
        await self._client._run(self._proclaims(value))

    async def upgrade(self, wait: Duration = "30s") -> AsyncGrant:
        """Makes the reader in mode update the writer, in one step; see `palisade.Grant.upgrade`. When the task is
        cancelled, the upgrade is given up in the background."""
        wish = self._become_writer(wait)
        try:
            return await self._client._acquire(wish)
        finally:
            self._upgrade_ended()

    async def sequencer(self, name: Optional[str] = None) -> str:
        """The token as the authority signs it; see `palisade.Grant.sequencer`."""
        return await self._client._run(self._signing(name))

    async def release(self) -> str:
        """Gives the lock up; see `palisade.Grant.release`. When the task is cancelled, it goes on in the background."""
        self._hold.end("released")
        self._refuse_if_handed_over()
        return await self._release(None)

    async def release_part(self, name: str) -> str:
        """Gives one of several locks up; see `palisade.Grant.release_part`. When the task is cancelled, it goes on in
        the background."""
        self._refuse_if_handed_over()
        if not self._hold.is_here:
            return "over"
        return await self._release(protocol.give_up_part(self._ref, self._hold, name))

    async def _release(self, part: Optional[str]) -> str:
        if not self._hold.is_here:
            return "over"
        if self._hold.over:
            self._stop()
        until = now_ns() + self._client._requests.patience_ns
        try:
            return await self._client._run(protocol.release(self._ref, until, part))
        except asyncio.CancelledError:
            steps = protocol.release(self._ref, until, part)
            self._client._in_background(steps, f"the release of {part or self._ref.lock}")
            raise

    async def __aenter__(self) -> AsyncGrant:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._is_lost():
            return
        try:
            await self.release()
        except PalisadeError as failed:
            self._warn_unreleased(failed)

    async def _alarm(self) -> None:
        while self._hold.holds():
            await _sleep(self._hold.deadline)

    def _set_lost(self) -> None:
        self.lost.set()

    def _stop(self) -> None:
        for task in self._tasks:
            # A task of a loop that is over needs no end.
            if not task.get_loop().is_closed():
                task.cancel()

    def _run(self, listener: Listener) -> None:
        """On the loop of the grant, also if another thread noticed the change."""
        # The loop may be over.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell, listener)

    def _tell(self, listener: Listener) -> None:
        telling = self._loop.create_task(listener.tell_async())
        self._tellings.add(telling)
        telling.add_done_callback(self._tellings.discard)


async def _sleep(until_ns: int) -> None:
    """In slices, because the loop's timers stop in suspension and the holder's clock does not."""
    while (left := until_ns - now_ns()) > 0:
        await asyncio.sleep(min(left, SECOND) / SECOND)
