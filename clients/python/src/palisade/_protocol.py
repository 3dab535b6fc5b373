"""The protocol without I/O: every operation is a generator of steps, which the sync and the async client carry out.

    step = operation.send(reply)      Send: one attempt of a request → Reply, or Fault
                                      Pause: until an instant → None

This implements docs/reference/protocol.md of the repository.
"""

from __future__ import annotations

import contextlib
import json
import urllib.parse
import uuid
from dataclasses import dataclass, field
from typing import Any, Callable, Generator, Literal, Optional, Protocol, TypeVar, Union

from ._cancel import Cancel
from ._clock import MILLISECOND, now_ns
from ._hold import Hold
from ._model import Malformed, holder, integer, slots, text, token
from .errors import (
    Invalid,
    LeaseLost,
    LockHeld,
    NotAcquired,
    OperatorNeeded,
    PalisadeError,
    Unavailable,
    UnknownOutcome,
)


@dataclass(frozen=True)
class Send:
    """One attempt of one request, which ends by `timeout_ns` after now."""

    method: str
    path: str
    body: Optional[dict[str, Any]]
    timeout_ns: int
    #: Raises `Malformed` for an answer that cannot belong to this request.
    check: Callable[[Reply], object] = lambda reply: None
    #: Replaces this request at an address that did not give the last answer.
    probe: Optional[Send] = None
    #: Ends the attempt early, from another thread.
    cancel: Optional[Cancel] = None


@dataclass(frozen=True)
class Pause:
    """Until an instant of the holder's clock."""

    until_ns: int


@dataclass(frozen=True)
class Reply:
    """An answer: its status and, if it was a JSON object, the object."""

    status: int
    value: dict[str, Any]


class Fault(Exception):
    """No answer. `unknown`: the request may have happened. `silent`: the time of the attempt ended, and a shorter one
    after it has less to say."""

    def __init__(self, why: str, unknown: bool, silent: bool = False) -> None:
        super().__init__(why)
        self.unknown, self.silent = unknown, silent


Outcome = Union[Reply, Fault, None]
Result = TypeVar("Result")
Steps = Generator[Union[Send, Pause], Outcome, Result]
#: "update" is the one reader that may become the writer, by "upgrade".
Mode = Literal["exclusive", "shared", "update", "upgrade"]

GONE = frozenset({"expired", "revoked", "superseded", "not_held", "stale"})
_NOTHING_HAPPENED = frozenset({"unavailable", "request_timeout", "not_leader"})
# An attempt with less time than this would only turn "nothing happened" into "unknown".
LEAST_TIME = 50 * MILLISECOND
# How often a waiting request is heard from, and at an address that did not answer last.
_POLL_MS, _PROBE_POLL_MS = 10_000, 1_000
_SHORTEST_PAUSE, _FIRST_PAUSE, _LONGEST_PAUSE = 20 * MILLISECOND, 10 * MILLISECOND, 500 * MILLISECOND


def lock_path(name: str, verb: str = "") -> str:
    """The path of a lock. Libraries tidy "." and ".." away however they are written, so these are refused."""
    if (
        not isinstance(name, str)
        or not 1 <= len(name) <= 255
        or not all(" " <= letter <= "~" for letter in name)
        or name in (".", "..")
    ):
        raise Invalid(
            "invalid", f"{name!r} is not the name of a lock: 1 to 255 printable ASCII characters, not . or .."
        )
    return f"/v1/locks/{urllib.parse.quote(name, safe='')}" + (f"/{verb}" if verb else "")


def same(value: dict[str, Any], name: str, asked: object) -> None:
    """An answer that names something else than the request belongs to another request."""
    found = value.get(name)
    if found != asked or type(found) is not type(asked):
        raise Malformed(f"{name} is {found!r}, and {asked!r} was asked for")


def read_reply(status: int, body: bytes) -> Reply:
    """Reads an answer. If it is not a JSON object with a status that the server sends, the outcome is unknown."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not (status in (200, 202) or 400 <= status < 600):
        raise Fault(f"the answer (status {status}) is not one of a Palisade server", unknown=True)
    reply = Reply(status, value)
    if status >= 400:
        try:
            error_of(reply)
        except Malformed as malformed:
            raise Fault(f"a broken answer: {malformed}", unknown=True) from None
    return reply


def problem(reply: Reply) -> dict[str, Any]:
    found = reply.value.get("error")
    return found if isinstance(found, dict) else {}


def code_of(reply: Reply) -> str:
    code = problem(reply).get("code")
    return code if isinstance(code, str) else ("internal" if reply.status >= 500 else "invalid")


def fault_of(outcome: Outcome) -> Optional[Fault]:
    """Why an attempt is to be repeated, if it is."""
    if isinstance(outcome, Fault):
        return outcome
    assert isinstance(outcome, Reply)
    if outcome.status in (200, 202):
        return None
    code, message = code_of(outcome), str(problem(outcome).get("message", outcome.status))
    if code in _NOTHING_HAPPENED:
        return Fault(message, unknown=False)
    known_ends = ("tokens_exhausted", "storage_full")
    if code in ("unknown_outcome", "internal") or (outcome.status >= 500 and code not in known_ends):
        return Fault(message, unknown=True)
    return None


def error_of(reply: Reply) -> PalisadeError:
    """The error for an answer that is not to be repeated. Raises `Malformed`, not for what `read_reply` returns."""
    told, code = problem(reply), code_of(reply)
    message = str(told.get("message", code))
    if code in ("held", "delayed"):
        after = integer(told, "retry_after_ms") / 1_000 if "retry_after_ms" in told else None
        return LockHeld(code, message, holder(reply.value.get("holder")), after)
    if code in ("queue_full", "too_many_locks", "over_quota", "abandoned") or code in GONE:
        return NotAcquired(code, message)
    if code == "tokens_exhausted":
        return OperatorNeeded(code, message)
    return Invalid(code, message)


class Backoff:
    """Pauses between attempts, doubling from 10 ms to half a second."""

    def __init__(self, until_ns: int) -> None:
        self._until, self._next = until_ns, _FIRST_PAUSE
        self._worst: Optional[Fault] = None

    def after(self, fault: Fault) -> Pause:
        """The pause after a failed attempt. If no time is left, raises the worst fault so far: unknown if any of the
        attempts may have happened, and of those the last one that was more than silence."""
        worst = self._worst
        if worst is None or fault.unknown > worst.unknown or (fault.unknown == worst.unknown and not fault.silent):
            worst = self._worst = fault
        end = now_ns() + self._next
        if end + LEAST_TIME >= self._until:
            kind, code = (UnknownOutcome, "unknown_outcome") if worst.unknown else (Unavailable, "unavailable")
            raise kind(code, str(worst))
        self._next = min(2 * self._next, _LONGEST_PAUSE)
        return Pause(end)


def attempt_ns(left_ns: int, asked_ns: int, patience_ns: int) -> int:
    """How long one attempt may take that asks the server to wait `asked_ns`, so that there is time for the next one at
    another address."""
    return max(asked_ns + min(patience_ns, left_ns - asked_ns) // 2, LEAST_TIME)


def repeated(
    method: str,
    path: str,
    body: Optional[dict[str, Any]],
    until_ns: int,
    check: Callable[[Reply], object] = lambda reply: None,
) -> Steps[Reply]:
    """A request that may be repeated as it is, until there is an answer. No attempt takes more than half of the time
    that is left: the next one has another connection."""
    backoff = Backoff(until_ns)
    while True:
        left = until_ns - now_ns()
        outcome = yield Send(method, path, body, attempt_ns(left, 0, left), check)
        fault = fault_of(outcome)
        if fault is None:
            assert isinstance(outcome, Reply)
            return outcome
        yield backoff.after(fault)


def asked(
    method: str,
    path: str,
    body: Optional[dict[str, Any]],
    until_ns: int,
    read: Callable[[dict[str, Any]], Result],
    lock: Optional[str] = None,
) -> Steps[Result]:
    """A request whose only good answer is 200, and its answer as `read` reads it, which raises `Malformed`. `lock`: the
    one that the answer is about."""

    def check(reply: Reply) -> None:
        if reply.status == 200:
            if lock is not None:
                same(reply.value, "resource_id", lock)
            read(reply.value)

    reply = yield from repeated(method, path, body, until_ns, check)
    if reply.status != 200:
        raise error_of(reply)
    return read(reply.value)


@dataclass
class Wish:
    """The user's request for a lock, or for several at once, with its outcome."""

    #: Sorted.
    locks: tuple[str, ...]
    client_id: str
    ttl_ms: int
    wait_ms: int
    metadata: Optional[str]
    patience_ns: int
    mode: Mode = "exclusive"
    #: So many permits of a semaphore that has so many.
    permits: Optional[tuple[int, int]] = None
    #: The fields of the options of the grant.
    options: dict[str, int] = field(default_factory=dict)
    #: Under a lease that the client has already, and the authority that granted it.
    lease_key: Optional[str] = field(default=None, repr=False)
    authority: Optional[str] = None
    #: Of an upgrade: the grant that it takes the place of.
    reader: Optional[Reader] = None
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    #: An attempt is under way, or ended without certainty.
    may_have_happened: bool = False
    last_sent_ns: int = 0

    @property
    def lock(self) -> str:
        """Names the request in paths and messages."""
        return self.locks[0]

    @property
    def shared(self) -> bool:
        """Beside other readers."""
        return self.mode in ("shared", "update")

    def body(self, wait_ms: int, poll_ms: int = 0) -> dict[str, Any]:
        body: dict[str, Any] = {"client_id": self.client_id, "wait_ms": wait_ms, "request_id": self.request_id}
        if poll_ms and wait_ms > poll_ms:
            body["poll_ms"] = poll_ms
        if len(self.locks) > 1:
            body["also"] = list(self.locks[1:])
        if self.lease_key is None:
            body["lease_duration_ms"] = self.ttl_ms
        else:
            body["lock_token"] = self.lease_key
        if self.mode != "exclusive":
            body["mode"] = self.mode
        if self.permits is not None:
            count, of = self.permits
            body["permits"] = {"count": count, "of": of}
        body.update(self.options)
        if self.metadata:
            body["metadata"] = self.metadata
        return body

    def compare(self, reply: Reply) -> None:
        """Raises `Malformed` for an answer that is not that of this request."""
        if reply.status not in (200, 202):
            if "resource_id" in reply.value:
                same(reply.value, "resource_id", self.lock)
            return
        same(reply.value, "resource_id", self.lock)
        same(reply.value, "lock_acquired", reply.status == 200)
        if reply.status == 202:
            same(reply.value, "waiting", True)
            return
        if self.lease_key is not None:
            if reply.value.get("lock_token") != self.lease_key:
                raise Malformed("lock_token is that of another lease")
            same(reply.value, "authority", self.authority)
        _granted(0, 0, reply.value, self)

    def compare_abandoned(self, reply: Reply) -> None:
        if reply.status == 200:
            same(reply.value, "request_id", self.request_id)

    def as_reader(self, writer: GrantRef) -> Wish:
        """The request that makes the writer a reader."""
        kept = self.locks, self.client_id, self.ttl_ms, 0, self.metadata, self.patience_ns
        return Wish(*kept, mode="shared", lease_key=writer.lease_key, authority=writer.authority)

    def as_writer(self, reader: Reader, wait_ms: int) -> Wish:
        """The request that makes the reader in mode update the writer."""
        kept = self.locks, self.client_id, self.ttl_ms, wait_ms, self.metadata, self.patience_ns
        ref = reader.ref
        return Wish(*kept, mode="upgrade", lease_key=ref.lease_key, authority=ref.authority, reader=reader)


@dataclass(frozen=True)
class Granted:
    """A grant, with the clock's reading from before the request that it answers."""

    t0_ns: int
    token: int
    #: Names the grant: the token, or a reader's grant id.
    number: int
    lease_key: str = field(repr=False)
    authority: str
    valid_for_ms: int
    waited_ms: int
    acquired_at: str
    slots: tuple[int, ...] = ()


def acquire(wish: Wish) -> Steps[Granted]:
    """One request id until the outcome is known. A caller that leaves early must `abandon` the wish."""
    first = now_ns()
    wait_until = first + wish.wait_ms * MILLISECOND
    give_up = wait_until + wish.patience_ns
    backoff = Backoff(give_up)
    path = lock_path(wish.lock, "acquire")
    waits = False
    while True:
        if wish.reader is not None:
            wish.reader.check()
        uncertain = wish.may_have_happened
        t0 = now_ns()
        wish.may_have_happened, wish.last_sent_ns = True, t0
        left_ms = max(0, -(-(wait_until - t0) // MILLISECOND))
        if waits:
            # At its end the server says who has the lock.
            left_ms = max(left_ms, 1)

        def attempt(poll_ms: int, probe: Optional[Send] = None, t0: int = t0, left_ms: int = left_ms) -> Send:
            asked_ns = min(left_ms, poll_ms) * MILLISECOND
            timeout = attempt_ns(give_up - t0, asked_ns, wish.patience_ns)

            return Send("POST", path, wish.body(left_ms, poll_ms), timeout, wish.compare, probe)

        outcome = yield attempt(_POLL_MS, attempt(_PROBE_POLL_MS))
        fault = fault_of(outcome)
        if isinstance(outcome, Reply) and fault is None:
            if outcome.status == 202:
                waits = True
                continue
            if outcome.status != 200:
                wish.may_have_happened = False
                if wish.reader is not None and code_of(outcome) in GONE:
                    wish.reader.hold.end(code_of(outcome))
                    wish.reader.check()
                raise error_of(outcome)
            granted = _granted(t0, first, outcome.value, wish)
            if wish.reader is not None:
                wish.reader.make_way()
            wish.may_have_happened = False
            return granted
        assert fault is not None
        if not fault.unknown:
            wish.may_have_happened = uncertain
        yield backoff.after(fault)


def _granted(t0: int, first: int, value: dict[str, Any], wish: Wish) -> Granted:
    """The grant in an answer. Its caller has waited since its first attempt."""
    granted = slots(value)
    if len(granted) != (wish.permits[0] if wish.permits else 0):
        raise Malformed(f"slots is {granted!r}")
    return Granted(
        t0_ns=t0,
        token=token(value),
        number=token(value, "grant_id" if wish.shared else "fencing_token"),
        lease_key=text(value, "lock_token"),
        authority=text(value, "authority"),
        valid_for_ms=integer(value, "valid_for_ms"),
        waited_ms=integer(value, "waited_ms") + (t0 - first) // MILLISECOND,
        acquired_at=str(value.get("acquired_at", "")),
        slots=granted,
    )


def abandon(wish: Wish) -> Steps[None]:
    """Until the server has acknowledged it, or must have forgotten the grant by itself.

    An upgrade may have been granted, and abandoning it would free the lock while the reader still believes. So as long
    as the reader holds, the same request is tried once more: a denial settles it, and the reader goes on."""
    until = wish.last_sent_ns + (wish.wait_ms + 2 * wish.ttl_ms) * MILLISECOND
    backoff = Backoff(until)
    reader = wish.reader
    while True:
        # A connection on which no answer comes is replaced.
        timeout = min(until - now_ns(), 2_000 * MILLISECOND)
        settles = reader is not None and reader.hold.holds()
        if settles:
            # Without a wait it takes an attempt that still waits at the server out of the queue.
            send = Send("POST", lock_path(wish.lock, "acquire"), wish.body(0), timeout, wish.compare)
        else:
            send = Send("POST", f"/v1/requests/{wish.request_id}/abandon", {}, timeout, wish.compare_abandoned)
        outcome = yield send
        fault = fault_of(outcome)
        if fault is not None:
            yield backoff.after(fault)
            continue
        assert isinstance(outcome, Reply)
        if reader is None or not settles:
            return
        if outcome.status == 200:
            reader.hold.end("superseded")
        elif code_of(outcome) in GONE:
            reader.hold.end(code_of(outcome))
        else:
            return


class GrantRef:
    """A grant's name in requests, and its locks that are still held. Readers have one token, so `number` is the grant
    id of one of them."""

    def __init__(self, wish: Wish, granted: Granted) -> None:
        self.locks = wish.locks
        self.token, self.number, self.authority = granted.token, granted.number, granted.authority
        self._lease_key = granted.lease_key
        #: The locks that renewals extend.
        self.held = list(wish.locks)
        #: The locks whose release the server has not acknowledged.
        self.unreleased = list(wish.locks)
        #: The lock that the server said is over.
        self.over: Optional[str] = None

    @property
    def lock(self) -> str:
        return self.over or self.locks[0]

    @property
    def lease_key(self) -> str:
        return self._lease_key

    def body(self) -> dict[str, Any]:
        return {"lock_token": self._lease_key, "fencing_token": self.number}

    def check(self, lock: str, is_renewal: bool) -> Callable[[Reply], None]:
        """Compares the answer to a renewal, or to a release, with this grant. A renewal of a reader names the token of
        its phase."""

        def check(reply: Reply) -> None:
            if reply.status != 200:
                if "fencing_token" in problem(reply):
                    same(problem(reply), "fencing_token", self.number)
                return
            same(reply.value, "resource_id", lock)
            same(reply.value, "fencing_token", self.token if is_renewal else self.number)
            same(reply.value, "authority", self.authority)
            same(reply.value, "released", None if is_renewal else True)
            same(reply.value, "lock_acquired", None)
            if is_renewal:
                integer(reply.value, "valid_for_ms")
                _waiters(reply)

        return check

    def checked(self, name: str) -> str:
        if name not in self.locks:
            raise Invalid("invalid", f"{name!r} is not a lock of this grant: it has {', '.join(map(repr, self.locks))}")
        return name


@dataclass
class Reader:
    """A grant in mode update, whose upgrade is under way."""

    ref: GrantRef
    hold: Hold

    def check(self) -> None:
        if not self.hold.holds():
            raise lost(self.hold, self.ref)

    def make_way(self) -> None:
        """The upgrade is granted: the reader's grant is over. A grant that was lost meanwhile has no successor."""
        self.check()
        if not self.hold.end("released"):
            raise lost(self.hold, self.ref)


def release(grant: GrantRef, until_ns: int, part: Optional[str] = None) -> Steps[str]:
    """Releases a part, or all that is left. Returns "released", "already_released", or "over" if any had ended
    otherwise."""
    ends = ["already_released", "released", "over"]
    worst = 0
    for lock in list(grant.unreleased) if part is None else [part]:
        check = grant.check(lock, is_renewal=False)
        reply = yield from repeated("POST", lock_path(lock, "release"), grant.body(), until_ns, check)
        if reply.status == 200:
            _remove(grant.unreleased, lock)
            worst = max(worst, 0 if reply.value.get("already_released") else 1)
        elif code_of(reply) in GONE:
            worst = 2
        else:
            raise error_of(reply)
    return ends[worst]


def _remove(locks: list[str], lock: str) -> None:
    with contextlib.suppress(ValueError):  # another thread did it
        locks.remove(lock)


def give_up_part(grant: GrantRef, hold: Hold, part: str) -> Optional[str]:
    """Records that a part is not held from now on. Returns the part to release, or None to release the whole lease."""
    _remove(grant.held, grant.checked(part))
    if grant.held:
        return part
    hold.end("released")
    return None


class Renewals(Protocol):
    """Hears how they go."""

    def deadline(self, t0_ns: int, valid_for_ms: int) -> int:
        """Less the margin."""

    def failed(self) -> None: ...

    def acknowledged(self, waiters: Optional[int]) -> None:
        """So many requests wait; None: the server did not say it."""


def _waiters(reply: Reply) -> Optional[int]:
    return integer(reply.value, "waiters") if "waiters" in reply.value else None


def keep(grant: GrantRef, hold: Hold, renewals: Renewals) -> Steps[None]:
    """Renews at a third of the remaining time, until the hold is over."""
    deadlines = dict.fromkeys(grant.locks, hold.deadline)
    longest = 1 << 62
    while True:
        now = now_ns()
        pause = min(max((hold.deadline - now) // 3, _SHORTEST_PAUSE), longest)
        yield Pause(min(now + pause, hold.deadline))
        if not hold.holds():
            return
        acknowledged = yield from _renew(grant, hold, deadlines, renewals)
        longest = 1 << 62 if acknowledged else _LONGEST_PAUSE


def _renew(grant: GrantRef, hold: Hold, deadlines: dict[str, int], renewals: Renewals) -> Steps[bool]:
    """Renews each lock that is held, because the server looks at the named one only; first the one that was
    acknowledged longest ago. The earliest of their deadlines counts. Tells whether all were acknowledged."""
    waiters: Optional[int] = None
    for lock in sorted(grant.held, key=deadlines.__getitem__):
        if not hold.holds():
            return False
        t0 = now_ns()
        timeout = max((hold.deadline - t0) // 3, _SHORTEST_PAUSE)
        check = grant.check(lock, is_renewal=True)
        outcome = yield Send("POST", lock_path(lock, "renew"), grant.body(), timeout, check)
        if fault_of(outcome) is not None:
            renewals.failed()
            return False
        assert isinstance(outcome, Reply)
        if outcome.status == 200:
            deadlines[lock] = renewals.deadline(t0, integer(outcome.value, "valid_for_ms"))
            hold.renewed(min(deadlines[each] for each in [lock, *grant.held]))
            waiters = _waiters(outcome)
        elif code_of(outcome) not in GONE:
            renewals.failed()
            return False
        elif hold.expects(code_of(outcome)) or ended(grant, hold, lock, code_of(outcome)):
            return False
    renewals.acknowledged(waiters)
    return True


def ended(grant: GrantRef, hold: Hold, lock: str, code: str, reason: Optional[str] = None) -> bool:
    """The server said that a lock is over. False: it was released here meanwhile."""
    if lock not in grant.held:
        return False
    grant.over = lock
    hold.end(code, reason)
    return True


def sequencer(grant: GrantRef, hold: Hold, lock: str, until_ns: int) -> Steps[str]:
    """The signed form of the token. The server renews the lease for it, but its answer has no new deadline, so the old
    one stays."""

    def check(reply: Reply) -> None:
        if reply.status == 200:
            same(reply.value, "resource_id", lock)
            same(reply.value, "fencing_token", grant.token)
            text(reply.value, "sequencer")

    reply = yield from repeated("POST", lock_path(lock, "sequencer"), grant.body(), until_ns, check)
    if code_of(reply) in GONE and ended(grant, hold, lock, code_of(reply)):
        raise lost(hold, grant)
    if reply.status != 200:
        raise error_of(reply)
    return text(reply.value, "sequencer")


def lost(hold: Hold, grant: GrantRef) -> LeaseLost:
    """Why a holder may not act."""
    code = hold.over or "expired"
    return LeaseLost("not_held" if code == "released" else code, grant.lock, grant.token, hold.reason)
