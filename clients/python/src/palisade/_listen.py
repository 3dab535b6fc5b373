"""Asks the server for news about leases that are held, without I/O: one request for up to a hundred of them, which the
server answers when it has something to say.

    grants ──► fresh ── 100 ms ──► groups of a hundred ──► POST /v1/listen, again and again
                                         ▲ a new grant ends the request under way, so that the next one names it

It renews nothing, and whatever becomes of it, no lease is suspended: renewals decide that."""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import Any, Callable, Optional

from ._clock import MILLISECOND, SECOND, now_ns
from ._endpoints import Endpoints
from ._hold import Hold
from ._model import Malformed, integer, text
from ._protocol import GrantRef, Outcome, Pause, Reply, Send, Steps, ended

MAX_GRANTS = 100
#: A lease that is shorter than this is never named.
AFTER_NS = 100 * MILLISECOND
WAIT_MS = 20_000
_LEAST_WAIT_MS = 2_000
# For the answer, beyond the wait.
_SLACK_NS = 5 * SECOND
# After an answer that had notices.
_PAUSE_NS = 50 * MILLISECOND, 150 * MILLISECOND
_FIRST_BACKOFF_NS, _LONGEST_BACKOFF_NS = SECOND // 2, 10 * SECOND
#: How a grant ended, as the code that a renewal would have been refused with.
_CODES = {"expired": "expired", "revoked": "revoked", "superseded": "superseded"}
Key = tuple[str, int]


class Heard:
    """One lock of a grant. `wanted` is called when `waiters` has changed."""

    def __init__(self, grant: GrantRef, hold: Hold, lock: str, wanted: Callable[[], None]) -> None:
        self._grant, self._hold, self.lock, self._wanted = grant, hold, lock, wanted
        self.waiters = 0

    @property
    def key(self) -> Key:
        return self.lock, self._grant.number

    @property
    def is_held(self) -> bool:
        return self._hold.holds() and self.lock in self._grant.held

    def named(self) -> dict[str, Any]:
        return {"resource_id": self.lock, **self._grant.body(), "waiters": self.waiters}

    def renewed(self, waiters: int, locks: int) -> None:
        """What a renewal says counts for all of the grant's locks."""
        if locks == 1 or waiters == 0:
            self.waiters = waiters

    def takes(self, notice: dict[str, Any]) -> bool:
        """Whether the next request says something else because of it."""
        if not self.is_held:
            return True
        if notice["event"] == "ended":
            code = _CODES.get(notice["how"], "not_held")
            if self._hold.expects(code):
                return False
            reason = notice.get("reason")
            ended(self._grant, self._hold, self.lock, code, reason if isinstance(reason, str) else None)
            return True
        if notice["event"] != "wanted" or notice["waiters"] == self.waiters:
            return False
        self.waiters = notice["waiters"]
        self._wanted()
        return True


class Group:
    """Locks that one request names. Its members are used under the guard of `Groups`."""

    def __init__(self) -> None:
        self.heard: dict[Key, Heard] = {}
        #: Those of the latest request.
        self.named: dict[Key, Heard] = {}
        #: Somebody asks for it.
        self.is_running = False
        #: The request under way lacks a lock.
        self.is_stale = False
        #: Ends the request under way.
        self.interrupt: Callable[[], object] = lambda: None


class Groups:
    """The state of one client in one process, or on one event loop."""

    def __init__(self, endpoints: Endpoints) -> None:
        # A signal's handler may acquire a lock while this very thread is in here.
        self._guard = threading.RLock()
        self._main = endpoints
        self._groups: list[Group] = []
        self._fresh: list[Heard] = []
        self._is_due = False
        self._is_closed = False
        # The server does not know the request: until something is known to have changed there.
        self._unknown_at: Optional[int] = None

    def adds(self, heard: list[Heard]) -> bool:
        """Whether `due` is to be called, in `AFTER_NS`."""
        with self._guard:
            if self._is_closed:
                return False
            self._fresh += heard
            was_due, self._is_due = self._is_due, True
            return not was_due

    def renewed(self) -> bool:
        """As `adds`: a server that did not know the request may be another one by now."""
        return self._unknown_at is not None and not self._is_unknown() and self.adds([])

    def _is_unknown(self) -> bool:
        return self._unknown_at == self._main.breaks

    def due(self) -> list[Group]:
        """Enters what is new, and ends requests that lack it. Returns groups that somebody has to ask for now."""
        with self._guard:
            fresh, self._fresh, self._is_due = self._fresh, [], False
        # Not under the guard: it may announce a loss.
        fresh = [heard for heard in fresh if heard.is_held]
        for group in self._groups:
            if not group.is_running:
                self._forget_ended(group)
        with self._guard:
            for heard in fresh:
                self._enter(heard)
            if self._is_closed or self._is_unknown():
                return []
            self._unknown_at = None
            starts = [group for group in self._groups if group.heard and not group.is_running]
            stale = [group for group in self._groups if group.is_running and group.heard.keys() - group.named.keys()]
            for group in starts:
                group.is_running = True
            for group in stale:
                group.is_stale = True
        for group in stale:
            group.interrupt()
        return starts

    def _enter(self, heard: Heard) -> None:
        group = next((group for group in self._groups if len(group.heard) < MAX_GRANTS), None)
        if group is None:
            self._groups.append(group := Group())
        group.heard[heard.key] = heard

    def asks(self, group: Group) -> bool:
        """Chooses the locks of the next request. False: there is nothing to ask, and nobody asks from now on."""
        self._forget_ended(group)
        with self._guard:
            group.is_stale = False
            group.named = dict(group.heard)
            group.is_running = bool(group.heard) and not self._is_closed
            return group.is_running

    def _forget_ended(self, group: Group) -> None:
        over = [key for key, heard in list(group.heard.items()) if not heard.is_held]
        with self._guard:
            for key in over:
                group.heard.pop(key, None)

    def rests(self, group: Group) -> None:
        """Nobody asks for it from now on."""
        with self._guard:
            group.is_running = False

    def unknown(self, group: Group) -> None:
        with self._guard:
            self._unknown_at = self._main.breaks
            group.is_running = False

    def close(self) -> list[Group]:
        """Returns the groups that somebody asks for: their requests end."""
        with self._guard:
            self._is_closed, self._fresh = True, []
            running = [group for group in self._groups if group.is_running]
        for group in running:
            group.interrupt()
        return running


def listen(groups: Groups, group: Group) -> Steps[None]:
    """Asks until there is nothing to ask for."""
    pace = _Pace()
    while groups.asks(group):
        named = group.named
        body = {"grants": [heard.named() for heard in named.values()], "wait_ms": pace.wait_ms}
        timeout = pace.wait_ms * MILLISECOND + _SLACK_NS
        began = now_ns()
        outcome = yield Send("POST", "/v1/listen", body, timeout, partial(_check, named))
        if isinstance(outcome, Reply) and outcome.status == 404:
            groups.unknown(group)
            return
        pause = pace.after(outcome, _takes(outcome, named), now_ns() - began, group.is_stale)
        if pause:
            yield Pause(now_ns() + pause)


def _check(named: dict[Key, Heard], reply: Reply) -> None:
    """Raises `Malformed` for an answer that is not that of a request about these."""
    if reply.status != 200:
        return
    notices = reply.value.get("notices")
    if not isinstance(notices, list):
        raise Malformed(f"notices is {type(notices).__name__}")
    for notice in notices:
        if not isinstance(notice, dict):
            raise Malformed(f"a notice is {notice!r}")
        if (text(notice, "resource_id"), integer(notice, "fencing_token")) not in named:
            raise Malformed("a notice is about another grant")
        if text(notice, "event") == "ended":
            text(notice, "how")
        elif notice["event"] == "wanted":
            integer(notice, "waiters")


def _takes(outcome: Outcome, named: dict[Key, Heard]) -> Optional[bool]:
    """Whether the answer had news; None if it had no notices at all, or is none."""
    if not isinstance(outcome, Reply) or outcome.status != 200 or not outcome.value["notices"]:
        return None
    has_news = False
    for notice in outcome.value["notices"]:
        has_news = named[notice["resource_id"], notice["fencing_token"]].takes(notice) or has_news
    return has_news


class _Pace:
    """How soon it asks again, and how long the server may wait. A server, or a proxy, that answers at once whatever is
    asked gets few requests, and one that ends long requests gets shorter ones."""

    def __init__(self) -> None:
        self.wait_ms = WAIT_MS
        self._backoff_ns = _FIRST_BACKOFF_NS

    def after(self, outcome: Outcome, has_news: Optional[bool], took_ns: int, was_interrupted: bool) -> int:
        """The pause in nanoseconds."""
        is_answer = isinstance(outcome, Reply) and outcome.status == 200
        if was_interrupted and (has_news or not is_answer):
            return 0
        if has_news:
            self._backoff_ns = _FIRST_BACKOFF_NS
            return random.randint(*_PAUSE_NS)
        if is_answer and has_news is None and took_ns >= SECOND:
            self._backoff_ns = _FIRST_BACKOFF_NS
            self.wait_ms = min(self.wait_ms + 1_000, WAIT_MS)
            return 0
        if not is_answer and took_ns >= SECOND:
            self.wait_ms = max(self.wait_ms // 2, _LEAST_WAIT_MS)
        longest, self._backoff_ns = self._backoff_ns, min(2 * self._backoff_ns, _LONGEST_BACKOFF_NS)
        return random.randint(longest // 2, longest)
