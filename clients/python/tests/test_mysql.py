"""The fence in MariaDB, through PyMySQL, aiomysql, SQLAlchemy and Django, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import uuid
from typing import Any, AsyncIterator, Callable, ContextManager, Iterator

import aiomysql
import pymysql
import pymysql.cursors
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio as aio
import sqlalchemy.orm

from palisade import Invalid
from palisade.fences import FenceNotInstalled, Pass, Rejected, Stale, mysql, postgres, rejection

RACERS = 4
TURNS = 10
Connect = Callable[[], ContextManager[Any]]


def place(url: str) -> dict[str, Any]:
    parts = sqlalchemy.make_url(url)
    return {"host": parts.host, "port": parts.port, "user": parts.username}


def connected(url: str, **more: Any) -> Any:
    return pymysql.connect(**{**place(url), "database": "shop", **more})


@pytest.fixture
def resource(mysql_url: str) -> str:
    name = f"race_{uuid.uuid4().hex}"
    with connected(mysql_url) as connection:
        ask(connection, f"CREATE TABLE {name} (total int) ENGINE=InnoDB")
        ask(connection, f"INSERT INTO {name} VALUES (0)")
        connection.commit()
    return name


@pytest.fixture(
    params=[
        "pymysql",
        "dictionaries",
        "engine",
        "connection",
        "session",
        pytest.param("mysqlclient", marks=pytest.mark.mysqlclient),
    ]
)
def connect(request: pytest.FixtureRequest, mysql_url: str) -> Iterator[Connect]:
    """A connection or pool for `transact`, one for each thread."""
    if request.param == "pymysql":
        yield lambda: connected(mysql_url)
    elif request.param == "dictionaries":
        yield lambda: connected(mysql_url, cursorclass=pymysql.cursors.DictCursor, autocommit=True)
    else:
        driver = "mysql+mysqldb:" if request.param == "mysqlclient" else "mysql+pymysql:"
        engine = sqlalchemy.create_engine(mysql_url.replace("mysql:", driver, 1))
        make: dict[str, Connect] = {
            "engine": lambda: contextlib.nullcontext(engine),
            "mysqlclient": lambda: contextlib.nullcontext(engine),
            "connection": engine.connect,
            "session": lambda: sqlalchemy.orm.Session(engine),
        }
        yield make[request.param]
        engine.dispose()


def ask(transaction: Any, statement: str) -> Any:
    """The first column of the first row, through whatever it is."""
    if hasattr(transaction, "exec_driver_sql") or hasattr(transaction, "get_bind"):
        rows = transaction.execute(sqlalchemy.text(statement))
        return rows.scalar() if rows.returns_rows else None
    with transaction.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
        return None if row is None else row[0]


def add(transaction: Any, table: str) -> None:
    total = ask(transaction, f"SELECT total FROM {table}")
    ask(transaction, f"UPDATE {table} SET total = {total + 1}")


def test_a_race_loses_nothing(connect: Connect, resource: str, mysql_url: str) -> None:
    tokens, acknowledged, failed = iter(range(1, 10**6)), [], []

    def racer() -> None:
        try:
            with connect() as connection:
                for _ in range(TURNS):
                    token = next(tokens)
                    with contextlib.suppress(Stale), mysql.transact(connection, resource, token) as transaction:
                        add(transaction, resource)
                        acknowledged.append(token)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=racer) for _ in range(RACERS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []
    with connected(mysql_url) as connection:
        assert ask(connection, f"SELECT total FROM {resource}") == len(acknowledged) > RACERS


def test_nothing_is_written_by_an_older_holder_or_after_an_error(connect: Connect, resource: str) -> None:
    other = f"other-{resource}"
    # MySQL of Oracle has no such bound.
    idle, bound = "SELECT @@SESSION.idle_write_transaction_timeout", 10
    if "PALISADE_MYSQL" in os.environ:
        idle, bound = "SELECT 0", 0
    with connect() as connection:
        with mysql.transact(connection, resource, 8) as transaction:
            add(transaction, resource)
            assert ask(transaction, idle) == bound
        older = mysql.transact(connection, resource, 7)
        with pytest.raises(Stale, match="token 7 is stale: 7 < 8") as stale, older as transaction:
            add(transaction, resource)
        assert (stale.value.token, stale.value.highest) == (7, 8)
        with pytest.raises(ZeroDivisionError), mysql.transact(connection, resource, 9) as transaction:
            add(transaction, resource)
            raise ZeroDivisionError
        with mysql.transact_all(connection, {resource: 8, other: Pass(9, "a", "l")}) as transaction:
            add(transaction, resource)
        for wrong, code in ((Pass(10, "a", "m"), "wrong_lock"), (10, "wrong_authority"), (2**50, "wrong_authority")):
            with pytest.raises(Rejected) as refused, mysql.transact_all(connection, {resource: 10, other: wrong}):
                pass
            assert refused.value.code == code
        with pytest.raises(Rejected) as jump, mysql.transact(connection, resource, 2**50):
            pass
        assert (jump.value.code, jump.value.highest, jump.value.bound) == ("jump", 8, 2**46)
        with pytest.raises(TypeError, match=r"use palisade\.fences\.mysql"), postgres.transact(connection, resource, 9):
            pass
        with mysql.transact(connection, resource, 8) as transaction:
            assert ask(transaction, f"SELECT total FROM {resource}") == 2
        if not isinstance(connection, sqlalchemy.Engine):
            # Its own bound is back, which a COMMIT alone would leave at 10.
            assert ask(connection, idle) == 0
            connection.rollback()


def test_a_transaction_that_is_open_already_or_is_none(mysql_url: str, resource: str) -> None:
    with connected(mysql_url, autocommit=True) as connection:
        with pytest.raises(ValueError, match="a fence needs a transaction"):
            mysql.claim(connection, resource, 7)
        connection.begin()
        ask(connection, f"SELECT total FROM {resource}")
        with pytest.raises(ValueError, match="may have read already"), mysql.transact(connection, resource, 7):
            pass
        with connected(mysql_url) as newer:
            mysql.claim(newer, resource, 8)
            newer.commit()
        with pytest.raises(Invalid) as late:
            mysql.claim(connection, resource, 9)
        assert late.value.code == "read_before_claim"
        connection.rollback()
    name = f"bare_{uuid.uuid4().hex[:8]}"
    with connected(mysql_url, autocommit=True) as connection:
        ask(connection, f"CREATE DATABASE {name}")
        connection.select_db(name)
        transaction = mysql.transact(connection, resource, 7)
        with pytest.raises(FenceNotInstalled, match="palisade fence install mysql"), transaction:
            pass


def test_rejections_are_recognised_without_a_sqlstate(mysql_url: str, resource: str) -> None:
    """As of older versions of PyMySQL, and of mysqlclient."""
    with connected(mysql_url) as connection:
        mysql.claim(connection, resource, Pass(8, "a", "l"))
        connection.commit()
        for holder, told in (
            (Pass(7, "a", "l"), ("stale", 8, None, None)),
            (Pass(2**50, "a", "l"), ("jump", 8, None, None)),
            (Pass(9, "b", "l"), ("wrong_authority", None, "a", None)),
            (Pass(9, "a", "m"), ("wrong_lock", None, None, "l")),
        ):
            with pytest.raises(Rejected) as refused:
                mysql.claim(connection, resource, holder)
            connection.rollback()
            driver = refused.value.__cause__
            assert isinstance(driver, pymysql.OperationalError)
            for error in (driver, pymysql.OperationalError(*driver.args), refused.value):
                found = rejection(error)
                assert found is not None
                assert (found.code, found.highest, found.authority, found.lock) == told
        assert rejection(pymysql.OperationalError(1644, "something else")) is None


@pytest.mark.mysqlclient
def test_mysqlclient(mysql_url: str, resource: str) -> None:
    import MySQLdb  # noqa: PLC0415
    import MySQLdb.cursors  # noqa: PLC0415

    connection = MySQLdb.connect(**place(mysql_url), database="shop", cursorclass=MySQLdb.cursors.DictCursor)
    connection.begin()
    mysql.claim(connection, resource, 8)
    connection.commit()
    connection.begin()
    with pytest.raises(Stale, match="token 7 is stale: 7 < 8"):
        mysql.claim(connection, resource, 7)
    connection.rollback()
    with pytest.raises(TypeError, match=r"call connection\.begin\(\)"), mysql.transact(connection, resource, 9):
        pass
    connection.close()


@contextlib.asynccontextmanager
async def opened(kind: str, url: str) -> AsyncIterator[Any]:
    if kind == "aiomysql":
        async with aiomysql.connect(**place(url), db="shop") as connection:
            yield connection
    else:
        engine = aio.create_async_engine(url.replace("mysql:", "mysql+aiomysql:", 1))
        if kind == "engine":
            yield engine
        else:
            async with aio.AsyncSession(engine) as connection:
                yield connection
        await engine.dispose()


@pytest.mark.parametrize("kind", ["aiomysql", "engine", "session"])
def test_asyncio(kind: str, mysql_url: str, resource: str) -> None:
    async def aask(transaction: Any, statement: str) -> Any:
        if hasattr(transaction, "run_sync"):
            return await transaction.run_sync(ask, statement)
        async with transaction.cursor() as cursor:
            await cursor.execute(statement)
            return (await cursor.fetchone() or [None])[0]

    async def run() -> None:
        tokens, acknowledged = iter(range(1, 10**6)), 0

        async def racer() -> None:
            nonlocal acknowledged
            async with opened(kind, mysql_url) as connection:
                for _ in range(TURNS):
                    with contextlib.suppress(Stale):
                        async with mysql.atransact(connection, resource, next(tokens)) as transaction:
                            total = await aask(transaction, f"SELECT total FROM {resource}")
                            await aask(transaction, f"UPDATE {resource} SET total = {total + 1}")
                        acknowledged += 1

        await asyncio.gather(*(racer() for _ in range(RACERS)))
        with connected(mysql_url) as reader:
            assert ask(reader, f"SELECT total FROM {resource}") == acknowledged > RACERS
        async with opened(kind, mysql_url) as connection:
            with pytest.raises(Stale):
                async with mysql.atransact(connection, resource, 1):
                    pass
            with pytest.raises(TypeError, match=r"use palisade\.fences\.mysql"):
                async with postgres.atransact(connection, resource, next(tokens)):
                    pass
            if kind == "aiomysql":
                await connection.begin()
                await mysql.aclaim(connection, resource, next(tokens))
                await connection.commit()

    asyncio.run(run())
