"""A user's own connection, whichever library it comes from: how it runs a statement, and whether a transaction is open.

Statements have parameters as `%(name)s`; each library gets them in its own form. No library is imported here: an object
of a library can only exist if its module is loaded."""

from __future__ import annotations

import contextlib
import re
import sys
from typing import Any, AsyncIterator, Callable, Generator, Iterator, Mapping, Optional, TypeVar

from ..errors import Invalid

Rows = list[dict[str, Any]]
Result = TypeVar("Result")
Kind = TypeVar("Kind", "Sync", "Async")
Steps = Generator[tuple[str, Mapping[str, Any]], Rows, Result]
Translate = Callable[[BaseException], Optional[Exception]]

_PARAMETER = re.compile(r"%\((\w+)\)s")
_IN_FAILED_TRANSACTION = "25P02"
_OTHERWISE = "which may have read already: end it first, or call claim before the first read"


class Sync:
    """A connection that blocks. `system`: `postgres`, `mysql` or `sqlite`."""

    system = "postgres"

    def __init__(self, given: Any) -> None:
        self.given = given

    def run(self, statement: str, arguments: Mapping[str, Any]) -> Rows:
        raise NotImplementedError

    def is_in_transaction(self) -> bool:
        raise NotImplementedError

    def would_commit_alone(self) -> bool:
        """Whether a statement would be a transaction of its own. MySQL's procedures find that out by themselves."""
        return False

    def has_failed(self) -> bool:
        """PostgreSQL answers COMMIT with a rollback after an error, also if the error was caught."""
        return False

    @contextlib.contextmanager
    def begin(self) -> Iterator[Any]:
        raise NotImplementedError
        yield

    def run_raw(self, statement: str) -> None:
        """Runs a statement that comes after an error."""
        self.run(statement, {})

    def raw(self) -> Any:
        """The driver's own connection."""
        return self.given


class _Psycopg(Sync):
    def run(self, statement: str, arguments: Mapping[str, Any]) -> Rows:
        psycopg = sys.modules["psycopg"]
        # The connection's own factories may make anything of rows and parameters.
        with psycopg.Cursor(self.given, row_factory=psycopg.rows.tuple_row) as cursor:
            cursor.execute(statement, arguments or None)
            return _rows(cursor.description, cursor.fetchall() if cursor.description else [])

    def is_in_transaction(self) -> bool:
        return int(self.given.info.transaction_status) != 0

    def would_commit_alone(self) -> bool:
        return bool(self.given.autocommit) and not self.is_in_transaction()

    def has_failed(self) -> bool:
        return int(self.given.info.transaction_status) == 3

    @contextlib.contextmanager
    def begin(self) -> Iterator[Any]:
        with self.given.transaction():
            yield self.given


class _Sqlalchemy(Sync):
    """A Connection or a Session; on an asyncio driver inside of `run_sync`."""

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        # A Session has its connection only from the beginning of its transaction on.
        dialect = given.get_bind().dialect if hasattr(given, "get_bind") else given.dialect
        if dialect.name not in _SYSTEMS or dialect.paramstyle not in ("pyformat", "format", "numeric_dollar", "qmark"):
            raise unsupported(given, dialect.driver)
        self.system, self._style = _SYSTEMS[dialect.name], dialect.paramstyle

    def _connection(self) -> Any:
        return self.given.connection() if hasattr(self.given, "get_bind") else self.given

    def run(self, statement: str, arguments: Mapping[str, Any]) -> Rows:
        parameters: Any = dict(arguments)
        if self._style == "numeric_dollar":
            statement, parameters = _numbered(statement, arguments)
        elif self._style in ("format", "qmark"):
            statement, parameters = _positional(statement, arguments, "%s" if self._style == "format" else "?")
        result = self._connection().exec_driver_sql(statement, parameters or None)
        return [dict(row) for row in result.mappings()] if result.returns_rows else []

    def is_in_transaction(self) -> bool:
        return bool(self.given.in_transaction())

    def would_commit_alone(self) -> bool:
        if self.system == "mysql":
            return False
        own = self._connection().connection
        if self.system == "sqlite":
            return _commits_alone(own.driver_connection)
        if hasattr(own.driver_connection, "info"):
            return bool(own.driver_connection.autocommit) and int(own.driver_connection.info.transaction_status) == 0
        return bool(getattr(own.dbapi_connection, "autocommit", False))

    def has_failed(self) -> bool:
        own = self._connection().connection.driver_connection if self.system == "postgres" else None
        if own is None:
            return False
        if hasattr(own, "info"):
            return int(own.info.transaction_status) == 3
        try:
            self.run("SELECT 1", {})
        except Exception as error:
            if driver_error(error)[1] != _IN_FAILED_TRANSACTION:
                raise
            return True
        return False

    @contextlib.contextmanager
    def begin(self) -> Iterator[Any]:
        with self.given.begin():
            yield self.given

    def raw(self) -> Any:
        return self._connection().connection.driver_connection


class _Engine(_Sqlalchemy):
    """Its connection exists only from `begin` on."""

    def is_in_transaction(self) -> bool:
        return False

    def would_commit_alone(self) -> bool:
        raise unsupported(self.given)

    @contextlib.contextmanager
    def begin(self) -> Iterator[Any]:
        with self.given.begin() as own:
            yield own


class _Django(Sync):
    def __init__(self, given: Any) -> None:
        super().__init__(given)
        if given.vendor not in _SYSTEMS:
            raise unsupported(given, given.vendor)
        self.system = _SYSTEMS[given.vendor]

    def run(self, statement: str, arguments: Mapping[str, Any]) -> Rows:
        parameters: Any = dict(arguments)
        if self.system == "sqlite":
            statement, parameters = _positional(statement, arguments)
        with self.given.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return _rows(cursor.description, cursor.fetchall() if cursor.description else [])

    def raw(self) -> Any:
        return self.given.connection

    def is_in_transaction(self) -> bool:
        return bool(self.given.in_atomic_block)

    def would_commit_alone(self) -> bool:
        self.given.ensure_connection()
        return bool(self.given.get_autocommit()) and not self.given.in_atomic_block

    def has_failed(self) -> bool:
        own = self.given.connection
        return self.system == "postgres" and int(own.info.transaction_status) == 3

    @contextlib.contextmanager
    def begin(self) -> Iterator[Any]:
        with sys.modules["django.db.transaction"].atomic(using=self.given.alias):
            yield self.given

    def run_raw(self, statement: str) -> None:
        # Django itself lets nothing through between an error and the end of the block.
        with self.given.connection.cursor() as cursor:
            cursor.execute(statement)


class _Pymysql(Sync):
    system = "mysql"

    def run(self, statement: str, arguments: Mapping[str, Any]) -> Rows:
        # Its own class: the connection's may return dictionaries.
        with self.given.cursor(sys.modules["pymysql"].cursors.Cursor) as cursor:
            cursor.execute(statement, dict(arguments) or None)
            return _rows(cursor.description, cursor.fetchall() if cursor.description else [])

    def is_in_transaction(self) -> bool:
        return bool(self.given.server_status & 1)  # SERVER_STATUS_IN_TRANS

    @contextlib.contextmanager
    def begin(self) -> Iterator[Any]:
        self.given.begin()
        try:
            yield self.given
            self.given.commit()
        except BaseException:
            if self.given.open:
                self.given.rollback()
            raise


class _Mysqlclient(Sync):
    """It does not say whether a transaction is open, so no transaction can be begun for the caller."""

    system = "mysql"

    def run(self, statement: str, arguments: Mapping[str, Any]) -> Rows:
        with self.given.cursor(sys.modules["MySQLdb"].cursors.Cursor) as cursor:
            cursor.execute(statement, dict(arguments) or None)
            return _rows(cursor.description, cursor.fetchall() if cursor.description else [])

    def is_in_transaction(self) -> bool:
        raise TypeError(
            "transact cannot see whether a connection of mysqlclient is in a transaction: call connection.begin(), and "
            "claim first; or use it through SQLAlchemy or Django"
        )


class _Sqlite(Sync):
    """Of the module sqlite3."""

    system = "sqlite"

    def run(self, statement: str, arguments: Mapping[str, Any]) -> Rows:
        with contextlib.closing(self.given.cursor()) as cursor:
            # The connection's own factory may make anything of rows.
            cursor.row_factory = None
            cursor.execute(_PARAMETER.sub(r":\1", statement), dict(arguments))
            return _rows(cursor.description, cursor.fetchall() if cursor.description else [])

    def is_in_transaction(self) -> bool:
        return bool(self.given.in_transaction)

    def would_commit_alone(self) -> bool:
        return _commits_alone(self.given)

    @contextlib.contextmanager
    def begin(self) -> Iterator[Any]:
        # In words: the methods do nothing on a connection with `autocommit`.
        self.run("BEGIN IMMEDIATE", {})
        try:
            yield self.given
            self.run("COMMIT", {})
        except BaseException:
            with contextlib.suppress(Exception):  # SQLite did it, or it is closed
                self.run("ROLLBACK", {})
            raise


def _commits_alone(given: Any) -> bool:
    """Else sqlite3 begins a transaction before a statement that writes."""
    is_automatic = given.isolation_level is None or getattr(given, "autocommit", None) is True
    return is_automatic and not given.in_transaction


class Async:
    """A connection of asyncio."""

    system = "postgres"

    def __init__(self, given: Any) -> None:
        self.given = given

    async def run(self, statement: str, arguments: Mapping[str, Any]) -> Rows:
        raise NotImplementedError

    async def is_in_transaction(self) -> bool:
        raise NotImplementedError

    async def would_commit_alone(self) -> bool:
        return False

    async def has_failed(self) -> bool:
        return False

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield


class _PsycopgAsync(Async):
    async def run(self, statement: str, arguments: Mapping[str, Any]) -> Rows:
        psycopg = sys.modules["psycopg"]
        async with psycopg.AsyncCursor(self.given, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(statement, arguments or None)
            return _rows(cursor.description, await cursor.fetchall() if cursor.description else [])

    async def is_in_transaction(self) -> bool:
        return int(self.given.info.transaction_status) != 0

    async def would_commit_alone(self) -> bool:
        return bool(self.given.autocommit) and int(self.given.info.transaction_status) == 0

    async def has_failed(self) -> bool:
        return int(self.given.info.transaction_status) == 3

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        async with self.given.transaction():
            yield self.given


class _Asyncpg(Async):
    async def run(self, statement: str, arguments: Mapping[str, Any]) -> Rows:
        numbered, values = _numbered(statement, arguments)
        if not values:
            await self.given.execute(numbered)
            return []
        return [dict(row) for row in await self.given.fetch(numbered, *values)]

    async def is_in_transaction(self) -> bool:
        return bool(self.given.is_in_transaction())

    async def would_commit_alone(self) -> bool:
        return not self.given.is_in_transaction()

    async def has_failed(self) -> bool:
        try:
            await self.given.execute("SELECT 1")
        except Exception as error:
            if driver_error(error)[1] != _IN_FAILED_TRANSACTION:
                raise
            return True
        return False

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        async with self.given.transaction():
            yield self.given


class _SqlalchemyAsync(Async):
    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self.system = sync(_inner(given)).system

    async def run(self, statement: str, arguments: Mapping[str, Any]) -> Rows:
        rows: Rows = await self.given.run_sync(lambda own: sync(own).run(statement, arguments))
        return rows

    async def is_in_transaction(self) -> bool:
        return bool(self.given.in_transaction())

    async def would_commit_alone(self) -> bool:
        return bool(await self.given.run_sync(lambda own: sync(own).would_commit_alone()))

    async def has_failed(self) -> bool:
        return bool(await self.given.run_sync(lambda own: sync(own).has_failed()))

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        async with self.given.begin():
            yield self.given


class _AsyncEngine(_SqlalchemyAsync):
    async def is_in_transaction(self) -> bool:
        return False

    async def would_commit_alone(self) -> bool:
        raise unsupported(self.given)

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        async with self.given.begin() as own:
            yield own


class _Aiomysql(Async):
    system = "mysql"

    async def run(self, statement: str, arguments: Mapping[str, Any]) -> Rows:
        async with self.given.cursor(sys.modules["aiomysql"].Cursor) as cursor:
            await cursor.execute(statement, dict(arguments) or None)
            return _rows(cursor.description, await cursor.fetchall() if cursor.description else [])

    async def is_in_transaction(self) -> bool:
        return bool(self.given.get_transaction_status())

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        await self.given.begin()
        try:
            yield self.given
            await self.given.commit()
        except BaseException:
            if not self.given.closed:
                await self.given.rollback()
            raise


_SYSTEMS = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}
# Libraries that are recognised by the class of a connection, and not by its methods.
_SYNC_CLASSES = [
    ("psycopg", "Connection", _Psycopg),
    ("pymysql.connections", "Connection", _Pymysql),
    ("MySQLdb.connections", "Connection", _Mysqlclient),
    ("sqlite3", "Connection", _Sqlite),
]
_ASYNC_CLASSES = [
    ("psycopg", "AsyncConnection", _PsycopgAsync),
    ("asyncpg", "Connection", _Asyncpg),
    ("asyncpg.pool", "PoolConnectionProxy", _Asyncpg),
    ("aiomysql", "Connection", _Aiomysql),
]


def sync(connection: Any) -> Sync:
    """Raises TypeError for anything else."""
    if not _is_async(connection):
        if hasattr(connection, "exec_driver_sql") or (
            hasattr(connection, "get_bind") and hasattr(connection, "connection")
        ):
            return _Sqlalchemy(connection)
        if hasattr(connection, "begin") and hasattr(connection, "dialect"):
            return _Engine(connection)
        if hasattr(connection, "ensure_connection"):
            return _Django(connection)
        for module, name, kind in _SYNC_CLASSES:
            if module in sys.modules and isinstance(connection, getattr(sys.modules[module], name)):
                return kind(connection)
    raise unsupported(connection)


def asynchronous(connection: Any) -> Async:
    """Raises TypeError for anything else."""
    if _is_async(connection):
        if hasattr(connection, "run_sync"):
            return _SqlalchemyAsync(connection)
        if hasattr(connection, "sync_engine"):
            return _AsyncEngine(connection)
    for module, name, kind in _ASYNC_CLASSES:
        if module in sys.modules and isinstance(connection, getattr(sys.modules[module], name)):
            return kind(connection)
    raise unsupported(connection)


def only(own: Kind, system: str) -> Kind:
    """`own`, if it is a connection to that system."""
    if own.system != system:
        raise TypeError(
            f"{_name(own.given)} is a connection to {own.system}, and this is the fence of {system}: use "
            f"palisade.fences.{own.system}"
        )
    return own


def of_server(own: Kind) -> Kind:
    """`own`, if it is no file of SQLite."""
    if own.system == "sqlite":
        raise TypeError(f"{_name(own.given)} is a connection to SQLite, which has palisade.fences.sqlite alone")
    return own


def run(own: Sync, steps: Steps[Result], translate: Translate) -> Result:
    """Carries the steps out in a transaction that is open already."""
    _needs_transaction(own.would_commit_alone())
    rows: Optional[Rows] = None
    try:
        while True:
            step = steps.send(rows)  # type: ignore[arg-type]
            try:
                rows = own.run(*step)
            except Exception as error:
                # The steps know for whom they ask.
                steps.throw(error)
                raise
    except StopIteration as end:
        result: Result = end.value
        return result
    except Exception as error:
        translated = translate(error)
        if translated is None:
            raise
        raise translated from error


async def arun(own: Async, steps: Steps[Result], translate: Translate) -> Result:
    """As `run`."""
    _needs_transaction(await own.would_commit_alone())
    rows: Optional[Rows] = None
    try:
        while True:
            step = steps.send(rows)  # type: ignore[arg-type]
            try:
                rows = await own.run(*step)
            except Exception as error:
                # The steps know for whom they ask.
                steps.throw(error)
                raise
    except StopIteration as end:
        result: Result = end.value
        return result
    except Exception as error:
        translated = translate(error)
        if translated is None:
            raise
        raise translated from error


@contextlib.contextmanager
def begun(
    own: Sync,
    first: Callable[[Sync], Steps[Any]],
    translate: Translate,
    last: Optional[Callable[[], Steps[Any]]] = None,
    undo: Optional[Callable[[], Steps[Any]]] = None,
    otherwise: str = _OTHERWISE,
) -> Iterator[Any]:
    """A transaction that begins with the steps `first`, and ends with `last` if all went well. After an error, `undo`
    comes before the rollback."""
    _needs_no_transaction(own.is_in_transaction(), otherwise)
    try:
        with own.begin() as connection:
            inner = sync(connection)
            try:
                run(inner, first(inner), translate)
                yield connection
                _needs_success(inner.has_failed())
                if last is not None:
                    run(inner, last(), translate)
            except BaseException:
                if undo is not None:
                    with contextlib.suppress(Exception):
                        for statement, _ in undo():
                            inner.run_raw(statement)
                raise
    except Exception as error:
        translated = translate(error)
        if translated is None:
            raise
        raise translated from error


@contextlib.asynccontextmanager
async def abegun(
    own: Async,
    first: Callable[[], Steps[Any]],
    translate: Translate,
    last: Optional[Callable[[], Steps[Any]]] = None,
    undo: Optional[Callable[[], Steps[Any]]] = None,
    otherwise: str = _OTHERWISE,
) -> AsyncIterator[Any]:
    """As `begun`."""
    _needs_no_transaction(await own.is_in_transaction(), otherwise)
    try:
        async with own.begin() as connection:
            inner = asynchronous(connection)
            try:
                await arun(inner, first(), translate)
                yield connection
                _needs_success(await inner.has_failed())
                if last is not None:
                    await arun(inner, last(), translate)
            except BaseException:
                if undo is not None:
                    with contextlib.suppress(Exception):
                        for statement, _ in undo():
                            await inner.run(statement, {})
                raise
    except Exception as error:
        translated = translate(error)
        if translated is None:
            raise
        raise translated from error


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those inside of it: SQLAlchemy has the driver's in `orig`, Django in `__cause__`."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.append(one)
        yield one
        waiting += [inner for inner in (getattr(one, "orig", None), one.__cause__) if isinstance(inner, BaseException)]


def driver_error(error: BaseException) -> tuple[BaseException, str]:
    """The driver's own error in the chain, and its SQLSTATE, or ""."""
    for one in chain(error):
        state = getattr(one, "sqlstate", None) or getattr(one, "pgcode", None)
        if state:
            return one, str(state)
    return error, ""


def unsupported(given: Any, driver: Optional[str] = None) -> TypeError:
    return TypeError(
        f"{_name(given)}{' on ' + driver if driver else ''} was given. Functions without an a "
        "take a psycopg 3 Connection, a SQLAlchemy Engine, Connection or Session, Django's connection, or a connection "
        "of PyMySQL, mysqlclient or sqlite3; those that begin with "
        "a take a psycopg 3 AsyncConnection, an asyncpg or aiomysql connection, or SQLAlchemy's AsyncEngine, "
        "AsyncConnection or AsyncSession"
    )


def _name(given: Any) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"


def _needs_transaction(is_outside: bool) -> None:
    if is_outside:
        raise ValueError("a fence needs a transaction: begin one, then claim and write in it")


def _needs_no_transaction(is_in_one: bool, otherwise: str) -> None:
    if is_in_one:
        raise ValueError(f"this begins a transaction of its own, and the connection is in one, {otherwise}")


def _needs_success(has_failed: bool) -> None:
    if has_failed:
        raise Invalid("rolled_back", "the transaction is rolled back, because one of its statements had failed")


def _is_async(connection: Any) -> bool:
    return any(of.__module__.startswith("sqlalchemy.ext.asyncio") for of in type(connection).__mro__)


def _inner(given: Any) -> Any:
    """The blocking object inside of one of sqlalchemy.ext.asyncio."""
    for name in ("sync_session", "sync_connection", "sync_engine"):
        inner = getattr(given, name, None)
        if inner is not None:
            return inner
    raise ValueError("this AsyncConnection is not open: use it in `async with engine.connect() as connection`")


def _rows(description: Any, values: Any) -> Rows:
    names = [column[0] for column in description or []]
    return [dict(zip(names, row, strict=True)) for row in values]


def _numbered(statement: str, arguments: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """The statement with $1, $2 …"""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    numbered = _PARAMETER.sub(number, statement)
    return numbered, tuple(arguments[name] for name in names)


def _positional(statement: str, arguments: Mapping[str, Any], mark: str = "%s") -> tuple[str, tuple[Any, ...]]:
    return _PARAMETER.sub(mark, statement), tuple(arguments[name] for name in _PARAMETER.findall(statement))
