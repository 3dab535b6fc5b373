"""The part of a grant that threads and asyncio share: everything except waiting."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Protocol

from . import _election, _handed
from . import _protocol as protocol
from ._clock import SECOND, now_ns
from ._hold import Hold
from ._listen import Heard
from ._model import Duration, slot_key
from ._notices import Callback, Listener, Notices
from ._process import OfOneProcess
from ._reports import Report, Reports
from ._requests import Requests
from .errors import Invalid, LeaseLost
from .fences.rule import Pass, granted_by

log = logging.getLogger("palisade")


class Listens(Protocol):
    """As `_listening` has it for either kind of client."""

    def renewed(self) -> None: ...


class Keeper(Protocol):
    """The client's methods that a grant needs, for either kind of client."""

    _requests: Requests
    _reports: Reports

    @property
    def _listening(self) -> Listens: ...

    def _in_background(self, steps: protocol.Steps[Any], what: str) -> None: ...


@dataclass(frozen=True)
class Part(Pass):
    """The proof for the fence of one of several locks. Like a grant, it is refused once its lock is no longer held."""

    check: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)
    left: Callable[[], Optional[float]] = field(default=lambda: None, compare=False, repr=False)

    @property
    def remaining(self) -> Optional[float]:
        """As that of the grant."""
        return self.left()


class BaseGrant(OfOneProcess):
    """The state of a grant."""

    def __init__(self, keeper: Keeper, wish: protocol.Wish, granted: protocol.Granted) -> None:
        self._keeper, self._wish, self._granted = keeper, wish, granted
        self._ref = protocol.GrantRef(wish, granted)
        deadline = keeper._requests.deadline(granted.t0_ns, granted.valid_for_ms)
        if wish.reader is not None:
            # The same lease, which was renewed while the upgrade waited.
            deadline = max(deadline, wish.reader.hold.deadline)
        self._hold = Hold(deadline, self._announce)
        self._notices = Notices(self._hold, self._run)
        self._heard = [Heard(self._ref, self._hold, lock, self._wanted) for lock in self.locks]

    @property
    def token(self) -> int:
        """The fencing token. It never changes, and stays readable after a loss."""
        return self._ref.token

    @property
    def grant_id(self) -> int:
        """The number that names the grant, as in `break_lock`: the token, or a reader's own number. Not for fences."""
        return self._ref.number

    @property
    def shared(self) -> bool:
        """Whether it is a reader's, also in mode update."""
        return self._wish.shared

    @property
    def update(self) -> bool:
        """Whether it is the reader that may become the writer, by `upgrade`."""
        return self._wish.mode == "update"

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots of a semaphore that it has, rising; none for another kind of lock."""
        return self._granted.slots

    @property
    def slot_keys(self) -> tuple[str, ...]:
        """The resource ids of its slots: claim each at its fence, with the token. A slot's next holder fences this one
        there, and no other holder of the semaphore."""
        return tuple(slot_key(self._ref.lock, slot) for slot in self.slots)

    @property
    def lock(self) -> str:
        """The name of the lock; of several locks there is none: "" (see `locks`)."""
        return self.locks[0] if len(self.locks) == 1 else ""

    @property
    def locks(self) -> tuple[str, ...]:
        """The names of all locks that were granted, sorted."""
        return self._ref.locks

    def part(self, name: str) -> Pass:
        """The proof for the fence of one of several locks: the token, with that lock's name. Raises `LeaseLost` for a
        lock that is no longer held; a fence that gets the part later does the same."""
        self._ref.checked(name)

        def check() -> None:
            self.check()
            if name not in self._ref.held:
                raise LeaseLost("not_held", name, self.token)

        check()
        return granted_by(Part(self.token, self.authority, name, check, lambda: self.remaining), self)

    @property
    def authority(self) -> str:
        """The server that granted it: tokens of two authorities are never compared."""
        return self._granted.authority

    @property
    def client_id(self) -> str:
        """The id under which others see the holder."""
        return self._wish.client_id

    @property
    def waited(self) -> float:
        """How long the request stood in the queue, in seconds."""
        return self._granted.waited_ms / 1_000

    @property
    def held(self) -> bool:
        """Whether the holder may still act, by its own clock, at this moment."""
        return self._hold.holds()

    @property
    def remaining(self) -> float:
        """How long the holder may still act if no further renewal is acknowledged, in seconds."""
        return self._hold.remaining_ns() / SECOND

    def check(self) -> None:
        """Raises `LeaseLost` unless the holder may still act. No round trip, and no waiting."""
        if not self._hold.holds():
            raise protocol.lost(self._hold, self._ref)

    def listen(self, callback: Callback) -> None:
        """Calls `callback` with each `Notice` about this lease: `suspended` (a renewal failed), `restored`, `wanted`
        (others wait for the lock), `unwanted`, `lost`. If the lease is suspended, wanted or lost already, it is told so
        at once. Nothing follows a loss, a release or `export`.

        One call at a time, on a thread of its own; of `AsyncClient` on the event loop, where it may be a coroutine
        function. While it runs, no renewal waits for it, and of what changes meanwhile it is told the latest state. Its
        exceptions are logged."""
        if not callable(callback):
            raise Invalid("invalid", f"callback is {callback!r}: a function that takes a Notice is needed")
        self._notices.listen(callback)

    def wanted(self) -> int:
        """How many requests wait for the lock, as far as this client knows; 0 once it is not held."""
        return self._notices.waiters if self._hold.holds() else 0

    def export(self) -> str:
        """Hands the lease over: the text returned is for `adopt` of a client in another process, or on another machine.
        From the call on it is not held here: it is not renewed, `check` and `release` raise `LeaseLost` with the code
        `handed_over`, and the end of the block sends nothing. It is no loss, so `lost` is not set.

        The text contains the lease key, which allows to renew and to release: treat it as a secret. Give it to one
        adopter: two could not tell that both hold the lease, and the fence takes the token from either. An adopter has
        to be there before the lease expires.

        Raises `LeaseLost` if it is not held, and `Invalid` while an upgrade is under way."""
        if not self._hold.begin_upgrade():
            raise Invalid("invalid", f"an upgrade of {self.lock!r} is under way: hand over the grant that it returns")
        try:
            self.check()
            text = _handed.export(self._wish, self._granted, self._ref, self._hold)
        finally:
            self._hold.end_upgrade()
        self._stop()
        if self._ref.unreleased:
            self._give_back(f"what was given up of {', '.join(map(repr, self.locks))}")
        return text

    def _proclaims(self, value: str) -> protocol.Steps[None]:
        value = _election.checked(value)
        if self.shared or self.slots or len(self.locks) > 1:
            what = "readers, permits and several locks have no value"
            raise Invalid("invalid", f"a leader holds one exclusive lock: {what}")
        self.check()
        until = now_ns() + self._keeper._requests.patience_ns
        return _election.proclaim(self._ref, self._hold, value, until)

    def _refuse_if_handed_over(self) -> None:
        if self._hold.over == "handed_over":
            raise protocol.lost(self._hold, self._ref)

    def _signing(self, name: Optional[str]) -> protocol.Steps[str]:
        if name is None and len(self.locks) > 1:
            raise Invalid("invalid", f"name the lock: one of {', '.join(map(repr, self.locks))}")
        lock = self.locks[0] if name is None else name
        self.part(lock)
        until = now_ns() + self._keeper._requests.patience_ns
        return protocol.sequencer(self._ref, self._hold, lock, until)

    def __repr__(self) -> str:
        state = self._hold.over or f"{self.remaining:.3f} s"
        return f"<{type(self).__name__} {', '.join(map(repr, self.locks))} token={self.token} {state}>"

    def _check_in_time(self) -> None:
        """A grant that arrived after its deadline, because the process was stopped meanwhile, is given back."""
        if not self._hold.holds():
            self._give_back(f"the late grant of {self._wish.lock}")
            raise LeaseLost("expired", self._wish.lock, self.token)

    def _renewal(self) -> protocol.Steps[None]:
        return protocol.keep(self._ref, self._hold, _Renewals(self))

    def _wanted(self) -> None:
        """A listen said how many wait for one of the locks."""
        self._notices.want(sum(heard.waiters for heard in self._heard if heard.lock in self._ref.held))

    def _leave_for_reader(self) -> protocol.Wish:
        """The request that makes this writer a reader. From now on it is not held."""
        self.check()
        if self.slots or len(self.locks) > 1:
            raise Invalid("invalid", "permits of a semaphore, and several locks, have no shared mode")
        self._hold.end("released")
        self._stop()
        return self._wish.as_reader(self._ref)

    def _become_writer(self, wait: Duration) -> protocol.Wish:
        """The request that makes this reader the writer. Until it is granted, this is held and renewed as before."""
        self.check()
        if not self.update:
            raise Invalid(
                "invalid", f"only a reader in mode update can be upgraded: client.lock({self.lock!r}, update=True)"
            )
        wait_ms = self._keeper._requests.wait_ms(wait)
        if not self._hold.begin_upgrade():
            raise Invalid("invalid", f"an upgrade of {self.lock!r} is under way already")
        return self._wish.as_writer(protocol.Reader(self._ref, self._hold), wait_ms)

    def _upgrade_ended(self) -> None:
        self._hold.end_upgrade()
        if self._hold.over:
            self._stop()

    def _give_back(self, what: str) -> None:
        """Releases in the background the locks that the grant no longer holds."""
        self._keeper._in_background(self._keeper._requests.gives_back(self._wish, self._ref), what)

    def _is_lost(self) -> bool:
        """Whether there is nothing to release: the grant is lost or handed over, or another process acquired it."""
        return not self._hold.holds() and self._hold.over != "released"

    @property
    def _grant(self) -> BaseGrant:
        """As a `Pass` of this grant has it."""
        return self

    def _refused(self, lock: Optional[str], resource: str, operation: str, highest: int) -> None:
        """A fence refused the token as stale. `lock`: None if several locks were presented as one."""
        lock = lock or (resource if resource in self.locks else self.locks[0])
        self._keeper._reports.add(Report(lock, self.token, resource, operation, highest))

    def _announce(self) -> None:
        """The lease is lost."""
        self._set_lost()
        self._notices.lose()
        self._stop()
        if self._ref.over and len(self.locks) > 1:
            self._give_back(f"what is left beside {self._ref.over}")
        log.info("%s", protocol.lost(self._hold, self._ref))

    def _warn_unreleased(self, failed: Exception) -> None:
        # It is not held here, and the server will find out by itself.
        log.warning("%s: the release was not acknowledged, the lease will expire: %s", self._ref.lock, failed)

    def _set_lost(self) -> None:
        raise NotImplementedError

    def _stop(self) -> None:
        """Ends the renewal."""
        raise NotImplementedError

    def _run(self, listener: Listener) -> None:
        """Has it told, elsewhere."""
        raise NotImplementedError


class _Renewals:
    """Those of a grant."""

    def __init__(self, grant: BaseGrant) -> None:
        self._grant = grant

    def deadline(self, t0_ns: int, valid_for_ms: int) -> int:
        return self._grant._keeper._requests.deadline(t0_ns, valid_for_ms)

    def failed(self) -> None:
        if self._grant._hold.holds():
            self._grant._notices.suspend()

    def acknowledged(self, waiters: Optional[int]) -> None:
        grant = self._grant
        grant._notices.restore()
        if waiters is not None:
            for heard in grant._heard:
                heard.renewed(waiters, len(grant._heard))
            grant._notices.want(waiters)
        grant._keeper._listening.renewed()
