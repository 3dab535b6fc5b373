"""Jobs in a table of your own, without a server: the number of the attempt is the fencing token.

    attempts = Attempts("jobs")
    attempt = attempts.take(connection, "worker-1")         # the oldest job that is ready, or whose lease has expired
    with attempts.transact(connection, attempt):            # holds the row: nobody can take the job over meanwhile
        …                                                   # all effects; they and `done` commit together

docs/use/job-attempts.md has the table and the statements. `take`, `heartbeat` and `reap` are transactions of their own;
`guard`, `finish` and `fail` belong into yours. An attempt whose job another one has taken is refused with `Stale`, one
that has ended with `Rejected`. In PostgreSQL the transaction can then only roll back, whatever is done with the error;
in MySQL and MariaDB it is rolled back before the error is raised.

An `Attempt` is a holder for every fence: `redis.Resource(attempt.resource).claim(cache, attempt)`. Attempts of two jobs
cannot be compared, so give it only to the resource of its own job.

`connection`: as for `palisade.fences.postgres` and `mysql`; `AsyncAttempts` takes those of asyncio."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Iterator, Mapping, Optional

from ._model import Duration, milliseconds
from .errors import Invalid
from .fences import Rejected, Stale, _drivers, rejection
from .fences._drivers import Steps

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_ID = re.compile(r"[0-9A-Za-z_-]{1,200}")
_NAME = re.compile(r"[ -~]{1,255}")

# The database's clock, and the time of the statement: that of `now()` is the beginning of the transaction.
_OPEN = "(state = 'ready' OR (state = 'running' AND lease_until < clock_timestamp()))"
_MINE = "id = %(id)s AND attempt = %(attempt)s::bigint AND state = 'running'"
_LATER = "clock_timestamp() + %(lease)s::bigint * interval '1 millisecond'"

_REAP = f"""UPDATE {{table}} SET state = 'failed', lease_until = NULL,
    reason = CASE state WHEN 'running' THEN 'attempt ' || attempt || ' was the last of ' || %(most)s::bigint
        || ', and its lease expired (worker ' || coalesce(worker, '?') || ')'
        ELSE coalesce(reason, 'no attempt is left') END
WHERE id IN (SELECT id FROM {{table}} WHERE attempt >= %(most)s::bigint AND {_OPEN} FOR UPDATE SKIP LOCKED)
RETURNING id"""
_TAKE = f"""UPDATE {{table}} SET state = 'running', attempt = attempt + 1, worker = %(worker)s::text,
    lease_until = {_LATER}
WHERE id = (SELECT id FROM {{table}} WHERE attempt < %(most)s::bigint AND {_OPEN}
    ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1)
RETURNING *"""
_HEARTBEAT = f"UPDATE {{table}} SET lease_until = {_LATER} WHERE {_MINE} RETURNING 1"
# If this program stops inside the transaction, the database ends it after the time of a lease. A tighter setting of
# your own stays.
_GUARD = f"""SELECT set_config('idle_in_transaction_session_timeout', CASE
    WHEN current_setting('idle_in_transaction_session_timeout')::interval
        BETWEEN interval '1 millisecond' AND %(lease)s::bigint * interval '1 millisecond'
    THEN current_setting('idle_in_transaction_session_timeout') ELSE %(lease)s::bigint::text END, true)
FROM {{table}} WHERE {_MINE} FOR UPDATE"""
_FINISH = f"UPDATE {{table}} SET state = 'done', lease_until = NULL WHERE {_MINE} RETURNING 1"
_ENDED = "SELECT 1 FROM {table} WHERE id = %(id)s AND attempt = %(attempt)s::bigint AND state <> 'running'"
_FAIL = f"""UPDATE {{table}} SET state = CASE WHEN attempt < %(most)s::bigint THEN 'ready' ELSE 'failed' END,
    lease_until = NULL, reason = %(reason)s::text
WHERE {_MINE} RETURNING 1"""
# An error in the database: the transaction cannot commit any more, even if nobody looks at what Python raises.
_REFUSE = """DO $palisade$ DECLARE newest bigint; BEGIN
    SELECT j.attempt INTO newest FROM {table} j WHERE j.id = '{id}';
    IF newest > {attempt} THEN
        RAISE EXCEPTION USING ERRCODE = 'PF001', DETAIL = newest::text, CONSTRAINT = 'job:{id}',
            MESSAGE = 'token {attempt} is stale: {attempt} < ' || newest || ' at resource job:{id}',
            HINT = 'another attempt has this job: give up, roll back, and write nothing more';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'PF010', DETAIL = '', CONSTRAINT = 'job:{id}',
        MESSAGE = 'attempt {attempt} has ended at resource job:{id}',
        HINT = 'it was finished, has failed, or its row is gone: roll back, and write nothing more';
END $palisade$"""

# MySQL and MariaDB. They count the rows that changed, and not those that were found: so a row is looked for first.
_MYSQL_OPEN = "(state = 'ready' OR (state = 'running' AND lease_until < UTC_TIMESTAMP(3)))"
_MYSQL_LATER = "UTC_TIMESTAMP(3) + INTERVAL %(lease)s * 1000 MICROSECOND"
_MYSQL_EXHAUSTED = f"SELECT * FROM {{table}} WHERE attempt >= %(most)s AND {_MYSQL_OPEN} FOR UPDATE SKIP LOCKED"
_MYSQL_REAP = "UPDATE {table} SET state = 'failed', lease_until = NULL, reason = %(reason)s WHERE id = %(id)s"
_MYSQL_NEXT = f"""SELECT id FROM {{table}} WHERE attempt < %(most)s AND {_MYSQL_OPEN}
ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"""
_MYSQL_TAKE = f"""UPDATE {{table}} SET state = 'running', attempt = attempt + 1, worker = %(worker)s,
    lease_until = {_MYSQL_LATER} WHERE id = %(id)s"""
_MYSQL_MINE = "SELECT state FROM {table} WHERE id = %(id)s AND attempt = %(attempt)s FOR UPDATE"
_MYSQL = {
    _HEARTBEAT: f"UPDATE {{table}} SET lease_until = {_MYSQL_LATER} WHERE id = %(id)s",
    _FINISH: "UPDATE {table} SET state = 'done', lease_until = NULL WHERE id = %(id)s",
    _FAIL: """UPDATE {table} SET state = IF(attempt < %(most)s, 'ready', 'failed'), lease_until = NULL,
        reason = %(reason)s WHERE id = %(id)s""",
}


@dataclass(frozen=True)
class Attempt:
    """One attempt at a job. It is a holder for every fence, under the authority of its table."""

    job_id: Any
    attempt: int
    worker: str
    #: All columns of the job's row, as the database had them when the attempt began.
    row: Mapping[str, Any] = field(repr=False, compare=False)
    authority: str

    @property
    def token(self) -> int:
        """The fencing token: the number of the attempt."""
        return self.attempt

    @property
    def resource(self) -> str:
        """The name of the resource that this attempt may claim at a fence: `job:<id>`."""
        return f"job:{self.job_id}"

    @property
    def lock(self) -> str:
        """The same name. It binds the resource to this job, because attempts of two jobs cannot be compared."""
        return self.resource


class _Attempts:
    """`lease`: 1 s – 24 h. `max_attempts`: how many workers may try a job; they count when they begin. `authority`: by
    default the table's name; two databases whose jobs write to one target outside need two."""

    def __init__(
        self,
        table: str = "jobs",
        *,
        lease: Duration = "30s",
        max_attempts: int = 5,
        authority: Optional[str] = None,
    ) -> None:
        if not _TABLE.fullmatch(table):
            raise Invalid(
                "invalid", f"{table!r} is not the name of a table: letters, digits and _, schema.table or table"
            )
        if type(max_attempts) is not int or not 1 <= max_attempts <= 1_000_000:
            raise Invalid("invalid", f"max_attempts is {max_attempts!r}: 1 to 1000000 are allowed")
        self.table, self.max_attempts = table, max_attempts
        self.authority = table if authority is None else authority
        if not _NAME.fullmatch(self.authority):
            raise Invalid("invalid", f"authority is {authority!r}: 1 to 255 printable ASCII characters are allowed")
        self._lease_ms = milliseconds(lease, "lease", 1_000, 86_400_000)

    def _sql(self, statement: str) -> str:
        return statement.format(table=self.table)

    def _reap(self, system: str) -> Steps[list[Any]]:
        if system == "postgres":
            rows = yield self._sql(_REAP), {"most": self.max_attempts}
            return [row["id"] for row in rows]
        rows = yield self._sql(_MYSQL_EXHAUSTED), {"most": self.max_attempts}
        for row in rows:
            reason = row["reason"] or "no attempt is left"
            if row["state"] == "running":
                last = f"attempt {row['attempt']} was the last of {self.max_attempts}"
                reason = f"{last}, and its lease expired (worker {row['worker'] or '?'})"
            yield self._sql(_MYSQL_REAP), {"id": row["id"], "reason": reason}
        return [row["id"] for row in rows]

    def _take(self, system: str, worker: str) -> Steps[Optional[Attempt]]:
        if not 1 <= len(worker) <= 255:
            raise Invalid("invalid", f"the worker's name has {len(worker)} characters: 1 to 255 are allowed")
        yield from self._reap(system)
        values: dict[str, Any] = {"worker": worker, "lease": self._lease_ms, "most": self.max_attempts}
        rows = yield self._sql(_TAKE if system == "postgres" else _MYSQL_NEXT), values
        if not rows:
            return None
        if system == "mysql":
            values["id"] = rows[0]["id"]
            yield self._sql(_MYSQL_TAKE), values
            rows = yield self._sql("SELECT * FROM {table} WHERE id = %(id)s"), values
        row = rows[0]
        if not _ID.fullmatch(str(row["id"])):
            raise Invalid("invalid", f"the job id {row['id']!r} is neither an integer nor a UUID")
        return Attempt(row["id"], row["attempt"], worker, row, self.authority)

    def _mine(self, system: str, statement: str, attempt: Attempt, **more: Any) -> Steps[None]:
        """A statement that finds the row of the attempt, or else a refusal."""
        values = {"id": attempt.job_id, "attempt": attempt.attempt, **more}
        if system == "mysql":
            rows = yield self._sql(_MYSQL_MINE), values
            if not rows or rows[0]["state"] != "running":
                yield from self._refuse(attempt)
            if statement in _MYSQL:
                yield self._sql(_MYSQL[statement]), values
            return
        rows = yield self._sql(statement), values
        if not rows:
            yield _REFUSE.format(table=self.table, id=attempt.job_id, attempt=attempt.attempt), {}

    def _refuse(self, attempt: Attempt) -> Steps[None]:
        """MySQL does not end a transaction after an error: the rollback comes first."""
        rows = yield self._sql("SELECT attempt FROM {table} WHERE id = %(id)s FOR UPDATE"), {"id": attempt.job_id}
        yield "ROLLBACK", {}
        if rows and rows[0]["attempt"] > attempt.attempt:
            raise Stale(attempt.attempt, rows[0]["attempt"])
        raise Rejected("already_written")

    def _heartbeat(self, system: str, attempt: Attempt) -> Steps[None]:
        return self._mine(system, _HEARTBEAT, attempt, lease=self._lease_ms)

    def _guard(self, system: str, attempt: Attempt) -> Steps[None]:
        return self._mine(system, _GUARD, attempt, lease=self._lease_ms)

    def _finish(self, system: str, attempt: Attempt) -> Steps[None]:
        return self._mine(system, _FINISH, attempt)

    def _finish_unless_ended(self, system: str, attempt: Attempt) -> Steps[None]:
        """At the end of `transact`: the block may have called `finish` or `fail`, under the lock of `guard`."""
        values = {"id": attempt.job_id, "attempt": attempt.attempt}
        if system == "mysql":
            rows = yield self._sql(_MYSQL_MINE), values
            if not rows or rows[0]["state"] == "running":
                yield from self._finish(system, attempt)
        elif not (yield self._sql(_FINISH), values):
            yield from self._mine(system, _ENDED, attempt)

    def _fail(self, system: str, attempt: Attempt, reason: str, retry: bool) -> Steps[None]:
        return self._mine(system, _FAIL, attempt, reason=reason, most=self.max_attempts if retry else 0)


class Attempts(_Attempts):
    __doc__ = _Attempts.__doc__

    def take(self, connection: Any, worker: str) -> Optional[Attempt]:
        """Begins an attempt at the oldest job that is ready or whose lease has expired, and commits; None if there is
        none. A job whose last attempt is over is moved to `failed` on the way."""
        own = _drivers.of_server(_drivers.sync(connection))
        taken: Optional[Attempt] = self._alone(own, self._take(own.system, worker))
        return taken

    def heartbeat(self, connection: Any, attempt: Attempt) -> None:
        """Renews the lease, and commits. It waits while `transact` has the row, which keeps the job by itself."""
        own = _drivers.of_server(_drivers.sync(connection))
        self._alone(own, self._heartbeat(own.system, attempt))

    def reap(self, connection: Any) -> list[Any]:
        """Moves the jobs whose last attempt is over to `failed`, and commits. Returns their ids. `take` does it too."""
        own = _drivers.of_server(_drivers.sync(connection))
        reaped: list[Any] = self._alone(own, self._reap(own.system))
        return reaped

    def guard(self, connection: Any, attempt: Attempt) -> None:
        """First in the transaction that holds all effects: nobody takes the job over before it ends."""
        own = _drivers.of_server(_drivers.sync(connection))
        _drivers.run(own, self._guard(own.system, attempt), _translated)

    def finish(self, connection: Any, attempt: Attempt) -> None:
        """The job is done, if the transaction commits."""
        own = _drivers.of_server(_drivers.sync(connection))
        _drivers.run(own, self._finish(own.system, attempt), _translated)

    def fail(self, connection: Any, attempt: Attempt, reason: str, retry: bool = True) -> None:
        """The job is ready again if attempts are left and `retry` is true; else it has failed."""
        own = _drivers.of_server(_drivers.sync(connection))
        _drivers.run(own, self._fail(own.system, attempt, reason, retry), _translated)

    @contextlib.contextmanager
    def transact(self, connection: Any, attempt: Attempt) -> Iterator[Any]:
        """A transaction with `guard` at its beginning and `finish` at its end, unless the block called `finish` or
        `fail`. It rolls back after an error."""
        own = _drivers.of_server(_drivers.sync(connection))
        first, last = self._guard(own.system, attempt), self._finish_unless_ended(own.system, attempt)
        with _drivers.begun(own, lambda _: first, _translated, lambda: last) as inner:
            yield inner

    def _alone(self, own: _drivers.Sync, steps: Steps[Any]) -> Any:
        kept: list[Any] = []
        first = _keeping(steps, kept)
        with _drivers.begun(own, lambda _: first, _translated, otherwise=_ALONE):
            return kept[0]


class AsyncAttempts(_Attempts):
    """As `Attempts`, with a connection of asyncio."""

    async def take(self, connection: Any, worker: str) -> Optional[Attempt]:
        own = _drivers.of_server(_drivers.asynchronous(connection))
        taken: Optional[Attempt] = await self._alone(own, self._take(own.system, worker))
        return taken

    async def heartbeat(self, connection: Any, attempt: Attempt) -> None:
        own = _drivers.of_server(_drivers.asynchronous(connection))
        await self._alone(own, self._heartbeat(own.system, attempt))

    async def reap(self, connection: Any) -> list[Any]:
        own = _drivers.of_server(_drivers.asynchronous(connection))
        reaped: list[Any] = await self._alone(own, self._reap(own.system))
        return reaped

    async def guard(self, connection: Any, attempt: Attempt) -> None:
        own = _drivers.of_server(_drivers.asynchronous(connection))
        await _drivers.arun(own, self._guard(own.system, attempt), _translated)

    async def finish(self, connection: Any, attempt: Attempt) -> None:
        own = _drivers.of_server(_drivers.asynchronous(connection))
        await _drivers.arun(own, self._finish(own.system, attempt), _translated)

    async def fail(self, connection: Any, attempt: Attempt, reason: str, retry: bool = True) -> None:
        own = _drivers.of_server(_drivers.asynchronous(connection))
        await _drivers.arun(own, self._fail(own.system, attempt, reason, retry), _translated)

    @contextlib.asynccontextmanager
    async def transact(self, connection: Any, attempt: Attempt) -> AsyncIterator[Any]:
        own = _drivers.of_server(_drivers.asynchronous(connection))
        first, last = self._guard(own.system, attempt), self._finish_unless_ended(own.system, attempt)
        async with _drivers.abegun(own, lambda: first, _translated, lambda: last) as inner:
            yield inner

    async def _alone(self, own: _drivers.Async, steps: Steps[Any]) -> Any:
        kept: list[Any] = []
        first = _keeping(steps, kept)
        async with _drivers.abegun(own, lambda: first, _translated, otherwise=_ALONE):
            return kept[0]


_ALONE = "which could be rolled back: an attempt has to count before its work begins, so end that transaction first"


def _translated(error: BaseException) -> Optional[Exception]:
    return None if isinstance(error, Rejected) else rejection(error)


def _keeping(steps: Steps[Any], kept: list[Any]) -> Steps[None]:
    kept.append((yield from steps))
