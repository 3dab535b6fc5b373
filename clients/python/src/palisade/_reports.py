"""Tells the authority that a fence refused a token as stale, for its history. Best effort: no caller waits for it, no
caller sees an error of it, and it changes nothing about a lease."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Callable, NamedTuple, Optional

from ._clock import MILLISECOND, SECOND, now_ns
from ._endpoints import Endpoints
from ._exchange import Exchange
from ._process import PerProcess
from ._protocol import Reply, Send, lock_path
from ._transport import SyncTransport

MAX_WAITING = 64
#: The server takes as many bytes of a resource and of an operation.
MAX_BYTES = 255
_BETWEEN_NS = 100 * MILLISECOND
_EQUAL_NS = 10 * SECOND
_ATTEMPT_NS = 2 * SECOND
#: How long the end of a client waits for what is queued.
CLOSE_NS = 250 * MILLISECOND


class Report(NamedTuple):
    """One refused operation, as the authority is told of it."""

    lock: str
    token: int
    resource: str
    operation: str
    highest: int

    def request(self) -> Send:
        body = {
            "fencing_token": self.token,
            "resource": _cut(self.resource),
            "highest": self.highest,
            "operation": _cut(self.operation),
        }
        return Send("POST", lock_path(self.lock, "rejections"), body, _ATTEMPT_NS)


def _cut(text: str) -> str:
    return text.encode(errors="replace")[:MAX_BYTES].decode(errors="ignore")


class _Queue:
    """The state of one process."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[Report] = deque()
        #: When the latest report of a lock, token and resource came. It has those of the last ten seconds.
        self.latest: dict[tuple[str, int, str], int] = {}
        self.dropped = 0
        self.is_running = False
        self.is_closed = False
        self.next_ns = 0

    def takes(self, report: Report) -> bool:
        """Whether a thread is to be started for it. Under `changed`."""
        key, now = report[:3], now_ns()
        self.latest = {known: at for known, at in self.latest.items() if now - at < _EQUAL_NS}
        if key in self.latest:
            return False
        if self.is_closed or len(self.waiting) >= MAX_WAITING:
            self.dropped += 1
            return False
        self.latest[key] = now
        self.waiting.append(report)
        is_first, self.is_running = not self.is_running, True
        return is_first

    def end(self) -> None:
        """No thread is there any more. Under `changed`."""
        self.is_running = False
        self.dropped += len(self.waiting)
        self.waiting.clear()
        self.changed.notify_all()


class Reports:
    """The queue of one client, and in each process a thread that lives while something is in it."""

    def __init__(self, is_on: bool, endpoints: Endpoints, exchange: Callable[[], Exchange]) -> None:
        self._is_on, self._endpoints, self._exchange = is_on, endpoints, exchange
        self._queues = PerProcess(_Queue)

    @property
    def dropped(self) -> int:
        return self._queues.here().dropped

    def add(self, report: Report) -> None:
        """Never raises, and never waits for an answer."""
        if not self._is_on:
            return
        queue = self._queues.here()
        with queue.changed:
            starts = queue.takes(report)
        if starts:
            try:
                threading.Thread(target=self._run, args=(queue,), name="palisade: reports", daemon=True).start()
            except RuntimeError:
                # The interpreter is about to end, or there are no more threads.
                self._end(queue)

    def _run(self, queue: _Queue) -> None:
        try:
            exchange = self._exchange()
            transport = SyncTransport(self._endpoints, exchange)
            while (report := self._next(queue)) is not None:
                if not _arrived(transport, report):
                    with queue.changed:
                        queue.dropped += 1
            exchange.close()
        except Exception:
            self._end(queue)

    def _next(self, queue: _Queue) -> Optional[Report]:
        """Waits for its time. None: there is no more, and the thread ends."""
        with queue.changed:
            if queue.is_closed or not queue.waiting:
                # In one step with the look: a report that comes from now on starts another thread.
                queue.end()
                return None
            report, at = queue.waiting.popleft(), max(queue.next_ns, now_ns())
            queue.next_ns = at + _BETWEEN_NS
        time.sleep(max(0, at - now_ns()) / SECOND)  # real time: posts keep a distance
        return report

    def _end(self, queue: _Queue) -> None:
        with queue.changed:
            queue.end()

    def is_idle(self) -> bool:
        return not self._queues.here().is_running

    def wait(self) -> None:
        """Waits for what is queued, for a short time."""
        queue = self._queues.here()
        with queue.changed:
            queue.changed.wait_for(lambda: not queue.is_running, CLOSE_NS / SECOND)

    def close(self) -> None:
        """Drops what is queued, and what comes from now on."""
        queue = self._queues.here()
        with queue.changed:
            queue.is_closed = True


def _arrived(transport: SyncTransport, report: Report) -> bool:
    try:
        outcome = transport.send(report.request())
    except Exception:
        # Such as a token's file that cannot be read. The next request of the client raises it.
        return False
    return isinstance(outcome, Reply) and outcome.status == 200
