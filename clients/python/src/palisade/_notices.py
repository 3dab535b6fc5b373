"""What the listeners of a grant are told: the state of the lease, as it changes.

A listener is told of the present state, and not of each step to it. So one that is slow, or was registered late, needs
no queue: what came and went meanwhile is left out, and a loss is never late behind older news."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from typing import Any, Callable, Literal, Optional

from ._clock import SECOND, now_ns
from ._hold import Hold
from ._process import Guard

log = logging.getLogger("palisade")


@dataclass(frozen=True)
class Notice:
    """News about a lease. `suspended`: a renewal failed, and the lease is held for `remaining` seconds if no other one
    is acknowledged; then comes `restored` or `lost`. `wanted`: `waiters` requests wait for the lock; `unwanted`: none
    do any more. `lost`: the lease is over; `why` is the code of `LeaseLost`, and `reason` the operator's."""

    kind: Literal["suspended", "restored", "wanted", "unwanted", "lost"]
    remaining: Optional[float] = None
    waiters: int = 0
    why: Optional[str] = None
    reason: Optional[str] = None


#: For asyncio it may be a coroutine function.
Callback = Callable[[Notice], Any]


class Notices:
    """The state of one lease. `run` calls a listener's `tell` soon, elsewhere."""

    def __init__(self, hold: Hold, run: Callable[[Listener], None]) -> None:
        self.hold, self._run = hold, run
        self.guard = Guard()
        self.is_suspended, self.waiters, self.is_lost = False, 0, False
        self._listeners: list[Listener] = []

    def listen(self, callback: Callback) -> None:
        listener = Listener(self, callback)
        with self.guard:
            self._listeners.append(listener)
        self._changed()

    def suspend(self) -> None:
        """A renewal failed."""
        self.is_suspended = True
        self._changed()

    def restore(self) -> None:
        """A renewal was acknowledged."""
        self.is_suspended = False
        self._changed()

    def want(self, waiters: int) -> None:
        self.waiters = waiters
        self._changed()

    def lose(self) -> None:
        self.is_lost = True
        self._changed()

    def _changed(self) -> None:
        if self._listeners:
            with self.guard:
                starts = [each for each in self._listeners if each.starts()]
            for listener in starts:
                self._run(listener)


class Listener:
    """What one callback was told. At most one call of it runs at a time."""

    def __init__(self, notices: Notices, callback: Callback) -> None:
        self._notices, self._callback = notices, callback
        self._is_suspended, self._waiters, self._is_over = False, 0, False
        self._is_running = False

    def starts(self) -> bool:
        """Whether it has news, and nobody tells them yet. From now on somebody does. Under the guard."""
        if self._is_running or self._news() is None:
            return False
        self._is_running = True
        return True

    def rest(self) -> None:
        with self._notices.guard:
            self._is_running = False

    def _news(self) -> Optional[Notice]:
        state, hold = self._notices, self._notices.hold
        is_forked = hold.over == "forked"
        if self._is_over:
            return None
        if state.is_lost or is_forked:
            return Notice("lost", why="not_held" if is_forked else hold.over, reason=hold.reason)
        if hold.over is not None:
            return None
        if state.is_suspended != self._is_suspended:
            left = max(0, hold.deadline - now_ns()) / SECOND
            return Notice("suspended", remaining=left) if state.is_suspended else Notice("restored")
        if state.waiters != self._waiters:
            return Notice("wanted", waiters=state.waiters) if state.waiters else Notice("unwanted")
        return None

    def _next(self) -> Optional[Notice]:
        """None: there is nothing more to tell, and nobody tells from now on."""
        # A lease whose time is over is lost before anything else is said. Not under the guard: it announces the loss.
        self._notices.hold.holds()
        with self._notices.guard:
            notice = self._news()
            if notice is None:
                self._is_running = False
                return None
            if notice.kind in ("suspended", "restored"):
                self._is_suspended = notice.kind == "suspended"
            elif notice.kind == "lost":
                self._is_over = True
            else:
                self._waiters = notice.waiters
            return notice

    def tell(self) -> None:
        while (notice := self._next()) is not None:
            try:
                self._callback(notice)
            # Not even a sys.exit, which a thread would ignore without a word.
            except BaseException:
                log.exception("a listener failed at the notice %r", notice.kind)

    async def tell_async(self) -> None:
        while (notice := self._next()) is not None:
            try:
                answer = self._callback(notice)
                if inspect.isawaitable(answer):
                    await answer
            except Exception:
                log.exception("a listener failed at the notice %r", notice.kind)
