"""MySQL and MariaDB: the fence on your own connection, in your own transaction.

    with mysql.transact(connection, "orders", grant):       # claims first: no older holder can write
        …                                                   # read and write; everything commits together

`palisade fence install mysql --url …` installs the procedures, which decide. All tables must be InnoDB. MySQL does not
end a transaction after an error: after a rejection roll back, as `transact` does. Deadlocks (1213), lock time-outs
(1205) and error 1615 come through as the driver's errors: begin the same transaction again.

In a transaction of your own, call `claim` before the first read. MariaDB ends a transaction of a claim that stays idle
for 10 seconds, or for longer than the rest of the lease. That bound is the session's: `transact` gives the connection
its own one back; in a transaction of your own, `CALL palisade_end(TRUE)` commits and does so.

`connection` may be of PyMySQL or mysqlclient, a SQLAlchemy `Engine`, `Connection` or `Session`, or Django's
`connection`. mysqlclient does not say whether it is in a transaction: of its connections `transact` takes none.
Functions that begin with `a` take a connection of aiomysql, or SQLAlchemy's asyncio classes."""

from __future__ import annotations

import contextlib
from typing import Any, AsyncIterator, Iterator, Mapping, Optional, Union

from ..errors import Invalid, OperatorNeeded, PalisadeError
from . import _drivers, _rejections
from ._drivers import Steps
from ._reported import reported
from .errors import FenceNotInstalled
from .postgres import _left_ms, _resource
from .rule import CLAIM_RULE, Pass, Rule, pass_of

Holder = Union[int, Pass, Any]


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
    with _drivers.begun(_own(connection), lambda _: steps, _translated, _end, lambda: _end(False)) as own:
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
    async with _drivers.abegun(_aown(connection), lambda: steps, _translated, _end, lambda: _end(False)) as own:
        yield own


def claim(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> None:
    """Raises the fence: from the commit on, no older token is admitted at the resource."""
    _drivers.run(_own(connection), _claims({resource: holder}, rule), _translated)


def claim_all(connection: Any, holders: Mapping[str, Holder], rule: Rule = CLAIM_RULE) -> None:
    """Claims several resources at once. After an error roll back: some may be claimed."""
    _drivers.run(_own(connection), _claims(holders, rule), _translated)


async def aclaim(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> None:
    """As `claim`."""
    await _drivers.arun(_aown(connection), _claims({resource: holder}, rule), _translated)


async def aclaim_all(connection: Any, holders: Mapping[str, Holder], rule: Rule = CLAIM_RULE) -> None:
    """As `claim_all`."""
    await _drivers.arun(_aown(connection), _claims(holders, rule), _translated)


def _own(connection: Any) -> _drivers.Sync:
    return _drivers.only(_drivers.sync(connection), "mysql")


def _aown(connection: Any) -> _drivers.Async:
    return _drivers.only(_drivers.asynchronous(connection), "mysql")


def _claims(holders: Mapping[str, Holder], rule: Rule) -> Steps[None]:
    """In the order of the names, so that no two transactions wait for each other. Raises at once for a value that is
    not a holder."""
    if not holders:
        raise ValueError("there is nothing to claim: name a resource")
    presented = {_resource(name): pass_of(holder) for name, holder in holders.items()}
    known = [int(left) for left in map(_left_ms, holders.values()) if left is not None]
    # If this program stops inside the transaction, MariaDB ends it when the lease is over.
    first = f"SET @palisade_lease_left_ms = {min(known) if known else 'NULL'}"
    calls = []
    jump = "NULL" if rule.max_jump is None else int(rule.max_jump)
    for name in sorted(presented, key=str.encode):
        own = presented[name]
        holder = f"{_hex(name)}, {own.token}, {_hex(own.authority)}, {_hex(own.lock)}"
        call = f"CALL palisade_judge({holder}, FALSE, NULL, NULL, {bool(rule.strict)}, {jump})"
        calls.append((own, name, call))
    return _each(first, calls)


def _each(first: str, calls: list[tuple[Pass, str, str]]) -> Steps[None]:
    yield first, {}
    for presented, name, call in calls:
        with reported(presented, name, "claim"):
            yield call, {}


def _end(commit: bool = True) -> Steps[None]:
    """The procedure commits: between a commit and another statement this program could stop with the wrong bound."""
    yield f"CALL palisade_end({commit})", {}


def _hex(name: Optional[str]) -> str:
    """The session's sql_mode decides how a quote is written."""
    return "NULL" if name is None else f"x'{name.encode().hex()}'"


def _translated(error: BaseException) -> Optional[Exception]:
    if isinstance(error, PalisadeError):
        return None
    rejected = _rejections.rejection(error)
    if rejected is not None:
        return rejected
    found, state, said = _rejections.said_by(error)
    number = found.args[0] if _rejections.is_mysql(found) else None
    if number in (1305, 1146) and "palisade_" in said:
        older = "it was never installed, or by an older version: " if number == 1305 else ""
        return FenceNotInstalled(f"{said}; {older}run `palisade fence install mysql`")
    if number == 1370 and "palisade_" in said:
        advice = "the user needs the right to call the fence: GRANT EXECUTE ON the database"
        return OperatorNeeded("forbidden", f"{said}; {advice}")
    if state == "PF012" or (number == 1644 and "read before it claimed" in said):
        return Invalid("read_before_claim", said)
    if state == "PF013" or (number == 1644 and "a fence needs a transaction" in said):
        return ValueError(said)
    return None
