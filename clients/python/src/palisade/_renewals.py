"""Renews the leases of all clients of this process: one thread waits until they are due, and a few carry them out.

A renewal that hangs, because its server is silent, keeps its thread for a third of the lease's time. Others must not be
lost meanwhile: one that would be late gets a further thread, which ends when there is nothing left to do."""

from __future__ import annotations

import collections
import heapq
import itertools
import threading
from typing import Callable, Optional

from ._clock import MILLISECOND, SECOND, now_ns
from ._hold import Hold
from ._process import Begun, PerProcess

#: So many threads while answers come.
FEW = 8
#: A renewal is late if it waits for a thread for this part of what is left.
LATE = 10
_IDLE_S = 10.0
# Threads beyond the few begin one after the other: most of what is late may only wait for the processor.
_APART = 10 * MILLISECOND
_SWEEP = 1024


class Renewal:
    """That of one lease. `steps` goes on with it, and returns the instant of the next time, or None at its end. Without
    a hold it is other work, which may be a second late."""

    def __init__(self, hold: Optional[Hold], steps: Callable[[], Optional[int]]) -> None:
        self.hold = hold
        self.steps: Optional[Callable[[], Optional[int]]] = steps
        self.late_ns = 0

    def bears_ns(self, now: int) -> int:
        """How long it may wait for a thread."""
        return SECOND if self.hold is None else max(self.hold.deadline - now, 0) // LATE


class _Schedule:
    def __init__(self) -> None:
        # A signal's handler may release a lease while this very thread is in here.
        lock = threading.RLock()
        self._earlier, self._work = threading.Condition(lock), threading.Condition(lock)
        self._waiting: list[tuple[int, int, Renewal]] = []
        self._ready: collections.deque[Renewal] = collections.deque()
        self._numbers = itertools.count()
        self._workers, self._idle, self._cancelled = 0, 0, 0
        self._next_extra_ns = 0
        self._thread = Begun("palisade: renewals", self._run)

    def at(self, due_ns: int, renewal: Renewal) -> None:
        with self._earlier:
            heapq.heappush(self._waiting, (due_ns, next(self._numbers), renewal))
            if self._waiting[0][2] is renewal:
                self._earlier.notify()
        self._thread.begin()

    def cancel(self, renewal: Renewal) -> None:
        """A renewal under way may end."""
        with self._earlier:
            # Until it would be due, it keeps nothing alive.
            renewal.steps = renewal.hold = None
            self._cancelled += 1
            if self._cancelled > max(_SWEEP, len(self._waiting) // 2):
                self._waiting = [each for each in self._waiting if each[2].steps is not None]
                heapq.heapify(self._waiting)
                self._cancelled = 0

    def _run(self) -> None:
        with self._earlier:
            while True:
                now = now_ns()
                while self._waiting and self._waiting[0][0] <= now:
                    renewal = heapq.heappop(self._waiting)[2]
                    if renewal.steps is not None:
                        renewal.late_ns = now + renewal.bears_ns(now)
                        self._ready.append(renewal)
                self._employ(now)
                # In slices: the timer of the system stops in suspension, the holder's clock does not.
                self._earlier.wait(self._left_s())

    def _left_s(self) -> Optional[float]:
        due = [self._waiting[0][0]] if self._waiting else []
        if len(self._ready) > self._idle:
            due.append(max(self._ready[0].late_ns, self._next_extra_ns))
        if not due:
            return None
        return max(0, min(min(due) - now_ns(), SECOND)) / SECOND

    def _employ(self, now: int) -> None:
        """Wakes or makes threads for what is ready."""
        self._work.notify(len(self._ready))
        while len(self._ready) > self._idle and self._workers < FEW:
            if not self._hire():
                return
        lacks = len(self._ready) > self._idle
        if lacks and now >= max(self._ready[0].late_ns, self._next_extra_ns):
            self._next_extra_ns = now + _APART
            self._hire()

    def _hire(self) -> bool:
        thread = threading.Thread(target=self._carry_out, name="palisade: renewal", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # There are none now: at most a slice of time later it is tried again.
            self._next_extra_ns = now_ns() + SECOND
            return False
        # From now on it counts as one that waits for work.
        self._workers += 1
        self._idle += 1
        return True

    def _carry_out(self) -> None:
        while True:
            with self._work:
                while not self._ready:
                    if not self._work.wait(_IDLE_S) and not self._ready:
                        self._idle -= 1
                        self._workers -= 1
                        return
                self._idle -= 1
                renewal = self._ready.popleft()
                steps = renewal.steps
            due = None if steps is None else steps()
            del steps
            with self._work:
                self._idle += 1
                if due is not None and renewal.steps is not None:
                    self.at(due, renewal)
            # A thread that waits for work keeps nothing alive.
            del renewal


_SCHEDULES = PerProcess(_Schedule)


def renew(renewal: Renewal, due_ns: int) -> None:
    """From this instant on."""
    _SCHEDULES.here().at(due_ns, renewal)


def later(work: Callable[[], None], due_ns: int) -> None:
    """Calls it at this instant, soon. It may not wait."""
    renew(Renewal(None, work), due_ns)


def cancel(renewal: Renewal) -> None:
    """Not from now on."""
    _SCHEDULES.here().cancel(renewal)
