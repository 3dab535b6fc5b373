"""PostgreSQL: the fence on your own connection, in your own transaction.

    with connection.transaction():                      # psycopg 3, SQLAlchemy, Django
        postgres.claim(connection, "orders", grant)     # first: raises the fence
        …                                               # then read and write; everything commits together

`palisade fence install postgres --url …` installs the guard rows. A rejection is an exception, so the transaction rolls
back. A claim must be the first statement of its transaction. Serialization failures and deadlocks come through as the
driver's errors: begin the same transaction again.

`connection` may be a psycopg 3 `Connection`, a SQLAlchemy `Connection` or `Session` (on psycopg or psycopg2), or
Django's `connection`. Functions that begin with `a` take a psycopg 3 `AsyncConnection`."""

from __future__ import annotations

from typing import Any, Generator, Mapping, Optional, TypeVar, Union

from .errors import FenceNotInstalled, Rejected, Stale
from .rule import CLAIM, CLAIM_RULE, READ, Admitted, Operation, Pass, Record, Rule, decide, pass_of

Holder = Union[int, Pass, Any]
Rows = list[tuple[Any, ...]]
Result = TypeVar("Result")
Steps = Generator[tuple[str, dict[str, Any]], Rows, Result]

#: The longest result that is recorded with a numbered write, in bytes.
MAX_RESULT_BYTES = 65_536

# The statements of the Rust fence (crates/palisade-fence/src/postgres/guard.rs), with names for the parameters and their
# types written out, because some drivers send text. Every operation writes the guard row, even when nothing changes:
# with only a lock, a waiting transaction at REPEATABLE READ would go on with an outdated view.
_TAKE = """WITH claims AS MATERIALIZED (
    SELECT resource FROM palisade_fence WHERE resource = ANY(%(names)s::text[])
        AND (SELECT count(*) FROM palisade_fence WHERE resource = ANY(%(names)s::text[]))
            = cardinality(%(names)s::text[])
    ORDER BY resource FOR UPDATE)
UPDATE palisade_fence AS g SET updated_at = clock_timestamp() FROM claims WHERE g.resource = claims.resource
RETURNING g.resource::text, g.authority::text, g.lock::text, g.token, g.written, g.sequence, g.digest, g.result,
    set_config('palisade.tokens', (coalesce(nullif(current_setting('palisade.tokens', true), ''), '{}')::jsonb
        || jsonb_object(%(names)s::text[], %(tokens)s::text[]))::text, true)"""
_CREATE = """INSERT INTO palisade_fence (resource)
SELECT name FROM unnest(%(names)s::text[]) AS name ORDER BY name COLLATE "C" ON CONFLICT (resource) DO NOTHING
RETURNING 1"""
_STORE = """UPDATE palisade_fence SET authority = %(authority)s, lock = %(lock)s, token = %(token)s,
    written = %(written)s, sequence = %(sequence)s, digest = %(digest)s, result = %(result)s,
    updated_at = clock_timestamp()
WHERE resource = %(resource)s RETURNING 1"""
_RECORD = """UPDATE palisade_fence SET result = %(result)s, updated_at = clock_timestamp()
WHERE resource = %(resource)s AND token = %(token)s AND sequence = %(sequence)s RETURNING 1"""
_FORGET = "SELECT set_config('palisade.tokens', '', true)"


def claim(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> None:
    """Raises the fence: from the commit on, no older token is admitted at the resource."""
    _run(connection, _judge({resource: pass_of(holder)}, CLAIM, rule))


def claim_all(connection: Any, holders: Mapping[str, Holder], rule: Rule = CLAIM_RULE) -> None:
    """Claims several resources at once: all of them or none."""
    _run(connection, _judge({name: pass_of(holder) for name, holder in holders.items()}, CLAIM, rule))


def check(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> None:
    """Before a read that feeds a write, in a transaction that did not begin with a claim."""
    _run(connection, _judge({resource: pass_of(holder)}, READ, rule))


def write(
    connection: Any,
    resource: str,
    holder: Holder,
    sequence: Optional[int] = None,
    digest: Optional[int] = None,
    rule: Rule = CLAIM_RULE,
) -> Admitted:
    """Before a write. With a `sequence` number and a `digest` (0 – 2^64 − 1) of its content it is safe to repeat:
    `repeat` of the answer says that it was carried out before, and `record.result` what was recorded then."""
    return _run(connection, _judge({resource: pass_of(holder)}, Operation("write", sequence, digest), rule))


def record(connection: Any, resource: str, holder: Holder, sequence: int, result: bytes) -> None:
    """Records the result of a numbered write, in the transaction that carried it out."""
    _run(connection, _record(resource, pass_of(holder), sequence, result))


async def aclaim(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> None:
    """As `claim`."""
    await _arun(connection, _judge({resource: pass_of(holder)}, CLAIM, rule))


async def aclaim_all(connection: Any, holders: Mapping[str, Holder], rule: Rule = CLAIM_RULE) -> None:
    """As `claim_all`."""
    await _arun(connection, _judge({name: pass_of(holder) for name, holder in holders.items()}, CLAIM, rule))


async def awrite(
    connection: Any,
    resource: str,
    holder: Holder,
    sequence: Optional[int] = None,
    digest: Optional[int] = None,
    rule: Rule = CLAIM_RULE,
) -> Admitted:
    """As `write`."""
    operation = Operation("write", sequence, digest)
    return await _arun(connection, _judge({resource: pass_of(holder)}, operation, rule))


async def arecord(connection: Any, resource: str, holder: Holder, sequence: int, result: bytes) -> None:
    """As `record`."""
    await _arun(connection, _record(resource, pass_of(holder), sequence, result))


def rejection(error: BaseException) -> Optional[Rejected]:
    """The rejection if a sticky trigger refused one of your own statements, else None. `error` may be the driver's, or
    SQLAlchemy's or Django's around it."""
    found = getattr(error, "orig", None) or error.__cause__ or error
    state = getattr(found, "sqlstate", None) or getattr(found, "pgcode", None)
    detail = getattr(getattr(found, "diag", None), "message_detail", None) or ""
    if state == "PF001" and detail.isdigit():
        return Stale(int(detail))
    if state == "PF002":
        return Rejected("tokenless", highest=int(detail) if detail.isdigit() else None)
    return None


def _judge(passes: dict[str, Pass], operation: Operation, rule: Rule) -> Steps[Admitted]:
    names = sorted(passes, key=str.encode)
    for name in names:
        if not 1 <= len(name) <= 255 or not all(" " <= letter <= "~" for letter in name):
            raise ValueError(f"{name!r} is not the name of a resource: 1 ..= 255 printable ASCII characters")
    arguments = {"names": names, "tokens": [str(passes[name].token) for name in names]}
    rows = yield _TAKE, arguments
    if len(rows) < len(names):
        yield _CREATE, {"names": names}
        rows = yield _TAKE, arguments
    if len(rows) < len(names):
        raise FenceNotInstalled("a guard row vanished: is row level security hiding it?")
    before = {row[0]: _record_of(row) for row in rows}
    try:
        decided = {name: decide(before[name], passes[name], operation, rule) for name in names}
    except Rejected:
        yield _FORGET, {}
        raise
    for name, admitted in decided.items():
        if admitted.record != before[name]:
            yield _STORE, {"resource": name, **_columns(admitted.record)}
    return decided[names[-1]]


def _record(resource: str, presented: Pass, sequence: int, result: bytes) -> Steps[None]:
    if len(result) > MAX_RESULT_BYTES:
        raise ValueError(f"the result has {len(result)} bytes; 0 ..= {MAX_RESULT_BYTES} are allowed")
    arguments = {"resource": resource, "token": presented.token, "sequence": sequence, "result": result}
    rows = yield _RECORD, arguments
    if not rows:
        raise ValueError(f"{resource}: the last write there is not number {sequence} of token {presented.token}")


def _record_of(row: tuple[Any, ...]) -> Record:
    result = None if row[7] is None else bytes(row[7])
    digest = None if row[6] is None else row[6] % 2**64
    return Record(row[1], row[2], row[3], row[4], row[5], digest, result)


def _columns(record: Record) -> dict[str, Any]:
    digest = record.digest
    # BIGINT has a sign, a digest has none.
    signed = digest - 2**64 if digest is not None and digest >= 2**63 else digest
    return {
        "authority": record.authority,
        "lock": record.lock,
        "token": record.token,
        "written": record.written,
        "sequence": record.sequence,
        "digest": signed,
        "result": record.result,
    }


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
    _needs_transaction(connection)
    rows: Optional[Rows] = None
    try:
        while True:
            statement, arguments = steps.send(rows)  # type: ignore[arg-type]
            rows = await (await connection.execute(statement, arguments)).fetchall()
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
    if hasattr(connection, "get_bind") and hasattr(connection, "connection"):
        connection = connection.connection()  # a Session
    if hasattr(connection, "exec_driver_sql"):

        def sqlalchemy(statement: str, arguments: dict[str, Any]) -> Rows:
            return [tuple(row) for row in connection.exec_driver_sql(statement, arguments)]

        return connection.connection.driver_connection, sqlalchemy
    if hasattr(connection, "ensure_connection"):
        connection.ensure_connection()

        def django(statement: str, arguments: dict[str, Any]) -> Rows:
            with connection.cursor() as cursor:
                cursor.execute(statement, arguments)
                return [tuple(row) for row in cursor.fetchall()]

        return connection.connection, django

    def psycopg(statement: str, arguments: dict[str, Any]) -> Rows:
        with connection.cursor() as cursor:
            cursor.execute(statement, arguments)
            return [tuple(row) for row in cursor.fetchall()]

    return connection, psycopg


def _needs_transaction(driver: Any) -> None:
    idle = int(driver.info.transaction_status) == 0
    if driver.autocommit and idle:
        raise ValueError("a fence needs a transaction: begin one, claim in it, and write in the same")


def _translated(error: Exception) -> Optional[FenceNotInstalled]:
    found = getattr(error, "orig", None) or error.__cause__ or error
    state = getattr(found, "sqlstate", None) or getattr(found, "pgcode", None)
    if state == "42P01" and "palisade_fence" in str(found):
        return FenceNotInstalled(f"{found}; run `palisade fence install postgres`".replace("\n", " "))
    return None
