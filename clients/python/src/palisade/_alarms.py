"""Announces losses at their deadlines: one thread for all leases of the process."""

from __future__ import annotations

import heapq
import itertools
import threading
import weakref

from ._clock import SECOND, now_ns
from ._hold import Hold
from ._process import Begun, PerProcess


class _Alarms:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[int, int, weakref.ref[Hold]]] = []
        self._numbers = itertools.count()
        self._thread = Begun("palisade: deadlines", self._run)

    def watch(self, hold: Hold) -> None:
        with self._changed:
            heapq.heappush(self._due, (hold.deadline, next(self._numbers), weakref.ref(hold)))
            self._changed.notify()
        self._thread.begin()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > now_ns():
                    left = self._due[0][0] - now_ns() if self._due else 60 * SECOND
                    # In slices: the timer of the system stops in suspension, the deadline does not.
                    self._changed.wait(max(0, min(left, SECOND)) / SECOND if self._due else None)
                _, _, reference = heapq.heappop(self._due)
            hold = reference()
            # A deadline that has moved on since is due again then.
            if hold is not None and hold.holds():
                self.watch(hold)


_ALARMS = PerProcess(_Alarms)


def watch(hold: Hold) -> None:
    """Announces its loss at its deadline."""
    _ALARMS.here().watch(hold)
