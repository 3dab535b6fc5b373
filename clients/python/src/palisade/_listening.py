"""Carries out what `_listen` asks for: with threads, or on an event loop. Its connections and its address are its own,
so a listen that fails changes nothing for renewals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from dataclasses import replace
from typing import Any, Callable, Optional

from . import _renewals
from ._cancel import Cancel
from ._clock import SECOND, now_ns
from ._endpoints import Endpoints
from ._exchange import AsyncExchange, Exchange
from ._listen import AFTER_NS, Group, Groups, Heard, listen
from ._process import PerProcess, this_process
from ._protocol import Fault, Outcome, Send, Steps
from ._transport import AsyncTransport, SyncTransport

log = logging.getLogger("palisade")
#: How long the end of a client waits for requests that it has ended.
_CLOSE_NS = SECOND // 4


class Listening:
    """That of a client for threads: in each process one thread for each request, while there is one."""

    def __init__(self, is_on: bool, endpoints: Endpoints, exchange: Callable[[], Exchange]) -> None:
        self._is_on = is_on
        self._here = PerProcess(lambda: _Threads(endpoints, exchange))

    def add(self, heard: list[Heard]) -> None:
        if self._is_on:
            self._here.here().add(heard)

    def renewed(self) -> None:
        if self._is_on:
            self._here.here().renewed()

    def close(self) -> None:
        if self._is_on:
            self._here.here().close()


class _Threads:
    """The state of one process."""

    def __init__(self, endpoints: Endpoints, exchange: Callable[[], Exchange]) -> None:
        self._endpoints, self._exchange = endpoints, exchange
        self._groups = Groups(endpoints)
        self._closed = threading.Event()
        self._running: set[threading.Thread] = set()

    def add(self, heard: list[Heard]) -> None:
        if self._groups.adds(heard):
            self._later()

    def renewed(self) -> None:
        if self._groups.renewed():
            self._later()

    def _later(self) -> None:
        _renewals.later(self._begin, now_ns() + AFTER_NS)

    def _begin(self) -> None:
        for group in self._groups.due():
            thread = threading.Thread(target=self._run, args=(group,), name="palisade: listen", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # There are no more threads, or the interpreter is about to end. The next grant tries again.
                self._groups.rests(group)

    def _run(self, group: Group) -> None:
        self._running.add(threading.current_thread())
        exchange = self._exchange()
        try:
            self._carry_out(listen(self._groups, group), group, SyncTransport(self._endpoints.apart(), exchange))
        except Exception:
            # Such as a token's file that cannot be read: renewals say so, too.
            log.exception("notices are no longer heard; losses are noticed at renewals")
            self._groups.rests(group)
        finally:
            exchange.close()
            self._running.discard(threading.current_thread())

    def _carry_out(self, steps: Steps[None], group: Group, transport: SyncTransport) -> None:
        outcome: Outcome = None
        with contextlib.suppress(StopIteration):
            while True:
                step = steps.send(outcome)
                outcome = None
                if isinstance(step, Send):
                    outcome = self._send(step, group, transport)
                else:
                    # In slices: the system's timers stop in suspension.
                    while (left := step.until_ns - now_ns()) > 0 and not self._closed.wait(min(left, SECOND) / SECOND):
                        pass

    def _send(self, send: Send, group: Group, transport: SyncTransport) -> Outcome:
        cancel = Cancel()
        group.interrupt = cancel.cancel
        if group.is_stale or self._closed.is_set():
            return Fault("the request was not sent", unknown=False)
        return transport.send(replace(send, cancel=cancel))

    def close(self) -> None:
        self._closed.set()
        self._groups.close()
        until = now_ns() + _CLOSE_NS
        for thread in list(self._running):
            thread.join(max(0, until - now_ns()) / SECOND)


class AsyncListening:
    """That of a client for asyncio: on each event loop one task for each request, while there is one."""

    def __init__(self, is_on: bool, endpoints: Endpoints, exchange: Callable[[], AsyncExchange]) -> None:
        self._is_on, self._endpoints, self._exchange = is_on, endpoints, exchange
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Tasks] = weakref.WeakKeyDictionary()
        self._process = this_process()

    def add(self, heard: list[Heard]) -> None:
        if self._is_on:
            self._here().add(heard)

    def renewed(self) -> None:
        if self._is_on:
            self._here().renewed()

    def _here(self) -> _Tasks:
        if this_process() != self._process:
            self._loops, self._process = weakref.WeakKeyDictionary(), this_process()
        loop = asyncio.get_running_loop()
        tasks = self._loops.get(loop)
        if tasks is None:
            tasks = self._loops[loop] = _Tasks(self._endpoints, self._exchange)
        return tasks

    async def close(self) -> None:
        if self._is_on:
            await self._here().close()


class _Tasks:
    """The state of one event loop."""

    def __init__(self, endpoints: Endpoints, exchange: Callable[[], AsyncExchange]) -> None:
        self._endpoints, self._exchange = endpoints, exchange
        self._groups = Groups(endpoints)
        self._running: set[asyncio.Task[None]] = set()

    def add(self, heard: list[Heard]) -> None:
        if self._groups.adds(heard):
            self._later()

    def renewed(self) -> None:
        if self._groups.renewed():
            self._later()

    def _later(self) -> None:
        asyncio.get_running_loop().call_later(AFTER_NS / SECOND, self._begin)

    def _begin(self) -> None:
        for group in self._groups.due():
            task = asyncio.get_running_loop().create_task(self._run(group))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, group: Group) -> None:
        exchange = self._exchange()
        try:
            transport = AsyncTransport(self._endpoints.apart(), exchange)
            await self._carry_out(listen(self._groups, group), group, transport)
        except Exception:
            # Such as a token's file that cannot be read: renewals say so, too.
            log.exception("notices are no longer heard; losses are noticed at renewals")
            self._groups.rests(group)
        finally:
            await exchange.close()

    async def _carry_out(self, steps: Steps[None], group: Group, transport: AsyncTransport) -> None:
        outcome: Outcome = None
        with contextlib.suppress(StopIteration):
            while True:
                step = steps.send(outcome)
                outcome = None
                if isinstance(step, Send):
                    outcome = await self._send(step, group, transport)
                else:
                    while (left := step.until_ns - now_ns()) > 0:
                        await asyncio.sleep(min(left, SECOND) / SECOND)

    async def _send(self, send: Send, group: Group, transport: AsyncTransport) -> Outcome:
        sending: asyncio.Task[Any] = asyncio.get_running_loop().create_task(transport.send(send))
        group.interrupt = sending.cancel
        try:
            # Cancelling this task cancels the request, too; an interrupt cancels the request alone.
            await asyncio.wait([sending])
        except asyncio.CancelledError:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
            raise
        if sending.cancelled():
            return Fault("the request was interrupted", unknown=True)
        outcome: Optional[Outcome] = sending.result()
        return outcome

    async def close(self) -> None:
        self._groups.close()
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
