"""Fences every transaction of a SQLAlchemy session or engine, blocking or asyncio, by one hook.

    Session = sessionmaker(engine)                                   # or async_sessionmaker, or the engine itself
    with client.lock("orders") as grant, fenced(Session, "orders", grant):
        with Session.begin() as session:                             # claims before its first statement
            session.execute(update(Order).values(total=Order.total + 1))

A rejection arrives as SQLAlchemy's `DBAPIError`: `palisade.fences.rejection(error)` says whether it is one, and why. A
lease that is lost by this process's own clock is `LeaseLost`, before anything is sent.

The block counts for the thread or task that entered it, and for tasks that are started in it, but not for threads that
are. A transaction that had begun before the block is not claimed: let sessions begin inside of it. Two blocks within
each other claim both resources. PostgreSQL, MySQL and MariaDB."""

from __future__ import annotations

import contextlib
import weakref
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Iterator

import sqlalchemy
import sqlalchemy.event
import sqlalchemy.orm
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker

from .fences import _drivers
from .fences._claims import claims
from .fences.rule import CLAIM_RULE, Rule


@dataclass(frozen=True)
class _Fence:
    target: Any
    resource: str
    holder: Any
    rule: Rule


_active: ContextVar[tuple[_Fence, ...]] = ContextVar("palisade_fences", default=())
_hooked: weakref.WeakSet[Any] = weakref.WeakSet()
_CLAIMED = "palisade_claimed"


@contextlib.contextmanager
def fenced(sessions: Any, resource: str, holder: Any, rule: Rule = CLAIM_RULE) -> Iterator[None]:
    """Each transaction that `sessions` begins in the block claims the resource before its first statement.

    `sessions`: a sessionmaker, a scoped session, a Session or its class, an Engine, or one of their asyncio forms."""
    fence = _Fence(_target(sessions), resource, holder, rule)
    _hook(fence.target)
    before = _active.set((*_active.get(), fence))
    try:
        yield
    finally:
        _active.reset(before)


def _target(sessions: Any) -> Any:
    """The object that has the events."""
    if isinstance(sessions, (AsyncEngine, AsyncSession)):
        return sessions.sync_engine if isinstance(sessions, AsyncEngine) else sessions.sync_session
    if isinstance(sessions, (sqlalchemy.orm.scoped_session, async_scoped_session)):
        return _target(sessions.session_factory)
    if isinstance(sessions, async_sessionmaker):
        given = sessions.kw.get("sync_session_class")
        if given is None and "sync_session_class" not in vars(sessions.class_):
            # Its own class: the events of `Session` are those of every session of the process.
            own: Any = type("Session", (sessions.class_.sync_session_class,), {})
            sessions.class_.sync_session_class = own
        return given or sessions.class_.sync_session_class
    if isinstance(sessions, sqlalchemy.orm.sessionmaker):
        return sessions.class_
    is_class = isinstance(sessions, type) and issubclass(sessions, sqlalchemy.orm.Session)
    if is_class or isinstance(sessions, (sqlalchemy.Engine, sqlalchemy.orm.Session)):
        return sessions
    raise TypeError(
        f"fenced takes a sessionmaker, a scoped session, a Session, an Engine, or one of their asyncio forms, and not "
        f"{type(sessions).__module__}.{type(sessions).__qualname__}"
    )


def _hook(target: Any) -> None:
    if target in _hooked:
        return
    itself = weakref.ref(target)

    def begin(connection: sqlalchemy.Connection) -> None:
        _claim(itself(), connection)

    def after_begin(session: Any, transaction: Any, connection: sqlalchemy.Connection) -> None:
        # A savepoint is part of a transaction that has claimed.
        if not transaction.nested:
            _claim(itself(), connection)

    if isinstance(target, sqlalchemy.Engine):
        sqlalchemy.event.listen(target, "begin", begin)
    else:
        sqlalchemy.event.listen(target, "after_begin", after_begin)
    _hooked.add(target)


def _claim(target: Any, connection: sqlalchemy.Connection) -> None:
    fences = {fence.resource: fence for fence in _active.get() if fence.target is target}
    if not fences:
        return
    own = _drivers.sync(connection)
    for name in sorted(fences):
        if own.system == "mysql":
            _settle_later(connection)
        # The error stays SQLAlchemy's.
        _drivers.run(own, claims(own, {name: fences[name].holder}, fences[name].rule), lambda error: None)


def _settle_later(connection: sqlalchemy.Connection) -> None:
    """MariaDB's bound on idle transactions is the session's: the pool gets the connection back without it."""
    connection.info[_CLAIMED] = True
    if connection.engine not in _settled:
        sqlalchemy.event.listen(connection.engine, "reset", _settle)
        _settled.add(connection.engine)


_settled: weakref.WeakSet[Any] = weakref.WeakSet()


def _settle(connection: Any, record: Any, state: Any) -> None:
    if record.info.pop(_CLAIMED, False) and not state.terminate_only:
        cursor = connection.cursor()
        cursor.execute("CALL palisade_end(FALSE)")
        cursor.close()
