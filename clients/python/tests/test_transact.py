"""A transaction that claims before anything is read, through psycopg, SQLAlchemy and Django, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from typing import Any, AsyncIterator, Callable, ContextManager, Iterator

import asyncpg
import django.db
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio as aio
import sqlalchemy.orm
from suite.servers import Palisade
from test_postgres import _django

from palisade import Client, Invalid, LeaseLost
from palisade.fences import Pass, Rejected, Stale, postgres

RACERS = 4
TURNS = 15
Ask = Callable[[Any, str], Any]
Connect = Callable[[], ContextManager[Any]]


@pytest.fixture
def resource(database: psycopg.Connection[Any]) -> str:
    name = f"race_{uuid.uuid4().hex}"
    database.execute(f"CREATE TABLE {name} (total int)")
    database.execute(f"INSERT INTO {name} VALUES (0)")
    database.commit()
    return name


def ask(transaction: Any, statement: str) -> Any:
    """The first column of the first row, through whatever it is."""
    if hasattr(transaction, "exec_driver_sql") or hasattr(transaction, "get_bind"):
        rows = transaction.execute(sqlalchemy.text(statement))
        return rows.scalar() if rows.returns_rows else None
    with transaction.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]


@pytest.fixture(params=["psycopg", "engine", "connection", "session", "django"])
def connect(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Connect]:
    """A connection or pool for `transact`, one for each thread."""
    if request.param == "psycopg":
        yield lambda: psycopg.connect(postgres_url)
    elif request.param == "django":
        _django(postgres_url)
        yield lambda: _closing(django.db.connection)
        django.db.connection.close()
    else:
        engine = sqlalchemy.create_engine(postgres_url.replace("postgres:", "postgresql+psycopg:", 1))
        make: dict[str, Connect] = {
            "engine": lambda: _closing(engine, close=False),
            "connection": engine.connect,
            "session": lambda: sqlalchemy.orm.Session(engine),
        }
        yield make[request.param]
        engine.dispose()


class _closing:
    def __init__(self, inner: Any, close: bool = True) -> None:
        self.inner, self.close = inner, close

    def __enter__(self) -> Any:
        return self.inner

    def __exit__(self, *_: object) -> None:
        if self.close:
            self.inner.close()


def add(transaction: Any, table: str) -> None:
    """Reads, computes, and writes the result."""
    total = ask(transaction, f"SELECT total FROM {table}")
    ask(transaction, f"UPDATE {table} SET total = {total + 1}")


def race(connect: Connect, run: Callable[[Any, int], None]) -> int:
    """How many adds of racing threads, each with a newer token, were acknowledged."""
    tokens, acknowledged, failed = iter(range(1, 10**6)), [], []

    def racer() -> None:
        try:
            with connect() as connection:
                for _ in range(TURNS):
                    token = next(tokens)
                    try:
                        run(connection, token)
                        acknowledged.append(token)
                    except Stale:
                        pass
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=racer) for _ in range(RACERS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []
    assert len(acknowledged) > RACERS
    return len(acknowledged)


def test_a_race_loses_nothing(connect: Connect, resource: str, database: psycopg.Connection[Any]) -> None:
    def through(connection: Any, token: int) -> None:
        with postgres.transact(connection, resource, token) as transaction:
            add(transaction, resource)

    added = race(connect, through)
    assert ask(database, f"SELECT total FROM {resource}") == added


def test_a_claim_after_the_read_loses_some(postgres_url: str, resource: str, database: psycopg.Connection[Any]) -> None:
    """The control: without `transact`, in the order that it forbids. The table is not fenced, else it is refused."""

    def late(connection: Any, token: int) -> None:
        with connection.transaction():
            total = ask(connection, f"SELECT total FROM {resource}")
            postgres.claim(connection, resource, token)
            ask(connection, f"UPDATE {resource} SET total = {total + 1}")

    lost = 0
    for _ in range(20):
        before = ask(database, f"SELECT total FROM {resource}")
        database.commit()
        added = race(lambda: psycopg.connect(postgres_url, autocommit=True), late)
        lost += before + added - ask(database, f"SELECT total FROM {resource}")
        database.commit()
        if lost > 0:
            break
        ask(database, "UPDATE palisade_fence SET token = 1 WHERE resource = '" + resource + "'")
        database.commit()
    assert lost > 0, "the race shows nothing"


def test_nothing_is_written_by_an_older_holder_or_after_an_error(connect: Connect, resource: str) -> None:
    other = f"other-{resource}"
    with connect() as connection:
        with postgres.transact(connection, resource, 8) as transaction:
            add(transaction, resource)
        with pytest.raises(Stale) as stale, postgres.transact(connection, resource, 7) as transaction:
            add(transaction, resource)
        assert stale.value.highest == 8
        with pytest.raises(ZeroDivisionError), postgres.transact(connection, resource, 9) as transaction:
            add(transaction, resource)
            raise ZeroDivisionError
        # The failed work took its claim with it.
        with postgres.transact_all(connection, {resource: 8, other: Pass(9, "a", "l")}) as transaction:
            add(transaction, resource)
        both = {resource: 10, other: Pass(10, "a", "m")}
        with pytest.raises(Rejected, match="another lock"), postgres.transact_all(connection, both):
            pass
        with pytest.raises(ValueError, match="nothing to claim"), postgres.transact_all(connection, {}):
            pass
        # An error that was caught: PostgreSQL would answer COMMIT with ROLLBACK, and say nothing.
        with pytest.raises(Invalid, match="rolled back"), postgres.transact(connection, resource, 9) as transaction:
            add(transaction, resource)
            with contextlib.suppress(Exception):
                ask(transaction, "SELECT 1 / 0")
        with postgres.transact(connection, resource, 8) as transaction:
            assert ask(transaction, f"SELECT total FROM {resource}") == 2


def test_a_transaction_that_is_open_already_is_refused(connect: Connect, resource: str) -> None:
    with connect() as connection:
        if isinstance(connection, sqlalchemy.Engine):
            return  # It begins its own.
        if hasattr(connection, "ensure_connection"):
            opened: ContextManager[Any] = django.db.transaction.atomic()
        elif isinstance(connection, psycopg.Connection):
            opened = connection.transaction()
        else:
            opened = connection.begin()
        with opened:
            ask(connection, f"SELECT total FROM {resource}")
            with pytest.raises(ValueError, match="may have read already"), postgres.transact(connection, resource, 7):
                pass


def test_a_claim_says_what_is_left_of_the_lease(
    connect: Connect, resource: str, server: Palisade, database: psycopg.Connection[Any]
) -> None:
    """So the database ends the transaction of a holder that stops in it when its lease is over, and not before."""
    idle = "SELECT extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval)"
    with Client(server.url) as client, connect() as connection:
        with client.locks("a", "b", ttl="60s") as grant:
            # A control: of a bare token it is not known, and the bound is 10 s.
            with postgres.transact(connection, resource, 1) as transaction:
                assert float(ask(transaction, idle)) == 10
            for holder in (grant.part("a"), grant):
                with postgres.transact_all(connection, {f"{resource}-{holder.lock}": holder}) as transaction:
                    assert 30 < float(ask(transaction, idle)) <= 60
                    # Your own setting counts first.
                if isinstance(connection, psycopg.Connection):
                    with connection.transaction():
                        connection.execute("SET LOCAL palisade.lease_left_ms = 7000")
                        postgres.claim(connection, f"{resource}-{holder.lock}", holder)
                        assert float(ask(connection, idle)) == 7
        with pytest.raises(LeaseLost), postgres.transact(connection, resource, grant):
            pass


def test_a_claim_after_a_read_of_a_fenced_table_is_refused(database: psycopg.Connection[Any], resource: str) -> None:
    database.execute("SELECT palisade_sticky(%s, %s)", [resource, resource])
    database.commit()
    with pytest.raises(Invalid) as refused, database.transaction():
        ask(database, f"SELECT total FROM {resource}")
        postgres.claim(database, resource, 7)
    assert refused.value.code == "read_before_claim"
    # A user's own write that the fence refuses is reported as a rejection.
    with pytest.raises(Rejected) as wrong, postgres.transact(database, f"other-{resource}", 7):
        add(database, resource)
    assert wrong.value.code == "tokenless"


@contextlib.asynccontextmanager
async def opened(kind: str, url: str) -> AsyncIterator[Any]:
    """An asyncio connection for `atransact`."""
    if kind == "psycopg":
        async with await psycopg.AsyncConnection.connect(url) as connection:
            yield connection
    elif kind in ("asyncpg", "asyncpg pool"):
        async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as pooled:
            yield pooled if kind == "asyncpg pool" else pooled._con
    else:
        driver = "psycopg" if kind == "session on psycopg" else "asyncpg"
        engine = aio.create_async_engine(url.replace("postgres:", f"postgresql+{driver}:", 1))
        if kind == "engine":
            yield engine
        else:
            async with engine.connect() if kind == "connection" else aio.AsyncSession(engine) as connection:
                yield connection
        await engine.dispose()


async def aask(transaction: Any, statement: str) -> Any:
    if hasattr(transaction, "run_sync"):
        return await transaction.run_sync(ask, statement)
    if isinstance(transaction, psycopg.AsyncConnection):
        async with transaction.cursor() as cursor:
            await cursor.execute(statement)
            row = await cursor.fetchone() if cursor.description else None
            return None if row is None else row[0]
    return await transaction.fetchval(statement)


@pytest.mark.parametrize(
    "kind", ["psycopg", "asyncpg", "asyncpg pool", "engine", "connection", "session", "session on psycopg"]
)
def test_asyncio(kind: str, postgres_url: str, resource: str, database: psycopg.Connection[Any]) -> None:
    async def add(transaction: Any) -> None:
        total = await aask(transaction, f"SELECT total FROM {resource}")
        await aask(transaction, f"UPDATE {resource} SET total = {total + 1}")

    async def run() -> None:
        tokens, acknowledged = iter(range(1, 10**6)), 0

        async def racer() -> None:
            nonlocal acknowledged
            async with opened(kind, postgres_url) as connection:
                for _ in range(TURNS):
                    try:
                        async with postgres.atransact(connection, resource, next(tokens)) as transaction:
                            await add(transaction)
                        acknowledged += 1
                    except Stale:
                        pass

        await asyncio.gather(*(racer() for _ in range(RACERS)))
        assert ask(database, f"SELECT total FROM {resource}") == acknowledged > RACERS
        database.commit()
        async with opened(kind, postgres_url) as connection:
            with pytest.raises(Stale, match="token 1 is stale: 1 < "):
                async with postgres.atransact(connection, resource, 1):
                    pass
            # An error that was caught: PostgreSQL would answer COMMIT with ROLLBACK, and say nothing.
            with pytest.raises(Invalid, match="rolled back"):
                async with postgres.atransact(connection, resource, next(tokens)) as transaction:
                    await add(transaction)
                    with contextlib.suppress(Exception):
                        await aask(transaction, "SELECT 1 / 0")
            assert ask(database, f"SELECT total FROM {resource}") == acknowledged
            database.commit()
            if kind in ("psycopg", "connection", "session", "session on psycopg"):
                await aask(connection, f"SELECT total FROM {resource}")
                with pytest.raises(ValueError, match="may have read already"):
                    async with postgres.atransact(connection, resource, next(tokens)):
                        pass
            elif kind != "engine":
                with pytest.raises(ValueError, match="needs a transaction"):
                    await postgres.aclaim(connection, resource, next(tokens))

    asyncio.run(run())


def test_what_is_no_connection_or_no_holder_is_named(postgres_url: str, resource: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        for wrong in (connection.cursor(), postgres_url, None):
            with (
                pytest.raises(TypeError, match="psycopg 3 Connection"),
                postgres.transact(wrong, resource, 3),
            ):
                pass
        for holder in (None, "7", 7.0, {"token": 7}, True):
            with pytest.raises((TypeError, ValueError)), postgres.transact(connection, resource, holder):
                pass
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
