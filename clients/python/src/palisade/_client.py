"""The client for programs with threads."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from types import TracebackType
from typing import Any, Callable, Generator, Iterator, Optional, TypeVar, Unpack

from . import _alarms, _election, _renewals
from . import _protocol as protocol
from ._base import BaseClient
from ._clock import SECOND, now_ns
from ._exchange import Exchange
from ._grant import BaseGrant
from ._listening import Listening
from ._model import Duration, Event, Leader, LockInfo, Status, lock_info, page, status
from ._notices import Listener
from ._options import GrantOptions, known
from ._process import Guard, OfOneProcess
from ._requests import WAIT
from ._sse import Position
from ._transport import SyncTransport
from .errors import LeaseLost, LockHeld, PalisadeError, Unavailable, UnknownOutcome

log = logging.getLogger("palisade")
Result = TypeVar("Result")


def _sleep(until_ns: int) -> None:
    """In slices, because the system's timers stop in suspension and the holder's clock does not."""
    while (left := until_ns - now_ns()) > 0:
        time.sleep(min(left, SECOND) / SECOND)


class Client(BaseClient):
    """Asks a Palisade server for locks. It may be shared by threads.

    `url`: one address, or several (a list, or a text with commas); by default `PALISADE_URL`, else
    http://127.0.0.1:7420. `patience`: how long an operation is repeated without an answer. `margin`: the time to leave
    between a check and the effect of the next operation. `token`: a bearer token, by default `PALISADE_TOKEN`; it is
    sent with TLS or within this machine only. `token_file`: a file with it, which is read again for each request, so a
    token may be replaced while the client runs. `verify`: the CAs that it trusts: by default those of this machine, or
    a file of CAs in PEM, or an `ssl.SSLContext`. `cert`: its own certificate: a file in PEM, or `(certificate, key)`.
    These files are read again for each new connection, so they may be replaced, too. `report_refusals`: a fence that
    refuses a token of this client as stale is reported to the server in the background, for `palisade history`.
    `notices`: while it holds leases, a long request for each hundred of them asks the server for news, so a lease that
    an operator revokes is lost within a second, and not at its next renewal."""

    def _open(self, notices: bool) -> None:
        exchange = self._exchange()
        self._transport = SyncTransport(self._requests.endpoints, exchange())
        self._listening = Listening(notices, self._requests.endpoints, exchange)
        self._cleanups: set[threading.Thread] = set()
        self._guard = Guard()

    def _exchange(self) -> Callable[[], Exchange]:
        return self._background_exchange()

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
    ) -> Lock:
        """A request for a lock, sent by `with` or by `acquire()`.

        `ttl`: how long the lease lasts without renewal, 100 ms – 24 h. `wait`: how long to stay in the queue, 0 – 24 h;
        by default 30 s, and `try_acquire` does not wait.
        `client_id`: a lock that is held by a client id is granted to the same id again, and its earlier grant ends.
        `shared`: as a reader, beside other readers. Readers claim at the resource before they read, and never write.
        `update`: as the one reader that may become the writer (`grant.upgrade`), beside plain readers.
        `permits`: `(2, 5)` for two of the five permits of a semaphore, all or none. Claim each of `grant.slot_keys`.
        `lock_delay`, `at_least_for`: see `GrantOptions`."""
        known(options)
        kind = shared, update, permits, options
        return Lock(self, lambda waits: self._requests.wish((name,), ttl, wait, waits, client_id, metadata, *kind))

    def locks(
        self,
        *names: str,
        ttl: Duration = "15s",
        wait: Optional[Duration] = None,
        client_id: Optional[str] = None,
        metadata: Optional[str] = None,
    ) -> Lock:
        """A request for 1 – 64 locks at once, all or none, with one token: `client.locks("account:7", "account:8")`.
        Each name once, in any order. Nothing is held while it waits. Claim every resource before the first read of any,
        each with `grant.part(name)`. The arguments are those of `lock`."""
        return Lock(self, lambda waits: self._requests.wish(names, ttl, wait, waits, client_id, metadata))

    def adopt(self, text: str) -> Grant:
        """Takes over a lease that `grant.export()` handed over: it is renewed at once, and held from the first renewal
        that is acknowledged, by this machine's clock. Its token is the same. It is released or lost as any other.

        Raises `LeaseLost` if the lease is over, `Unavailable` if nobody answers, and `Invalid` if the text is not an
        exported lease. Then nothing is held here. If one of several locks is over, the others are released."""
        wish, granted, ref, steps = self._requests.adopts(text)
        try:
            t0_ns, valid_for_ms = self._run(steps)
        except LeaseLost:
            if len(ref.locks) > 1:
                self._in_background(self._requests.gives_back(wish, ref), f"what is left of {wish.lock}")
            raise
        return Grant(self, wish, replace(granted, t0_ns=t0_ns, valid_for_ms=valid_for_ms))

    def show(self, name: str) -> LockInfo:
        """The holder of a lock and the number of waiters."""
        return self._ask("GET", protocol.lock_path(name), None, lock_info, name)

    def list(self, prefix: str = "") -> Iterator[LockInfo]:
        """The locks that are held and whose names start with `prefix`, page by page."""
        cursor: Optional[str] = None
        while True:
            locks, cursor = self._ask("GET", self._requests.page(prefix, cursor), None, page)
            yield from locks
            if cursor is None:
                return

    def break_lock(self, name: str, token: int, reason: str = "") -> None:
        """Takes a lock from its holder. `token` is that of the current grant, or a reader's grant id: proof that the
        operator has looked."""
        body = self._requests.breaks(token, reason)
        self._ask("POST", protocol.lock_path(name, "break"), body, dict, name)

    def resize(self, name: str, permits: int) -> None:
        """Gives a semaphore that is in use another number of permits. Holders keep their slots; a lower number takes
        effect as they come free."""
        body = self._requests.resizes(permits)
        self._ask("POST", protocol.lock_path(name, "permits"), body, dict, name)

    def status(self) -> Status:
        return self._ask("GET", "/v1/status", None, status)

    def watch(self, prefix: str = "", after: Optional[int] = None) -> Iterator[Event]:
        """Changes of the locks whose names start with `prefix`, without end, across broken connections. An event is
        news, not proof: a holder learns of a loss from its own deadline."""
        for event in self._changes(prefix, after):
            if event is not None:
                yield event

    def _changes(self, prefix: str, after: Optional[int]) -> Iterator[Optional[Event]]:
        """None: a watch is open."""
        position = self._requests.watched(prefix, after)
        while True:
            url = self._requests.endpoints.current()
            try:
                yield from self._watch_once(url, position)
            except protocol.Fault as fault:
                log.debug("the watch of %s broke: %s", url, fault)
                self._requests.endpoints.failed(url)
            time.sleep(0.1)

    def _watch_once(self, url: str, position: Position) -> Iterator[Optional[Event]]:
        with self._transport.exchange.watch(url, position.path(), self._requests.patience_ns) as stream:
            if stream.status != 200:
                if self._requests.watch_refused(url, stream.status, stream.read(), position):
                    self._transport.exchange.reconnect()
                return
            yield None
            yield from position.opened()
            for line in stream.lines():
                event = position.line(line)
                if event is not None:
                    yield event

    def leader(self, name: str) -> Optional[Leader]:
        """The leader of an election: the holder of the lock, and its value; None if nobody leads. Campaigning is
        `client.lock(name, metadata=value)`, and resigning is a release."""
        return self._leader(name)[0]

    def observe(self, name: str) -> Generator[Optional[Leader], None, None]:
        """The present leader of an election at once, and then each change, without end, across broken connections.
        None: nobody leads. It may skip a leader or a value that another one soon followed, never goes back, and always
        comes to the latest one."""
        return self._observe(name, _election.Observed(name))

    def _observe(self, name: str, observed: _election.Observed) -> Generator[Optional[Leader], None, None]:
        for change in self._changes(name, None):
            while observed.concerns(change):
                try:
                    found = self._leader(name)
                except (Unavailable, UnknownOutcome) as nobody:
                    log.debug("the leader of %s is not known: %s", name, nobody)
                    time.sleep(0.5)
                    continue
                if observed.is_news(found):
                    yield found[0]
                break

    def _leader(self, name: str) -> _election.Shown:
        return self._ask("GET", protocol.lock_path(name), None, _election.shown, name)

    def close(self) -> None:
        """Finishes reports of refusals, at most for 250 ms, and giving up requests and locks in the background, at most
        for the client's patience, and then ends the connections. Leases that are still held expire."""
        self._listening.close()
        self._reports.wait()
        self._reports.close()
        until = now_ns() + self._requests.patience_ns
        with self._guard:
            cleanups = list(self._cleanups)
        for thread in cleanups:
            thread.join(max(0.0, (until - now_ns()) / SECOND))
        self._transport.exchange.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self,
        method: str,
        path: str,
        body: Optional[dict[str, Any]],
        read: Callable[[dict[str, Any]], Result],
        lock: Optional[str] = None,
    ) -> Result:
        until = now_ns() + self._requests.patience_ns
        return self._run(protocol.asked(method, path, body, until, read, lock))

    def _advance(self, steps: protocol.Steps[Any]) -> Optional[int]:
        """Goes on until a pause, and returns its end; None if there are no more steps."""
        outcome: protocol.Outcome = None
        try:
            while True:
                step = steps.send(outcome)
                if not isinstance(step, protocol.Send):
                    return step.until_ns
                outcome = self._transport.send(step)
        except StopIteration:
            return None

    def _run(self, steps: protocol.Steps[Result]) -> Result:
        outcome: protocol.Outcome = None
        try:
            while True:
                step = steps.send(outcome)
                outcome = None
                if isinstance(step, protocol.Send):
                    outcome = self._transport.send(step)
                else:
                    _sleep(step.until_ns)
        except StopIteration as end:
            result: Result = end.value
            return result

    def _acquire(self, wish: protocol.Wish) -> Grant:
        try:
            granted = self._run(protocol.acquire(wish))
        except BaseException:
            if wish.may_have_happened:
                self._in_background(protocol.abandon(wish), f"the request for {wish.lock}")
            raise
        return Grant(self, wish, granted)

    def _in_background(self, steps: protocol.Steps[Any], what: str) -> None:
        def run() -> None:
            try:
                self._run(steps)
            except PalisadeError as error:
                log.info("%s is left to expire: %s", what, error)
            finally:
                with self._guard:
                    self._cleanups.discard(thread)

        thread = threading.Thread(target=run, name=f"palisade: {what}", daemon=True)
        # In one step: a thread that has not started cannot be joined.
        with self._guard:
            thread.start()
            self._cleanups.add(thread)


class Lock(OfOneProcess):
    """A request for a lock; every `with` and every `acquire` asks anew."""

    def __init__(self, client: Client, wish: Callable[[Duration], protocol.Wish]) -> None:
        self._client, self._wish = client, wish
        self._entered: list[Grant] = []

    def acquire(self) -> Grant:
        """Waits in the queue for as long as the request says. Raises `LockHeld` if another client keeps the lock,
        `Unavailable` or `UnknownOutcome` if nobody answers. However it ends, no lock stays behind: an exception, such
        as KeyboardInterrupt, abandons the request in the background."""
        return self._client._acquire(self._wish(WAIT))

    def try_acquire(self) -> Optional[Grant]:
        """The grant, or None if another client has the lock. It asks once, and waits only if the lock was given a
        `wait`. The errors are those of `acquire`, but for `LockHeld`."""
        try:
            return self._client._acquire(self._wish(0))
        except LockHeld:
            return None

    def __enter__(self) -> Grant:
        grant = self.acquire()
        self._entered.append(grant)
        return grant

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)


class Grant(BaseGrant):
    """A lock that is held, and renewed in the background, until it is released or lost.

    A pause fits between `check()` and whatever follows, so a check alone protects nothing: give `token` to the fence at
    the resource, first to claim, then with every read and write."""

    def __init__(self, client: Client, wish: protocol.Wish, granted: protocol.Granted) -> None:
        self._client = client
        self._lost = threading.Event()
        super().__init__(client, wish, granted)
        self._steps = self._renewal()
        self._renewed = _renewals.Renewal(self._hold, self._go_on)
        self._check_in_time()
        _alarms.watch(self._hold)
        # Due first: else the thread that waits would be woken twice.
        client._listening.add(self._heard)
        _renewals.renew(self._renewed, self._go_on() or now_ns())

    @property
    def lost(self) -> threading.Event:
        """Set when the lease is lost. Not set by a release."""
        if self._hold.is_here:
            return self._lost
        # Another thread may have had the event's own lock when this process was forked.
        lost = threading.Event()
        lost.set()
        return lost

    def downgrade(self) -> Grant:
        """Makes a writer a reader, in one step: no other writer gets in between. From the call on this grant is not
        held; the one returned has a new token, with which it claims before it reads, and is released by itself or as a
        `with` block. If this fails, the lock is released in the background. A reader's grant is returned as it is."""
        if self.shared:
            return self
        reader = self._leave_for_reader()
        try:
            return self._client._acquire(reader)
        except BaseException:
            self._give_back(f"the lock {self._ref.lock}")
            raise

    def proclaim(self, value: str) -> None:
        """Changes the value that this leader announces, its metadata: at most 256 bytes; "" takes it back. The token
        stays, and observers receive the change. Call it again only after it has returned: of two concurrent calls
        either value may remain.

        Raises `LeaseLost` if the lease is over, the errors of `release` if nobody answers, and `Invalid` for a reader,
        a holder of permits and several locks."""
        self._client._run(self._proclaims(value))

    def upgrade(self, wait: Duration = "30s") -> Grant:
        """Makes the reader in mode update the writer, in one step: nobody else writes in between. It goes ahead of the
        queue and waits for the other readers alone. The grant returned has a new token, with which it claims before it
        writes; this one is not held any more then. Until then it is held and renewed as before, also after `LockHeld`,
        which names a reader that still held the lock.

        Raises `LeaseLost` if this grant is lost meanwhile, and the errors of `acquire`. An upgrade that is interrupted
        is given up in the background. If it was granted by then, or can be granted at that moment, the lock is
        released, and this grant is lost."""
        wish = self._become_writer(wait)
        try:
            return self._client._acquire(wish)
        finally:
            self._upgrade_ended()

    def sequencer(self, name: Optional[str] = None) -> str:
        """The token as the authority signs it, for resources that check it with `palisade.fences.sequencer` or with
        `--keys`. `name`: which of several locks. It asks the server. It raises the errors of `acquire` if no server
        answers, and `LeaseLost` if the lease is over. It is a secret until the next grant: send it with TLS only, and
        keep it out of logs."""
        return self._client._run(self._signing(name))

    def release(self) -> str:
        """Gives the lock up: from the call on it is not held here, whatever the answer. Returns "released",
        "already_released", or "over" if the grant had ended otherwise."""
        self._hold.end("released")
        self._refuse_if_handed_over()
        return self._release(None)

    def release_part(self, name: str) -> str:
        """Gives one of several locks up: from the call on it is not held here, whatever the answer, and the others
        stay. With the last one the grant is released. If nobody answers, the lock stays taken until it is released
        again, at the latest at the end of the block. Returns the same values as `release`."""
        self._refuse_if_handed_over()
        if not self._hold.is_here:
            return "over"
        return self._release(protocol.give_up_part(self._ref, self._hold, name))

    def _release(self, part: Optional[str]) -> str:
        if not self._hold.is_here:
            return "over"
        if self._hold.over:
            self._stop()
        until = now_ns() + self._client._requests.patience_ns
        return self._client._run(protocol.release(self._ref, until, part))

    def __enter__(self) -> Grant:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_lost():
            return
        try:
            self.release()
        except PalisadeError as failed:
            self._warn_unreleased(failed)

    def _go_on(self) -> Optional[int]:
        """Renews if it is time, and returns the instant of the next time."""
        try:
            return self._client._advance(self._steps)
        except Exception:
            log.exception("%s is no longer renewed", self._ref.lock)
            return None

    def _set_lost(self) -> None:
        self._lost.set()

    def _stop(self) -> None:
        _renewals.cancel(self._renewed)

    def _run(self, listener: Listener) -> None:
        """A callback that blocks keeps a thread of its own."""
        thread = threading.Thread(target=listener.tell, name="palisade: notices", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is about to end, or there are no more threads: the next change tries again.
            listener.rest()
