"""The way from a client to the double: the paths of docs/reference/protocol.md that the client uses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import urllib.parse
from typing import Any, AsyncIterator, Callable, Generator, Iterator, Optional, TypeVar, Union

from .._cancel import Cancel
from .._clock import MILLISECOND, SECOND, now_ns
from .._exchange import AsyncStream, Stream, believed
from .._protocol import Fault, Reply, Send, attempt_ns
from .._transport import running_loop
from ..errors import Invalid
from ._authority import DOWN, KEPT_FOR, STALLED, UP, Authority, Grant, Lease, Lock, Pending, Refusal, invalid, over

Answer = tuple[int, dict[str, Any]]
Result = TypeVar("Result")
#: Each instant: until something changes, or then.
Steps = Generator[int, None, Result]
Lines = Generator[Union[int, str], None, None]

_DOWN = Refusal(503, "unavailable", "the double is down")
_COMMENT_NS = 15 * SECOND


class Paths:
    """Carries requests out. Each step is run under the authority's guard."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority

    def carry_out(self, method: str, path: str, body: Optional[dict[str, Any]]) -> Steps[Answer]:
        yield from self._until_answering()
        answer = yield from self._answer(method, path, body or {})
        # It may have been stalled while the request was carried out.
        yield from self._until_answering()
        return answer

    def _until_answering(self) -> Steps[None]:
        while self.authority.state == STALLED:
            yield now_ns() + SECOND

    def _answer(self, method: str, path: str, body: dict[str, Any]) -> Steps[Answer]:
        authority = self.authority
        if authority.state == DOWN:
            return _refused(_DOWN)
        authority.settle()
        path, _, query = path.partition("?")
        kind, name, verb = [*path.removeprefix("/v1/").split("/"), "", ""][:3]
        name = urllib.parse.unquote(name)
        if (kind, verb) == ("locks", "acquire"):
            return (yield from self._acquire(name, body))
        if kind == "listen":
            return (yield from self._listen(body))
        acts: dict[tuple[str, str], Callable[[], Answer]] = {
            ("status", ""): self._status,
            ("requests", "abandon"): lambda: self._abandon(name),
            ("locks", ""): lambda: self._list(query) if not name else (200, _shown(authority, authority.lock(name))),
            ("locks", "renew"): lambda: self._renew(name, body),
            ("locks", "release"): lambda: self._release(name, body),
            ("locks", "proclaim"): lambda: self._proclaim(name, body),
            ("locks", "break"): lambda: self._break(name, body),
            ("locks", "permits"): lambda: self._resize(name, body),
            ("locks", "rejections"): lambda: self._report(name, body),
            ("locks", "sequencer"): lambda: _refused(
                Refusal(409, "refused", "the double has no keys: it signs nothing")
            ),
        }
        act = acts.get((kind, verb))
        answer = _refused(Refusal(404, "not_found", f"the double has no {path}")) if act is None else act()
        authority.settle()
        return answer

    def _status(self) -> Answer:
        authority = self.authority
        held = sum(bool(lock.grants) for lock in authority.locks.values())
        counts = {"locks": held, "leases": len(authority.leases), "waiters": len(authority.queue)}
        about = {"authority": authority.name, "incarnation": authority.name, "version": "memory"}
        return 200, {**about, "next_token": authority.token + 1, **counts}

    def _list(self, query: str) -> Answer:
        authority, asked = self.authority, urllib.parse.parse_qs(query)
        prefix, cursor = asked.get("prefix", [""])[0], asked.get("cursor", [""])[0]
        limit = int(asked.get("limit", ["100"])[0])
        found: list[dict[str, Any]] = []
        for name, lock in sorted(authority.locks.items()):
            is_shown = lock.grants or lock.closed_until_ns > now_ns()
            if not is_shown or not name.startswith(prefix) or name <= cursor:
                continue
            if len(found) == limit:
                return 200, {"locks": found, "next_cursor": found[-1]["resource_id"]}
            found.append(_shown(authority, lock, listed=True))
        return 200, {"locks": found, "next_cursor": None}

    def _acquire(self, name: str, body: dict[str, Any]) -> Steps[Answer]:
        authority = self.authority
        pending = self._begin(name, body)
        if isinstance(pending, Refusal):
            return _denied(name, pending)
        pending.attempt += 1
        if pending.attempt > 1:
            authority.broadcast()
        mine, now = pending.attempt, now_ns()
        pending.arrived_ns, pending.kept_ns = now, 0
        pending.until_ns = now + int(body.get("wait_ms", 0)) * MILLISECOND
        poll_ns = now + int(body["poll_ms"]) * MILLISECOND if "poll_ms" in body else None
        try:
            while True:
                authority.settle()
                if pending.attempt != mine:
                    return _refused(Refusal(504, "unknown_outcome", "the same request was sent again"))
                if pending.denied is not None:
                    return _denied(name, pending.denied)
                if pending.grants:
                    return self._granted(name, pending)
                if authority.state == DOWN:
                    pending.kept_ns = now_ns() + KEPT_FOR
                    return _refused(_DOWN)
                if now_ns() >= pending.until_ns:
                    pending.denied = authority.denial(pending)
                    authority.leave(pending)
                elif poll_ns is not None and now_ns() >= poll_ns:
                    pending.kept_ns = now_ns() + KEPT_FOR
                    return 202, {"resource_id": name, "lock_acquired": False, "waiting": True}
                else:
                    yield min(authority.next_ns(), pending.until_ns, poll_ns or pending.until_ns)
        except GeneratorExit:
            # Nobody is connected any more.
            if pending.attempt == mine and not pending.is_over:
                pending.kept_ns = now_ns() + KEPT_FOR
            raise

    def _begin(self, name: str, body: dict[str, Any]) -> Pending | Refusal:
        """The request, which may have been sent before."""
        authority = self.authority
        sent = authority.requests.get(body["request_id"])
        if sent is not None:
            if sent.denied is not None and sent.denied.code == "abandoned":
                return sent.denied
            if sent.names[0] != name or sent.client_id != body["client_id"]:
                return invalid("one request id belongs to one lock and one client id")
            return sent
        asked = body.get("permits")
        pending = Pending(
            names=[name, *body.get("also", [])],
            client_id=body["client_id"],
            ttl_ns=int(body.get("lease_duration_ms", 0)) * MILLISECOND,
            mode=body.get("mode", "exclusive"),
            metadata=body.get("metadata", ""),
            permits=None if asked is None else (asked["count"], asked["of"]),
            lock_delay_ns=int(body.get("lock_delay_ms", 0)) * MILLISECOND,
            at_least_for_ns=int(body.get("at_least_for_ms", 0)) * MILLISECOND,
            request_id=body["request_id"],
        )
        lock = authority.lock(name)
        why = self._wrong(lock, pending, "lock_token" in body)
        if why is not None:
            return why
        if "lock_token" in body:
            under = self._under(lock, pending.mode, body["lock_token"])
            if isinstance(under, Refusal):
                return under
            pending.under = under
        if pending.permits is not None:
            lock.of = pending.permits[1]
        authority.requests[pending.request_id] = pending
        authority.enter(pending)
        return pending

    def _wrong(self, lock: Lock, pending: Pending, is_under: bool) -> Optional[Refusal]:
        closes = pending.lock_delay_ns or pending.at_least_for_ns
        if not pending.client_id or (not is_under and pending.ttl_ns < 100 * MILLISECOND):
            return invalid("client_id or lease_duration_ms is missing or out of range")
        if len(pending.names) > 1 and (pending.mode != "exclusive" or pending.permits or closes):
            return invalid("several locks are exclusive, and have no time after the grant")
        if pending.mode == "upgrade" and not is_under:
            return invalid("an upgrade is under the lease of a reader in mode update")
        if pending.permits is None:
            return invalid(f"the lock is a semaphore of {lock.of} permits, and is in use") if lock.of else None
        count, of = pending.permits
        if not 1 <= count <= of <= 64 or pending.mode != "exclusive":
            return invalid("permits: 1 to 64, and not more than there are")
        if (lock.grants and not lock.of) or lock.of not in (0, of):
            has = f"has {lock.of} permits" if lock.of else "is no semaphore"
            return invalid(f"the lock is in use and {has}: {of} were asked for")
        return None

    def _under(self, lock: Lock, mode: str, key: str) -> Grant | Refusal:
        """The grant that a change of mode is about: a writer's that becomes a reader, or the other way round."""
        for grant in lock.grants:
            if grant.lease.key != key:
                continue
            down = mode == "shared" and not grant.reads and not grant.slots
            if not down and not (mode == "upgrade" and grant.mode == "update"):
                return invalid("a writer becomes a reader, and a reader in mode update the writer, and nothing else")
            if any(pending.under is grant for pending in self.authority.queue):
                return invalid("an upgrade of this reader waits already")
            return grant
        for (own, name, number), code in self.authority.ended.items():
            if (own, name) == (key, lock.name):
                return over(code, number)
        return Refusal(409, "not_held", "there is no such grant of this lock")

    def _granted(self, name: str, pending: Pending) -> Answer:
        grant = pending.grants[0]
        code = self.authority.ended.get((grant.lease.key, name, grant.number))
        if code is not None:
            return _denied(name, over(code, grant.number))
        lease = grant.lease
        told = {
            "resource_id": name,
            "lock_acquired": True,
            "lock_token": lease.key,
            "fencing_token": grant.token,
            "lease_duration_ms": lease.ttl_ns // MILLISECOND,
            # What is left counts from when this attempt came.
            "valid_for_ms": (lease.until_ns - pending.arrived_ns) // MILLISECOND,
            "waited_ms": max(grant.at_ns - pending.arrived_ns, 0) // MILLISECOND,
            "remaining_ms": max(lease.until_ns - now_ns(), 0) // MILLISECOND,
            "acquired_at": grant.acquired_at,
            "authority": self.authority.name,
        }
        return 200, told | _named(grant)

    def _renew(self, name: str, body: dict[str, Any]) -> Answer:
        grant = self._find(name, body)
        if isinstance(grant, Refusal):
            return _refused(grant)
        lease = grant.lease
        lease.until_ns = max(lease.until_ns, now_ns() + lease.ttl_ns)
        left = (lease.until_ns - now_ns()) // MILLISECOND
        about = {"resource_id": name, "fencing_token": grant.token, "authority": self.authority.name}
        duration = {"lease_duration_ms": lease.ttl_ns // MILLISECOND}
        waiters = sum(self.authority.waiting(each) for each in self._locks_of(lease))
        return 200, {**about, **duration, "valid_for_ms": left, "remaining_ms": left, "waiters": waiters}

    def _locks_of(self, lease: Lease) -> list[str]:
        return [lock.name for lock in self.authority.locks.values() if any(g.lease is lease for g in lock.grants)]

    def _listen(self, body: dict[str, Any]) -> Steps[Answer]:
        authority, grants, wait_ms = self.authority, body.get("grants"), body.get("wait_ms", 20_000)
        if not isinstance(grants, list) or not 1 <= len(grants) <= 100:
            return _refused(invalid("grants: 1 to 100"))
        if len({(named["resource_id"], named["fencing_token"]) for named in grants}) < len(grants):
            return _refused(invalid("grants: each once"))
        if type(wait_ms) is not int or not 0 <= wait_ms <= 60_000:
            return _refused(invalid("wait_ms: 0 to 60000"))
        until = now_ns() + wait_ms * MILLISECOND
        while True:
            authority.settle()
            if authority.state == DOWN:
                return _refused(_DOWN)
            notices = [notice for named in grants for notice in self._news(named)]
            if notices or now_ns() >= until:
                return 200, {"notices": notices}
            yield min(authority.next_ns(), until)

    def _news(self, named: dict[str, Any]) -> list[dict[str, Any]]:
        """At most one notice."""
        name, key, number = named["resource_id"], named["lock_token"], named["fencing_token"]
        about = {"resource_id": name, "fencing_token": number}
        grant = self.authority.find(name, key, number)
        if isinstance(grant, Refusal):
            ending = key, name, number
            code = self.authority.ended.get(ending, "unknown")
            how = "released" if code == "not_held" else code
            reason = self.authority.reasons.get(ending)
            return [{**about, "event": "ended", "how": how, **({"reason": reason} if reason else {})}]
        known, waiters = named.get("waiters", 0), self.authority.waiting(name)
        return [{**about, "event": "wanted", "waiters": waiters}] if waiters > known or known > waiters == 0 else []

    def _find(self, name: str, body: dict[str, Any]) -> Grant | Refusal:
        return self.authority.find(name, body.get("lock_token"), body.get("fencing_token"))

    def _release(self, name: str, body: dict[str, Any]) -> Answer:
        grant = self._find(name, body)
        again = isinstance(grant, Refusal) and grant.code == "not_held" and grant.token > 0
        if isinstance(grant, Refusal) and not again:
            return _refused(grant)
        number = grant.token if isinstance(grant, Refusal) else grant.number
        if isinstance(grant, Grant):
            self.authority.end(grant, "not_held")
        told = {"resource_id": name, "released": True, "already_released": again, "fencing_token": number}
        return 200, {**told, "authority": self.authority.name}

    def _proclaim(self, name: str, body: dict[str, Any]) -> Answer:
        grant = self._find(name, body)
        if isinstance(grant, Refusal):
            return _refused(grant)
        if grant.reads or grant.slots:
            return _refused(invalid("a reader, and a holder of permits, has no value"))
        if len(body["value"].encode()) > 256:
            return _refused(invalid("value has at most 256 bytes"))
        grant.metadata = body["value"]
        self.authority.tell("proclaimed", grant)
        return 200, {"resource_id": name, "fencing_token": grant.token, "revision": self.authority.revision}

    def _break(self, name: str, body: dict[str, Any]) -> Answer:
        number, holders = body.get("fencing_token"), self.authority.lock(name).grants
        for grant in list(holders):
            if grant.number == number:
                self.authority.end(grant, "revoked", body.get("reason", ""))
                return 200, {"resource_id": name, "revoked": True, "fencing_token": number}
        if not holders:
            return _refused(Refusal(409, "not_held", "nobody holds this lock"))
        why = "the lock is held with another token"
        return _refused(Refusal(412, "stale", why, highest=holders[0].number))

    def _resize(self, name: str, body: dict[str, Any]) -> Answer:
        lock = self.authority.lock(name)
        if not lock.of:
            return _refused(Refusal(409, "not_held", "nobody holds a permit of it"))
        if not 1 <= body["of"] <= 64:
            return _refused(invalid("of: 1 to 64"))
        lock.of = body["of"]
        return 200, {"resource_id": name, "permits": lock.of}

    def _report(self, name: str, body: dict[str, Any]) -> Answer:
        token = body["fencing_token"]
        return 200, {"recorded": token in self.authority.tokens.get(name, []) and token < body["highest"]}

    def _abandon(self, request_id: str) -> Answer:
        authority = self.authority
        pending = authority.requests.setdefault(request_id, Pending([""], request_id=request_id))
        authority.leave(pending)
        for grant in pending.grants:
            authority.end(grant, "not_held")
        pending.grants = []
        pending.denied = Refusal(409, "abandoned", "this request_id was abandoned: choose a new one")
        authority.broadcast()
        return 200, {"request_id": request_id, "abandoned": True}

    def opened(self, path: str) -> Steps[tuple[int, dict[str, Any], str, int]]:
        """The head of a watch: its status, its body if that is not 200, its prefix and where it begins."""
        yield from self._until_answering()
        authority = self.authority
        authority.settle()
        asked = urllib.parse.parse_qs(path.partition("?")[2])
        after = int(asked.get("after_revision", [str(authority.revision)])[0])
        status: int = 200
        body: dict[str, Any] = {}
        if after > authority.revision:
            status, body = _refused(invalid("after_revision is not one of this authority"))
        if authority.state == DOWN:
            status, body = _refused(_DOWN)
        return status, body, asked.get("prefix", [""])[0], after

    def lines(self, prefix: str, after: int) -> Lines:
        """Events, until the double is down."""
        authority, written = self.authority, now_ns()
        while True:
            authority.settle()
            text = ""
            if authority.state == DOWN:
                return
            if authority.state == UP:
                first = authority.changes[0].revision if authority.changes else after + 1
                if first > after + 1:
                    text = f'event: missed\nid: {first - 1}\ndata: {{"missed": {first - 1 - after}}}\n\n'
                    after = first - 1
                for change in authority.changes:
                    if change.revision > after:
                        after = change.revision
                        if change.lock.startswith(prefix):
                            data = json.dumps(change.data)
                            text += f"event: {change.kind}\nid: {change.revision}\ndata: {data}\n\n"
                if not text and now_ns() - written > _COMMENT_NS:
                    text = ":\n\n"
            if text:
                written = now_ns()
                yield text
            else:
                yield authority.next_ns()


def _refused(why: Refusal) -> Answer:
    told: dict[str, Any] = {"code": why.code, "message": why.message}
    if why.wait_ns > 0:
        told["retry_after_ms"] = _whole_ms(why.wait_ns)
    if why.highest:
        told["highest"] = why.highest
    if why.token:
        told["fencing_token"] = why.token
    holder = {} if why.holder is None else {"holder": _brief(why.holder)}
    return why.status, {"error": told, **holder}


def _denied(name: str, why: Refusal) -> Answer:
    status, answer = _refused(why)
    if why.code != "invalid":
        answer |= {"resource_id": name, "lock_acquired": False}
    return status, answer


def _whole_ms(left_ns: int) -> int:
    return -(-left_ns // MILLISECOND)


def _named(grant: Grant) -> dict[str, Any]:
    told: dict[str, Any] = {"grant_id": grant.number} if grant.reads else {}
    return told | ({"slots": grant.slots} if grant.slots else {})


def _brief(grant: Grant) -> dict[str, Any]:
    left = max(grant.lease.until_ns - now_ns(), 0) // MILLISECOND
    return {"client_id": grant.client_id, "fencing_token": grant.token, "remaining_ms": left}


def holder(grant: Grant) -> dict[str, Any]:
    told = {**_brief(grant), "acquired_at": grant.acquired_at, **_named(grant)}
    return told | ({"metadata": grant.metadata} if grant.metadata else {})


def _shown(authority: Authority, lock: Lock, listed: bool = False) -> dict[str, Any]:
    told: dict[str, Any] = {"resource_id": lock.name, "holder": None, "waiters": authority.waiting(lock.name)}
    if not listed:
        told["revision"] = authority.revision
    if lock.closed_until_ns > now_ns():
        told["delayed_ms"] = _whole_ms(lock.closed_until_ns - now_ns())
    if lock.of:
        told["permits"] = lock.of
    if lock.grants:
        told["holder"] = holder(lock.grants[0])
        if lock.of or lock.grants[0].reads:
            told["reader_count"] = len(lock.grants)
            if not listed:
                told["readers"] = [holder(grant) for grant in lock.grants[:64]]
    return told


def _over() -> Fault:
    return Fault("the double did not answer in time", unknown=True, silent=True)


class Wire:
    """For threads."""

    def __init__(self, authority: Authority) -> None:
        self._authority, self._paths = authority, Paths(authority)
        self._closed = False

    def send(self, url: str, send: Send, until_ns: int) -> Reply:
        if self._closed:
            raise Invalid("invalid", "the client is closed")
        steps = self._paths.carry_out(send.method, send.path, _sent(send.body))
        status, body = self._run(steps, until_ns, send.cancel)
        return believed(url, send, status, json.dumps(body).encode())

    def _run(self, steps: Steps[Result], until_ns: int, cancel: Optional[Cancel] = None) -> Result:
        changed: Optional[threading.Event] = None
        try:
            while True:
                with self._authority.guard:
                    self._authority.forget(changed)
                    changed = self._changed(step := next(steps))
                if cancel is not None:
                    cancel.wakes(changed.set)
                if now_ns() >= until_ns or (cancel is not None and cancel.is_set):
                    raise _over()
                changed.wait(max(0, min(step, until_ns) - now_ns()) / SECOND)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            with self._authority.guard:
                self._authority.forget(changed)
                steps.close()

    def _changed(self, _: int) -> threading.Event:
        changed = threading.Event()
        self._authority.wakes(changed, changed.set)
        return changed

    @contextlib.contextmanager
    def watch(self, url: str, path: str, patience_ns: int) -> Iterator[Stream]:
        until = now_ns() + attempt_ns(patience_ns, 0, patience_ns)
        status, body, prefix, after = self._run(self._paths.opened(path), until)
        yield Stream(status, lambda: json.dumps(body).encode(), lambda: self._lines(prefix, after))

    def _lines(self, prefix: str, after: int) -> Iterator[str]:
        lines = self._paths.lines(prefix, after)
        changed: Optional[threading.Event] = None
        while True:
            with self._authority.guard:
                self._authority.forget(changed)
                step = next(lines, None)
                changed = self._changed(step) if isinstance(step, int) else None
            if step is None:
                return
            if changed is not None:
                changed.wait(max(0, int(step) - now_ns()) / SECOND)
            else:
                yield from str(step).splitlines()

    def reconnect(self) -> None:
        pass

    def close(self) -> None:
        self._closed = True


class AsyncWire:
    """For asyncio."""

    def __init__(self, authority: Authority) -> None:
        self._authority, self._paths = authority, Paths(authority)
        self._closed = False

    async def send(self, url: str, send: Send, until_ns: int) -> Reply:
        if self._closed:
            raise Invalid("invalid", "the client is closed")
        steps = self._paths.carry_out(send.method, send.path, _sent(send.body))
        status, body = await self._run(steps, until_ns)
        return believed(url, send, status, json.dumps(body).encode())

    async def _run(self, steps: Steps[Result], until_ns: int) -> Result:
        changed: Optional[asyncio.Event] = None
        try:
            while True:
                with self._authority.guard:
                    self._authority.forget(changed)
                    changed = self._changed(step := next(steps))
                if now_ns() >= until_ns:
                    raise _over()
                await _wait(changed, min(step, until_ns))
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            with self._authority.guard:
                self._authority.forget(changed)
                steps.close()

    def _changed(self, _: int) -> asyncio.Event:
        changed, loop = asyncio.Event(), running_loop()
        self._authority.wakes(changed, lambda: loop.call_soon_threadsafe(changed.set))
        return changed

    @contextlib.asynccontextmanager
    async def watch(self, url: str, path: str, patience_ns: int) -> AsyncIterator[AsyncStream]:
        until = now_ns() + attempt_ns(patience_ns, 0, patience_ns)
        status, body, prefix, after = await self._run(self._paths.opened(path), until)

        async def read() -> bytes:
            return json.dumps(body).encode()

        yield AsyncStream(status, read, lambda: self._lines(prefix, after))

    async def _lines(self, prefix: str, after: int) -> AsyncIterator[str]:
        lines = self._paths.lines(prefix, after)
        changed: Optional[asyncio.Event] = None
        while True:
            with self._authority.guard:
                self._authority.forget(changed)
                step = next(lines, None)
                changed = self._changed(step) if isinstance(step, int) else None
            if step is None:
                return
            if changed is not None:
                await _wait(changed, int(step))
            else:
                for line in str(step).splitlines():
                    yield line

    async def reconnect(self) -> None:
        pass

    async def close(self) -> None:
        self._closed = True


async def _wait(changed: asyncio.Event, until_ns: int) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0, until_ns - now_ns()) / SECOND):
            await changed.wait()


def _sent(body: Optional[dict[str, Any]]) -> Optional[dict[str, Any]]:
    """As it would arrive."""
    found: Optional[dict[str, Any]] = json.loads(json.dumps(body))
    return found
