"""SQLite: the fence on your own connection, in your own transaction.

    with sqlite.transact(connection, "orders", grant):      # claims first: no older holder can write
        …                                                   # read and write; everything commits together

In a transaction of your own, call `claim` before the first read. A rejection is an exception: roll back, and write
nothing more.

`palisade fence install sqlite sqlite:///FILE` creates the table of the fence, in the file that has the data; holders in
other languages may share it. `connection` may be of the module sqlite3, a SQLAlchemy `Engine`, `Connection` or
`Session`, or Django's `connection`. SQLite ≥ 3.35 is needed. `PRAGMA synchronous = FULL`, the default, makes an
acknowledged commit durable. A network file system that fakes locks is not safe.

SQLite locks the file. A claim takes its one write lock, because its first statement writes, and waits for it as long as
the connection's `timeout` says. After that the driver's error "database is locked" comes through: begin the same
transaction again. A process that is stopped inside its transaction holds the file until it goes on or ends;
`palisade fence unblock` ends it. A connection of Python 3.12 with `autocommit=False` is always in a transaction, so
`transact` does not take it: call `claim` first after a commit.

A claim also gives the connection the function `palisade_token`, which the triggers of a table ask that was fenced with
`palisade fence install sqlite sqlite:///FILE TABLE`. They refuse every write without the newest token."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from typing import Any, Iterator, Mapping, Optional, Union

from ..errors import Invalid, OperatorNeeded, PalisadeError
from . import _drivers, _rejections
from ._drivers import Steps
from ._reported import reported
from .errors import FenceNotInstalled, Rejected
from .postgres import MAX_RESULT_BYTES, _resource
from .rule import CLAIM, CLAIM_RULE, READ, Admitted, Operation, Pass, Record, Rule, decide, pass_of

Holder = Union[int, Pass, Any]

# The statements of crates/palisade-fence/src/sqlite/guard.rs. The file itself is named, because a temporary table or an
# attached file of that name would have another mark. The form of the time is an argument: some drivers read a percent
# sign.
_NOW = {"now": "%Y-%m-%dT%H:%M:%fZ"}
# It takes the write lock, whether the row exists or not; only then is the row read.
_TAKE = """UPDATE main.palisade_fence SET updated_at = strftime(%(now)s, 'now') WHERE resource = %(resource)s
RETURNING resource, authority, lock, token, written, sequence, digest, result"""
_CREATE = "INSERT INTO main.palisade_fence (resource) VALUES (%(resource)s)"
_STORE = """UPDATE main.palisade_fence SET authority = %(authority)s, lock = %(lock)s, token = %(token)s,
    written = %(written)s, sequence = %(sequence)s, digest = %(digest)s, result = %(result)s
WHERE resource = %(resource)s"""
_RECORD = """UPDATE main.palisade_fence SET result = %(result)s, updated_at = strftime(%(now)s, 'now')
WHERE resource = %(resource)s AND token = %(token)s AND sequence = %(sequence)s RETURNING resource"""
# It is gone if SQLite rolled back by itself, or the block committed: then other statements would be without the claim.
_SAVEPOINT = "palisade_claimed"
_NO_FUNCTION = "no such function: palisade_token"


@contextlib.contextmanager
def transact(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> Iterator[Any]:
    """A transaction that claims before anything is read. It commits at the end of the block and rolls back after an
    error: then nothing was written. The value of `as` is the connection.

    Raises `Stale` if a newer holder has claimed."""
    with transact_all(connection, {resource: holder}, rule) as own:
        yield own


@contextlib.contextmanager
def transact_all(connection: Any, holders: Mapping[str, Holder], rule: Rule = CLAIM_RULE) -> Iterator[Any]:
    """As `transact`, for several resources: it claims all of them or none."""
    presented = _presented(holders)

    def first(inner: _drivers.Sync) -> Steps[None]:
        yield from _judge(inner, presented, CLAIM, rule)
        yield f"SAVEPOINT {_SAVEPOINT}", {}

    with _drivers.begun(_own(connection), first, _translated, _release) as own:
        yield own


def claim(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> None:
    """Raises the fence: from the commit on, no older token is admitted at the resource."""
    claim_all(connection, {resource: holder}, rule)


def claim_all(connection: Any, holders: Mapping[str, Holder], rule: Rule = CLAIM_RULE) -> None:
    """Claims several resources at once: all of them or none."""
    _run(connection, _presented(holders), CLAIM, rule)


def check(connection: Any, resource: str, holder: Holder, rule: Rule = CLAIM_RULE) -> None:
    """Before a read that feeds a write, in a transaction that did not begin with a claim."""
    _run(connection, _presented({resource: holder}), READ, rule)


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
    return _run(connection, _presented({resource: holder}), Operation("write", sequence, digest), rule)


def record(connection: Any, resource: str, holder: Holder, sequence: int, result: bytes) -> None:
    """Records the result of a numbered write, in the transaction that carried it out."""
    if len(result) > MAX_RESULT_BYTES:
        raise ValueError(f"the result has {len(result)} bytes; 0 to {MAX_RESULT_BYTES} are allowed")
    presented = pass_of(holder)
    own = _own(connection)
    _drivers.run(own, _recorded(_resource(resource), presented.token, sequence, result), _translated)


def rejection(error: BaseException) -> Optional[Rejected]:
    """As `palisade.fences.rejection`, which knows every database."""
    return _rejections.rejection(error)


def _own(connection: Any) -> _drivers.Sync:
    own = _drivers.only(_drivers.sync(connection), "sqlite")
    if sqlite3.sqlite_version_info < (3, 35):
        raise OperatorNeeded("unsupported", f"SQLite {sqlite3.sqlite_version} is too old: 3.35 or newer is needed")
    return own


def _run(connection: Any, presented: Mapping[str, Pass], operation: Operation, rule: Rule) -> Admitted:
    own = _own(connection)
    return _drivers.run(own, _judge(own, presented, operation, rule), _translated)


def _presented(holders: Mapping[str, Holder]) -> dict[str, Pass]:
    if not holders:
        raise ValueError("there is nothing to claim: name a resource")
    return {_resource(name): pass_of(holders[name]) for name in sorted(holders, key=str.encode)}


def claims(own: _drivers.Sync, holders: Mapping[str, Holder], rule: Rule) -> Steps[Any]:
    """The steps of a claim."""
    return _judge(own, _presented(holders), CLAIM, rule)


def _judge(own: _drivers.Sync, presented: Mapping[str, Pass], operation: Operation, rule: Rule) -> Steps[Admitted]:
    """Stores nothing unless every holder is admitted. Returns the answer to the last one."""
    found: dict[str, Record] = {}
    for name in presented:
        rows = yield _TAKE, {"resource": name, **_NOW}
        if not rows:
            yield _CREATE, {"resource": name}
        found[name] = _record_of(rows[0]) if rows else Record()
    raw = own.raw()
    decided: dict[str, Admitted] = {}
    try:
        for name, one in presented.items():
            with reported(one, name, operation.kind):
                decided[name] = decide(found[name], one, operation, rule)
    except Rejected:
        # A rejected holder's connection no longer shows its tokens to the triggers.
        for name in presented:
            _show(raw, name, None)
        raise
    for name, admitted in decided.items():
        if admitted.record != found[name]:
            yield _STORE, {"resource": name, **_columns(admitted.record)}
    for name, one in presented.items():
        _show(raw, name, one.token)
    return decided[list(presented)[-1]]


def _recorded(resource: str, token: int, sequence: int, result: bytes) -> Steps[None]:
    rows = yield _RECORD, {"resource": resource, "token": token, "sequence": sequence, "result": result, **_NOW}
    if not rows:
        raise ValueError(f"{resource}: the last write there is not number {sequence} of token {token}")


def _release() -> Steps[None]:
    yield f"RELEASE {_SAVEPOINT}", {}


def _record_of(row: Mapping[str, Any]) -> Record:
    digest = row["digest"]
    return Record(
        authority=_text(row["authority"]),
        lock=_text(row["lock"]),
        token=row["token"],
        written=bool(row["written"]),
        sequence=row["sequence"],
        # INTEGER has a sign, a digest has none.
        digest=digest + 2**64 if digest is not None and digest < 0 else digest,
        result=None if row["result"] is None else bytes(row["result"]),
    )


def _text(found: Any) -> Optional[str]:
    """The connection's own factory may make anything of texts."""
    return bytes(found).decode() if isinstance(found, (bytes, bytearray)) else None if found is None else str(found)


def _columns(record: Record) -> dict[str, Any]:
    digest = record.digest
    return {
        "authority": record.authority,
        "lock": record.lock,
        "token": record.token,
        "written": int(record.written),
        "sequence": record.sequence,
        "digest": digest - 2**64 if digest is not None and digest >= 2**63 else digest,
        "result": record.result,
    }


class _Showing(threading.local):
    is_on = False


_showing = _Showing()


def _show(raw: Any, resource: str, token: Optional[int]) -> None:
    """Sets or removes the connection's token at a resource. A trigger cannot see anything else of a connection than its
    functions."""
    if not isinstance(raw, sqlite3.Connection):
        raise _drivers.unsupported(raw)
    _showing.is_on = True
    try:
        try:
            _set(raw, resource, token)
        except sqlite3.OperationalError as error:
            if _NO_FUNCTION not in str(error):
                raise
            _register(raw)
            _set(raw, resource, token)
    finally:
        _showing.is_on = False


def _set(raw: sqlite3.Connection, resource: str, token: Optional[int]) -> None:
    with contextlib.closing(raw.cursor()) as cursor:
        cursor.row_factory = None
        cursor.execute("SELECT palisade_token(?, ?)", (resource, token)).fetchall()


def _register(raw: sqlite3.Connection) -> None:
    """`palisade_token(resource)` returns the token, and `palisade_token(resource, token)` sets it, for this module
    alone: not for triggers and views."""
    tokens: dict[str, int] = {}

    def set_token(resource: str, token: Optional[int]) -> None:
        if not _showing.is_on:
            raise ValueError("only a claim sets a token")
        if token is None:
            tokens.pop(resource, None)
        else:
            tokens[resource] = token

    raw.create_function("palisade_token", 1, tokens.get)
    raw.create_function("palisade_token", 2, set_token)


def _translated(error: BaseException) -> Optional[Exception]:
    if isinstance(error, PalisadeError):
        return None
    rejected = _rejections.rejection(error)
    if rejected is not None:
        return rejected
    for one in _drivers.chain(error):
        said = str(one)
        if not isinstance(one, sqlite3.Error):
            continue
        if "no such table: main.palisade_fence" in said:
            return FenceNotInstalled(f"{said}; run `palisade fence install sqlite sqlite:///FILE`")
        if f"no such savepoint: {_SAVEPOINT}" in said:
            why = "SQLite rolled it back after an error, or the block ended it"
            return Invalid("rolled_back", f"the transaction that claimed is over: {why}")
    return None
