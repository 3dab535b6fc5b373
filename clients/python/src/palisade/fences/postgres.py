"""PostgreSQL: the fence on your own connection, in your own transaction.

    with postgres.transact(connection, "orders", grant):    # claims first: no older holder can write
        …                                                   # read and write; everything commits together

In a transaction of your own, call `claim` before the first read: a claim that comes later is refused.

`palisade fence install postgres --url …` installs the guard rows. A rejection is an exception, so the transaction rolls
back. Serialization failures and deadlocks come through as the
driver's errors: begin the same transaction again.

`connection` may be a psycopg 3 `Connection`, a SQLAlchemy `Connection` or `Session` (on psycopg or psycopg2), or
Django's `connection`; `transact` takes a SQLAlchemy `Engine`, too. Row factories and cursor factories of your own do
not matter. Functions that begin with `a` take a psycopg 3 `AsyncConnection`. Other drivers, such as asyncpg, are
refused with a `TypeError`."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from typing import Any, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Optional, TypeVar, Union

from ..errors import Invalid
from .errors import FenceNotInstalled, Rejected, Stale
from .rule import CLAIM_RULE, Admitted, Operation, Pass, Record, Rule, pass_of

Holder = Union[int, Pass, Any]
Rows = list[tuple[Any, ...]]
Result = TypeVar("Result")
Steps = Generator[tuple[str, dict[str, Any]], Rows, Result]

#: The longest result that is recorded with a numbered write, in bytes.
MAX_RESULT_BYTES = 65_536

# The functions in the database decide: crates/palisade-fence/sql/postgres/0004_functions.sql. The types are written
# out, because some drivers send text.
_STALE = re.compile(r"token (\d+) is stale: ")
_PASS = "%(authority)s::text, %(lock)s::text, %(strict)s::boolean, %(max_jump)s::bigint"
# If this program stops inside the transaction, the database ends it when the lease is over. Your own setting is first.
_CLAIM = f"""WITH bound AS (SELECT set_config('palisade.lease_left_ms',
    coalesce(nullif(current_setting('palisade.lease_left_ms', true), ''), %(left)s::text, ''), true))
SELECT palisade_claim(%(resource)s, %(token)s::bigint, {_PASS}) FROM bound"""
_CHECK = f"SELECT palisade_check(%(resource)s, %(token)s::bigint, {_PASS})"
_WRITE = f"""SELECT repeated, result
FROM palisade_write(%(resource)s, %(token)s::bigint, %(sequence)s::bigint, %(digest)s::bigint, {_PASS})"""
_RECORD = "SELECT palisade_record(%(resource)s, %(sequence)s::bigint, %(result)s::bytea, %(token)s::bigint)"


@contextlib.contextmanager
def transact(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> Iterator[Any]:
    """A transaction that claims before anything is read. It commits at the end of the block and rolls back after an
    error: then nothing was written. The value of `as` is the connection.

    Raises `Stale` if a newer holder has claimed. If the connection fails during the commit, the error is the driver's,
    and the transaction may have been committed."""
    with transact_all(connection, {resource: holder}, rule) as own:
        yield own


@contextlib.contextmanager
def transact_all(connection: Any, holders: Mapping[str, Holder], rule: Rule = CLAIM_RULE) -> Iterator[Any]:
    """As `transact`, for several resources: it claims all of them or none."""
    steps = _claims(holders, rule)
    try:
        with _begun(connection) as own:
            _run(own, steps)
            yield own
            _needs_success(_executor(own)[0])
    except Exception as error:
        raise _translated(error) or error from error.__cause__ or error


@contextlib.asynccontextmanager
async def atransact(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> AsyncIterator[Any]:
    """As `transact`."""
    async with atransact_all(connection, {resource: holder}, rule) as own:
        yield own


@contextlib.asynccontextmanager
async def atransact_all(connection: Any, holders: Mapping[str, Holder], rule: Rule = CLAIM_RULE) -> AsyncIterator[Any]:
    """As `transact_all`."""
    steps = _claims(holders, rule)
    _aexecutor(connection)
    _needs_no_transaction(int(connection.info.transaction_status) != 0)
    try:
        async with connection.transaction():
            await _arun(connection, steps)
            yield connection
            _needs_success(connection)
    except Exception as error:
        raise _translated(error) or error from error.__cause__ or error


def claim(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> None:
    """Raises the fence: from the commit on, no older token is admitted at the resource."""
    _run(connection, _claims({resource: holder}, rule))


def claim_all(connection: Any, holders: Mapping[str, Holder], rule: Rule = CLAIM_RULE) -> None:
    """Claims several resources at once: all of them or none."""
    _run(connection, _claims(holders, rule))


def check(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> None:
    """Before a read that feeds a write, in a transaction that did not begin with a claim."""
    _run(connection, _check(resource, pass_of(holder), rule))


def write(
    connection: Any,
    resource: str,
    holder: Holder,
    sequence: Optional[int] = None,
    digest: Optional[int] = None,
    rule: Rule = CLAIM_RULE,
) -> Admitted:
    """Before a write. With a `sequence` number and a `digest` (0 – 2^64 − 1) of its content it is safe to repeat:
    `repeat` of the answer says that it was carried out before, and `record.result` is the result recorded then."""
    return _run(connection, _write(resource, pass_of(holder), Operation("write", sequence, digest), rule))


def record(connection: Any, resource: str, holder: Holder, sequence: int, result: bytes) -> None:
    """Records the result of a numbered write, in the transaction that carried it out."""
    _run(connection, _record(resource, pass_of(holder), sequence, result))


async def aclaim(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> None:
    """As `claim`."""
    await _arun(connection, _claims({resource: holder}, rule))


async def aclaim_all(connection: Any, holders: Mapping[str, Holder], rule: Rule = CLAIM_RULE) -> None:
    """As `claim_all`."""
    await _arun(connection, _claims(holders, rule))


async def awrite(
    connection: Any,
    resource: str,
    holder: Holder,
    sequence: Optional[int] = None,
    digest: Optional[int] = None,
    rule: Rule = CLAIM_RULE,
) -> Admitted:
    """As `write`."""
    return await _arun(connection, _write(resource, pass_of(holder), Operation("write", sequence, digest), rule))


async def arecord(connection: Any, resource: str, holder: Holder, sequence: int, result: bytes) -> None:
    """As `record`."""
    await _arun(connection, _record(resource, pass_of(holder), sequence, result))


def rejection(error: BaseException) -> Optional[Rejected]:
    """The rejection if the database refused one of your own statements for the fence, else None: a write to a fenced
    table, or a function of the fence. `error` may be the driver's, or SQLAlchemy's or Django's around it."""
    found, state = _cause(error)
    detail = getattr(getattr(found, "diag", None), "message_detail", None) or ""
    number = int(detail) if detail.isdigit() else None
    if state == "PF001" and number is not None:
        said = _STALE.search(getattr(found.diag, "message_primary", None) or "")
        return Stale(int(said[1]) if said else None, number)
    if state == "PF002":
        return Rejected("tokenless", highest=number)
    if state == "PF005":
        return Rejected("wrong_authority", authority=detail)
    if state == "PF006":
        return Rejected("wrong_lock", lock=detail)
    if state == "PF007":
        highest, bound = detail.split()
        return Rejected("jump", highest=int(highest) or None, bound=int(bound))
    if state == "PF008":
        return Rejected("sequence_stale", last=number)
    if state == "PF009":
        return Rejected("sequence_reused", last=number)
    if state == "PF010":
        return Rejected("already_written")
    return None


def _cause(error: BaseException) -> tuple[Any, Optional[str]]:
    """The driver's error, and its SQLSTATE."""
    found = getattr(error, "orig", None) or error.__cause__ or error
    return found, getattr(found, "sqlstate", None) or getattr(found, "pgcode", None)


def _claims(holders: Mapping[str, Holder], rule: Rule) -> Steps[None]:
    """In the order of the names, so that no two transactions wait for each other. Raises at once for a value that is
    not a holder."""
    if not holders:
        raise ValueError("there is nothing to claim: name a resource")
    claims = []
    for name in sorted(holders, key=str.encode):
        claims.append({**_arguments(name, pass_of(holders[name]), rule), "left": _left_ms(holders[name])})
    return _each(claims)


def _each(claims: list[dict[str, Any]]) -> Steps[None]:
    for arguments in claims:
        yield _CLAIM, arguments


def _left_ms(holder: Holder) -> Optional[str]:
    """The remaining time of a lease."""
    left = getattr(holder, "remaining", None)
    return None if left is None else str(min(max(1, math.ceil(left * 1000)), 999_999_999))


def _check(resource: str, presented: Pass, rule: Rule) -> Steps[None]:
    yield _CHECK, _arguments(resource, presented, rule)


def _write(resource: str, presented: Pass, operation: Operation, rule: Rule) -> Steps[Admitted]:
    digest = operation.digest
    # BIGINT has a sign, a digest has none.
    signed = digest - 2**64 if digest is not None and digest >= 2**63 else digest
    arguments = {**_arguments(resource, presented, rule), "sequence": operation.sequence, "digest": signed}
    ((repeated, result),) = yield _WRITE, arguments
    kept = None if result is None else bytes(result)
    stored = Record(presented.authority, presented.lock, presented.token, True, operation.sequence, digest, kept)
    return Admitted(stored, repeated)


def _arguments(resource: str, presented: Pass, rule: Rule) -> dict[str, Any]:
    if not 1 <= len(resource) <= 255 or not all(" " <= letter <= "~" for letter in resource):
        raise ValueError(f"{resource!r} is not the name of a resource: 1 to 255 printable ASCII characters")
    names = {"resource": resource, "authority": presented.authority, "lock": presented.lock}
    return {**names, "token": presented.token, "strict": rule.strict, "max_jump": rule.max_jump}


def _record(resource: str, presented: Pass, sequence: int, result: bytes) -> Steps[None]:
    if len(result) > MAX_RESULT_BYTES:
        raise ValueError(f"the result has {len(result)} bytes; 0 to {MAX_RESULT_BYTES} are allowed")
    yield _RECORD, {"resource": resource, "token": presented.token, "sequence": sequence, "result": result}


def _run(connection: Any, steps: Steps[Result]) -> Result:
    driver, execute = _executor(connection)
    _needs_transaction(driver)
    rows: Optional[Rows] = None
    try:
        while True:
            statement, arguments = steps.send(rows)  # type: ignore[arg-type]
            rows = execute(statement, arguments)
    except StopIteration as end:
        result: Result = end.value
        return result
    except Exception as error:
        translated = _translated(error)
        if translated is None:
            raise
        raise translated from error


async def _arun(connection: Any, steps: Steps[Result]) -> Result:
    execute = _aexecutor(connection)
    _needs_transaction(connection)
    rows: Optional[Rows] = None
    try:
        while True:
            statement, arguments = steps.send(rows)  # type: ignore[arg-type]
            rows = await execute(statement, arguments)
    except StopIteration as end:
        result: Result = end.value
        return result
    except Exception as error:
        translated = _translated(error)
        if translated is None:
            raise
        raise translated from error


def _executor(connection: Any) -> tuple[Any, Any]:
    """The driver's own connection, and how to run a statement."""
    given = connection
    if hasattr(connection, "get_bind") and hasattr(connection, "connection") and not _is_async(connection):
        connection = connection.connection()  # a Session
    if hasattr(connection, "exec_driver_sql") and not _is_async(connection):

        def sqlalchemy(statement: str, arguments: dict[str, Any]) -> Rows:
            return [tuple(row) for row in connection.exec_driver_sql(statement, arguments)]

        driver = connection.connection.driver_connection
        if not hasattr(driver, "info"):
            raise _unsupported(given, driver)
        return driver, sqlalchemy
    if hasattr(connection, "ensure_connection"):
        connection.ensure_connection()

        def django(statement: str, arguments: dict[str, Any]) -> Rows:
            with connection.cursor() as cursor:
                cursor.execute(statement, arguments)
                return [tuple(row) for row in cursor.fetchall()]

        return connection.connection, django

    psycopg = sys.modules.get("psycopg")
    if psycopg is None or not isinstance(connection, psycopg.Connection):
        raise _unsupported(given)

    def own_cursor(statement: str, arguments: dict[str, Any]) -> Rows:
        # The connection's own factories may make anything of rows and parameters.
        with psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            rows: Rows = cursor.execute(statement, arguments).fetchall()
            return rows

    return connection, own_cursor


def _aexecutor(connection: Any) -> Callable[[str, dict[str, Any]], Awaitable[Rows]]:
    psycopg = sys.modules.get("psycopg")
    if psycopg is None or not isinstance(connection, psycopg.AsyncConnection):
        raise _unsupported(connection)

    async def own_cursor(statement: str, arguments: dict[str, Any]) -> Rows:
        async with psycopg.AsyncCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(statement, arguments)
            rows: Rows = await cursor.fetchall()
            return rows

    return own_cursor


@contextlib.contextmanager
def _begun(connection: Any) -> Iterator[Any]:
    """A transaction that is not inside another one, which may have read before."""
    if hasattr(connection, "exec_driver_sql") and not _is_async(connection):
        _executor(connection)
        _needs_no_transaction(connection.in_transaction())
        with connection.begin():
            yield connection
    elif hasattr(connection, "get_bind") and hasattr(connection, "connection") and not _is_async(connection):
        _needs_no_transaction(connection.in_transaction())
        with connection.begin():
            yield connection
    elif hasattr(connection, "begin") and hasattr(connection, "dialect") and not _is_async(connection):
        with connection.begin() as own:
            yield own
    elif hasattr(connection, "ensure_connection"):
        _needs_no_transaction(connection.in_atomic_block)
        atomic = sys.modules["django.db.transaction"].atomic
        with atomic(using=connection.alias):
            yield connection
    else:
        driver, _ = _executor(connection)
        _needs_no_transaction(int(driver.info.transaction_status) != 0)
        with driver.transaction():
            yield connection


def _needs_no_transaction(is_in_one: bool) -> None:
    if is_in_one:
        raise ValueError(
            "transact begins a transaction of its own, and this connection is in one, which may have read already: "
            "end it first, or call claim before the first read"
        )


def _needs_success(driver: Any) -> None:
    """PostgreSQL answers COMMIT with a rollback after an error, also if the error was caught."""
    if int(driver.info.transaction_status) == 3:
        raise Invalid("rolled_back", "the transaction is rolled back, because one of its statements had failed")


def _is_async(connection: Any) -> bool:
    return any(of.__module__.startswith("sqlalchemy.ext.asyncio") for of in type(connection).__mro__)


def _unsupported(given: Any, driver: Any = None) -> TypeError:
    what = f"{type(given).__module__}.{type(given).__qualname__}"
    if driver is not None:
        what += f" on {type(driver).__module__.partition('.')[0]}"
    return TypeError(
        f"{what} was given. transact, claim, check, write and record take a psycopg 3 Connection, a SQLAlchemy "
        "Connection or Session on psycopg or psycopg2, or Django's connection; atransact, aclaim, awrite and arecord "
        "take a psycopg 3 AsyncConnection. With SQLAlchemy's AsyncConnection or AsyncSession on psycopg: "
        "await connection.run_sync(lambda sync: postgres.claim(sync, …))"
    )


def _needs_transaction(driver: Any) -> None:
    idle = int(driver.info.transaction_status) == 0
    if driver.autocommit and idle:
        raise ValueError("a fence needs a transaction: begin one, then claim and write in it")


def _translated(error: Exception) -> Optional[Exception]:
    rejected = rejection(error)
    if rejected is not None:
        return rejected
    found, state = _cause(error)
    if state in ("42P01", "42883") and "palisade_" in str(found):
        return FenceNotInstalled(f"{found}; run `palisade fence install postgres`".replace("\n", " "))
    if state == "PF012":
        return Invalid("read_before_claim", str(found).replace("\n", " "))
    if state == "PF004":
        return ValueError(str(found).replace("\n", " "))
    return None
