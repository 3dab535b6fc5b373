"""PostgreSQL: the fence on your own connection, in your own transaction.

    with postgres.transact(connection, "orders", grant):    # claims first: no older holder can write
        …                                                   # read and write; everything commits together

In a transaction of your own, call `claim` before the first read: a claim that comes later is refused.

`palisade fence install postgres --url …` installs the guard rows. A rejection is an exception, so the transaction rolls
back. Serialization failures and deadlocks come through as the
driver's errors: begin the same transaction again.

`connection` may be a psycopg 3 `Connection`, a SQLAlchemy `Connection` or `Session`, or Django's `connection`;
`transact` takes a SQLAlchemy `Engine`, too. Row factories and cursor factories of your own do not matter. Functions
that begin with `a` take a psycopg 3 `AsyncConnection`, an asyncpg connection, or SQLAlchemy's `AsyncConnection` or
`AsyncSession`; `atransact` takes its `AsyncEngine`, too. Other connections are refused with a `TypeError`.

To fence every transaction of a SQLAlchemy session or of Django, see `palisade.sqlalchemy` and `palisade.django`."""

from __future__ import annotations

import contextlib
import math
from typing import Any, AsyncIterator, Iterator, Mapping, Optional, Union

from ..errors import Invalid, PalisadeError
from . import _drivers, _rejections
from ._drivers import Steps
from ._reported import reported
from .errors import FenceNotInstalled, Rejected
from .rule import CLAIM_RULE, Admitted, Operation, Pass, Record, Rule, pass_of

Holder = Union[int, Pass, Any]

#: The longest result that is recorded with a numbered write, in bytes.
MAX_RESULT_BYTES = 65_536

# The functions in the database decide: crates/palisade-fence/sql/postgres/0004_functions.sql. The types are written
# out, because some drivers send text.
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
    with _drivers.begun(_own(connection), lambda _: steps, _translated) as own:
        yield own


@contextlib.asynccontextmanager
async def atransact(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> AsyncIterator[Any]:
    """As `transact`."""
    async with atransact_all(connection, {resource: holder}, rule) as own:
        yield own


@contextlib.asynccontextmanager
async def atransact_all(connection: Any, holders: Mapping[str, Holder], rule: Rule = CLAIM_RULE) -> AsyncIterator[Any]:
    """As `transact_all`."""
    steps = _claims(holders, rule)
    async with _drivers.abegun(_aown(connection), lambda: steps, _translated) as own:
        yield own


def claim(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> None:
    """Raises the fence: from the commit on, no older token is admitted at the resource."""
    _drivers.run(_own(connection), _claims({resource: holder}, rule), _translated)


def claim_all(connection: Any, holders: Mapping[str, Holder], rule: Rule = CLAIM_RULE) -> None:
    """Claims several resources at once: all of them or none."""
    _drivers.run(_own(connection), _claims(holders, rule), _translated)


def check(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> None:
    """Before a read that feeds a write, in a transaction that did not begin with a claim."""
    _drivers.run(_own(connection), _check(resource, pass_of(holder), rule), _translated)


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
    return _drivers.run(
        _own(connection), _write(resource, pass_of(holder), Operation("write", sequence, digest), rule), _translated
    )


def record(connection: Any, resource: str, holder: Holder, sequence: int, result: bytes) -> None:
    """Records the result of a numbered write, in the transaction that carried it out."""
    _drivers.run(_own(connection), _record(resource, pass_of(holder), sequence, result), _translated)


async def aclaim(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> None:
    """As `claim`."""
    await _drivers.arun(_aown(connection), _claims({resource: holder}, rule), _translated)


async def aclaim_all(connection: Any, holders: Mapping[str, Holder], rule: Rule = CLAIM_RULE) -> None:
    """As `claim_all`."""
    await _drivers.arun(_aown(connection), _claims(holders, rule), _translated)


async def awrite(
    connection: Any,
    resource: str,
    holder: Holder,
    sequence: Optional[int] = None,
    digest: Optional[int] = None,
    rule: Rule = CLAIM_RULE,
) -> Admitted:
    """As `write`."""
    return await _drivers.arun(
        _aown(connection), _write(resource, pass_of(holder), Operation("write", sequence, digest), rule), _translated
    )


async def arecord(connection: Any, resource: str, holder: Holder, sequence: int, result: bytes) -> None:
    """As `record`."""
    await _drivers.arun(_aown(connection), _record(resource, pass_of(holder), sequence, result), _translated)


def rejection(error: BaseException) -> Optional[Rejected]:
    """As `palisade.fences.rejection`, which knows every database."""
    return _rejections.rejection(error)


def _claims(holders: Mapping[str, Holder], rule: Rule) -> Steps[None]:
    """In the order of the names, so that no two transactions wait for each other. Raises at once for a value that is
    not a holder."""
    if not holders:
        raise ValueError("there is nothing to claim: name a resource")
    claims = []
    for name in sorted(holders, key=str.encode):
        presented = pass_of(holders[name])
        claims.append((presented, {**_arguments(name, presented, rule), "left": _left_ms(holders[name])}))
    return _each(claims)


def _each(claims: list[tuple[Pass, dict[str, Any]]]) -> Steps[None]:
    for presented, arguments in claims:
        with reported(presented, arguments["resource"], "claim"):
            yield _CLAIM, arguments


def _left_ms(holder: Holder) -> Optional[str]:
    """The remaining time of a lease."""
    left = getattr(holder, "remaining", None)
    return None if left is None else str(min(max(1, math.ceil(left * 1000)), 999_999_999))


def _check(resource: str, presented: Pass, rule: Rule) -> Steps[None]:
    with reported(presented, resource, "read"):
        yield _CHECK, _arguments(resource, presented, rule)


def _write(resource: str, presented: Pass, operation: Operation, rule: Rule) -> Steps[Admitted]:
    digest = operation.digest
    # BIGINT has a sign, a digest has none.
    signed = digest - 2**64 if digest is not None and digest >= 2**63 else digest
    arguments = {**_arguments(resource, presented, rule), "sequence": operation.sequence, "digest": signed}
    with reported(presented, resource, "write"):
        (row,) = yield _WRITE, arguments
    kept = None if row["result"] is None else bytes(row["result"])
    stored = Record(presented.authority, presented.lock, presented.token, True, operation.sequence, digest, kept)
    return Admitted(stored, row["repeated"])


def _arguments(resource: str, presented: Pass, rule: Rule) -> dict[str, Any]:
    names = {"resource": _resource(resource), "authority": presented.authority, "lock": presented.lock}
    return {**names, "token": presented.token, "strict": rule.strict, "max_jump": rule.max_jump}


def _resource(name: str) -> str:
    if not 1 <= len(name) <= 255 or not all(" " <= letter <= "~" for letter in name):
        raise ValueError(f"{name!r} is not the name of a resource: 1 to 255 printable ASCII characters")
    return name


def _record(resource: str, presented: Pass, sequence: int, result: bytes) -> Steps[None]:
    if len(result) > MAX_RESULT_BYTES:
        raise ValueError(f"the result has {len(result)} bytes; 0 to {MAX_RESULT_BYTES} are allowed")
    with reported(presented, resource, "write"):
        yield _RECORD, {"resource": resource, "token": presented.token, "sequence": sequence, "result": result}


def _own(connection: Any) -> _drivers.Sync:
    return _drivers.only(_drivers.sync(connection), "postgres")


def _aown(connection: Any) -> _drivers.Async:
    return _drivers.only(_drivers.asynchronous(connection), "postgres")


def _translated(error: BaseException) -> Optional[Exception]:
    if isinstance(error, PalisadeError):
        return None
    rejected = _rejections.rejection(error)
    if rejected is not None:
        return rejected
    _, state, said = _rejections.said_by(error)
    if state in ("42P01", "42883") and "palisade_" in said:
        return FenceNotInstalled(f"{said}; run `palisade fence install postgres`")
    if state == "PF012":
        return Invalid("read_before_claim", said)
    if state == "PF004":
        return ValueError(said)
    return None
