"""What a lock server decides, in memory: the rules of docs/promise/rules.md that a client can see. No I/O here."""

from __future__ import annotations

import contextlib
import datetime
import secrets
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Optional

from .._clock import MILLISECOND, SECOND, now_ns
from .._process import Guard

#: The place of a request whose connection broke is kept for so long.
KEPT_FOR = 2 * SECOND
#: So long is a lease that nobody renews.
FOREVER = 1_000 * 86_400 * SECOND
_KEPT_EVENTS = 4096
UP, DOWN, STALLED = "up", "down", "stalled"


def _wall() -> str:
    now = datetime.datetime.now(datetime.UTC)
    return f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03}Z"


@dataclass(eq=False)
class Lease:
    """What is renewed: all its grants live and end together."""

    key: str
    ttl_ns: int
    until_ns: int = 0
    grants: int = 0


@dataclass(eq=False)
class Grant:
    """A lock of one holder. `number` names it; a reader's token is that of its phase."""

    lease: Lease
    lock: Lock
    token: int
    number: int
    client_id: str
    metadata: str
    mode: str
    at_ns: int
    lock_delay_ns: int
    at_least_for_ns: int
    slots: list[int] = field(default_factory=list)
    acquired_at: str = field(default_factory=_wall)

    @property
    def reads(self) -> bool:
        return self.mode != "exclusive"


@dataclass(eq=False)
class Lock:
    """One that nobody knows is free."""

    name: str
    #: In the order of their grants: one, or readers, or holders of permits.
    grants: list[Grant] = field(default_factory=list)
    #: How many permits it has while it is a semaphore that is in use.
    of: int = 0
    closed_until_ns: int = 0
    last: int = 0

    def is_held_by(self, pending: Pending) -> bool:
        """Whether the client that has the lock alone asks again, and takes its own grant over."""
        if len(self.grants) != 1 or pending.mode != "exclusive" or pending.permits is not None:
            return False
        (grant,) = self.grants
        return not grant.reads and not grant.slots and grant.client_id == pending.client_id

    def free(self, of: int) -> list[int]:
        """The slots of a semaphore that nobody has."""
        taken = {slot for grant in self.grants for slot in grant.slots}
        return [slot for slot in range(1, (self.of or of) + 1) if slot not in taken]


@dataclass(eq=False)
class Refusal:
    """An answer that is no 200."""

    status: int
    code: str
    message: str
    holder: Optional[Grant] = None
    wait_ns: int = 0
    highest: int = 0
    token: int = 0


@dataclass(eq=False)
class Pending:
    """A request for locks, and its outcome."""

    #: The first one is that of the path.
    names: list[str]
    client_id: str = ""
    ttl_ns: int = 0
    mode: str = "exclusive"
    metadata: str = ""
    permits: Optional[tuple[int, int]] = None
    lock_delay_ns: int = 0
    at_least_for_ns: int = 0
    request_id: str = ""
    #: Under this lease: the grant that it takes the place of.
    under: Optional[Grant] = None

    #: The latest attempt: when it came, and until when it waits.
    attempt: int = 0
    arrived_ns: int = 0
    until_ns: int = 0
    #: Nobody is connected: until when its place is kept.
    kept_ns: int = 0
    grants: list[Grant] = field(default_factory=list)
    denied: Optional[Refusal] = None

    @property
    def is_over(self) -> bool:
        return bool(self.grants) or self.denied is not None


@dataclass(frozen=True)
class Change:
    revision: int
    kind: str
    lock: str
    data: dict[str, Any]


def invalid(message: str) -> Refusal:
    return Refusal(400, "invalid", message)


def over(code: str, number: int) -> Refusal:
    """The answer about a grant that has ended."""
    how = {"not_held": "was released", "expired": "has expired", "revoked": "was revoked by an operator"}
    message = f"the grant with fencing token {number} {how.get(code, 'was superseded')}"
    return Refusal(409 if code == "not_held" else 410, code, message, token=number)


class Authority:
    """The state. Its methods are called under `guard`, except those of the levers."""

    def __init__(self) -> None:
        self.guard = Guard()
        self.state = UP
        self.name = secrets.token_hex(16)
        self.token = 0
        self.locks: dict[str, Lock] = {}
        self.leases: dict[str, Lease] = {}
        self.requests: dict[str, Pending] = {}
        #: Those that wait, in the order of their arrival.
        self.queue: list[Pending] = []
        #: Why grants are over, by the lease key, the lock and the number.
        self.ended: dict[tuple[str, str, int], str] = {}
        #: Why operators revoked some of them.
        self.reasons: dict[tuple[str, str, int], str] = {}
        self.tokens: dict[str, list[int]] = {}
        #: The latest changes; the last one has the number `revision`.
        self.changes: list[Change] = []
        self.revision = 0
        # How often a queue changed.
        self._queued = 0
        # Those who wait know of the changes up to these.
        self._announced = 0, 0
        self._wakers: dict[object, Callable[[], object]] = {}

    def lock(self, name: str) -> Lock:
        return self.locks.setdefault(name, Lock(name))

    def wakes(self, who: object, waker: Callable[[], object]) -> None:
        """It is called once, when something changes."""
        self._wakers[who] = waker

    def forget(self, who: object) -> None:
        self._wakers.pop(who, None)

    def broadcast(self) -> None:
        wakers, self._wakers = self._wakers, {}
        for waker in wakers.values():
            # The event loop of one who waits may be over.
            with contextlib.suppress(RuntimeError):
                waker()

    def become(self, state: str) -> None:
        with self.guard:
            self.state = state
            self.broadcast()

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        with self.guard:
            self.settle()
            yield
            self.settle()

    def settle(self) -> None:
        """Does what is due: leases expire, places end, and whoever can be granted is granted. It wakes those who wait
        if anything has changed since the last time, and only then: else two of them would wake each other for ever."""
        now = now_ns()
        for name in sorted(self.locks):
            for grant in list(self.locks[name].grants):
                if now >= grant.lease.until_ns:
                    self.end(grant, "expired")
        for pending in list(self.queue):
            if pending.kept_ns and now >= pending.kept_ns:
                self.leave(pending)
                self.requests.pop(pending.request_id, None)
        # A grant that is superseded may free other locks.
        while self._grant_one():
            pass
        for lock in self.locks.values():
            wanted = any(pending.permits and pending.names[0] == lock.name for pending in self.queue)
            if lock.of and not lock.grants and not wanted:
                lock.of = 0
        changes = self.revision, self._queued
        if self._announced != changes:
            self._announced = changes
            self.broadcast()

    def next_ns(self) -> int:
        """Until when nothing happens by itself, at most a second."""
        now = now_ns()
        due = [now + SECOND]
        due += [lease.until_ns for lease in self.leases.values()]
        due += [lock.closed_until_ns for lock in self.locks.values() if lock.closed_until_ns > now]
        due += [pending.kept_ns or pending.until_ns for pending in self.queue]
        return max(min(due), now) + MILLISECOND

    def _grant_one(self) -> bool:
        """Grants the first request that can be granted. Upgrades go ahead of the queue; whoever waits behind another
        one for one of its locks is not granted before it."""
        awaited: set[str] = set()
        for pending in sorted(self.queue, key=lambda each: each.mode != "upgrade"):
            free = not pending.kept_ns
            for name in pending.names:
                lock = self.lock(name)
                behind = name in awaited and pending.under is None and not lock.is_held_by(pending)
                free = free and not behind and self.admits(lock, pending)
            if free:
                self.leave(pending)
                self.grant(pending)
                return True
            awaited.update(pending.names)
        return False

    def admits(self, lock: Lock, pending: Pending) -> bool:
        """Whether the holders, and a time after a grant, leave room for the request."""
        if pending.mode == "upgrade":
            return len(lock.grants) == 1
        if pending.under is not None or lock.is_held_by(pending):
            return True
        if now_ns() < lock.closed_until_ns:
            return False
        if pending.permits is not None:
            return len(lock.free(pending.permits[1])) >= pending.permits[0]
        if not lock.grants:
            return True
        if pending.mode == "exclusive" or lock.of or not lock.grants[0].reads:
            return False
        return pending.mode != "update" or all(grant.mode != "update" for grant in lock.grants)

    def grant(self, pending: Pending) -> None:
        """All locks of a request in one step, under one lease and one token."""
        now = now_ns()
        self.token += 1
        number = token = self.token
        under = pending.under
        lease = Lease(secrets.token_hex(16), pending.ttl_ns) if under is None else under.lease
        lease.until_ns = max(lease.until_ns, now + lease.ttl_ns)
        mode = "exclusive" if pending.mode == "upgrade" else pending.mode
        for name in pending.names:
            lock = self.lock(name)
            if mode != "exclusive" and under is None and lock.grants:
                token = lock.grants[0].token
            if lock.is_held_by(pending):
                self.end(lock.grants[0], "superseded")
            if under is not None:
                self.end(under, "superseded")
            self.leases[lease.key] = lease
            grant = Grant(
                lease=lease,
                lock=lock,
                token=token,
                number=number,
                client_id=pending.client_id,
                metadata=pending.metadata,
                mode=mode,
                at_ns=now,
                lock_delay_ns=pending.lock_delay_ns,
                at_least_for_ns=pending.at_least_for_ns,
            )
            if pending.permits is not None:
                count, of = pending.permits
                grant.slots = lock.free(of)[:count]
                lock.of = lock.of or of
            lease.grants += 1
            lock.grants.append(grant)
            lock.last = token
            pending.grants.append(grant)
            self.tokens.setdefault(name, []).append(token)
            self.tell("granted", grant, lease_duration_ms=lease.ttl_ns // MILLISECOND)

    def end(self, grant: Grant, code: str, reason: str = "") -> None:
        """Records why a grant is over: not_held is a release."""
        lock = grant.lock
        if grant not in lock.grants:
            return
        lock.grants.remove(grant)
        self.ended[grant.lease.key, lock.name, grant.number] = code
        if reason:
            self.reasons[grant.lease.key, lock.name, grant.number] = reason
        grant.lease.grants -= 1
        if grant.lease.grants == 0:
            self.leases.pop(grant.lease.key, None)
        if code != "superseded":
            closed = grant.at_ns + grant.at_least_for_ns if grant.at_least_for_ns else 0
            if code in ("expired", "revoked") and grant.lock_delay_ns:
                closed = max(closed, now_ns() + grant.lock_delay_ns)
            lock.closed_until_ns = max(lock.closed_until_ns, closed)
        self.tell("released" if code == "not_held" else code, grant, **({"reason": reason} if reason else {}))
        # A reader that waited to become the writer has this answer.
        for pending in list(self.queue):
            if pending.under is grant and code != "superseded":
                pending.denied = over(code, grant.number)
                self.leave(pending)

    def enter(self, pending: Pending) -> None:
        self.queue.append(pending)
        self._queued += 1

    def leave(self, pending: Pending) -> None:
        if pending in self.queue:
            self.queue.remove(pending)
            self._queued += 1

    def waiting(self, name: str) -> int:
        """How many requests wait for a lock."""
        return sum(pending.names.count(name) for pending in self.queue)

    def tell(self, kind: str, grant: Grant, **more: Any) -> None:
        self.revision += 1
        name = grant.lock.name
        data = {"revision": self.revision, "time": _wall(), "resource_id": name, "client_id": grant.client_id}
        data |= {"fencing_token": grant.token, **({"grant_id": grant.number} if grant.reads else {}), **more}
        self.changes.append(Change(self.revision, kind, name, data))
        del self.changes[:-_KEPT_EVENTS]

    def denial(self, pending: Pending) -> Refusal:
        """Why a request is not granted now."""
        now = now_ns()
        for name in pending.names:
            lock = self.lock(name)
            for grant in lock.grants:
                if grant is not pending.under:
                    left = grant.lease.until_ns - now
                    message = (
                        f"held by {grant.client_id!r} with fencing token {grant.token} for another "
                        f"{left / SECOND:.0f} s unless renewed"
                    )
                    return Refusal(409, "held", message, holder=grant, wait_ns=left)
            left = lock.closed_until_ns - now
            if left > 0:
                message = f"closed for another {left / SECOND:.0f} s by its last grant"
                return Refusal(409, "delayed", message, wait_ns=left, highest=lock.last)
        return Refusal(409, "held", "another request waits, and comes first")

    def find(self, name: str, key: object, number: object) -> Grant | Refusal:
        """The grant that a request names."""
        held = [grant for grant in self.lock(name).grants if grant.lease.key == key]
        for grant in held:
            if number is None or grant.number == number:
                return grant
        code = self.ended.get((str(key), name, number)) if isinstance(number, int) else None
        if code is not None and isinstance(number, int):
            return over(code, number)
        if held:
            return Refusal(412, "stale", "the lock is held with another token", highest=held[-1].number)
        return Refusal(409, "not_held", "there is no such grant of this lock")
