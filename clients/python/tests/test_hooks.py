"""Fences on every transaction of SQLAlchemy's sessions and of Django: which transactions claim, and which do not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
import uuid
from typing import Any, Iterator

import django.core.management
import django.db
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.exc
import sqlalchemy.ext.asyncio as aio
import sqlalchemy.orm
from django.core.management.base import CommandError
from django.db import transaction
from sqlalchemy import text
from suite.servers import Palisade
from test_mysql import ask, connected
from test_postgres import _django

import palisade.django
import palisade.django.management.commands.fenced as command
from palisade import Client, LeaseLost
from palisade.fences import FenceNotInstalled, Pass, postgres, rejection
from palisade.sqlalchemy import fenced


class Fence:
    """A fenced table and its resource, which have one name."""

    def __init__(self, database: psycopg.Connection[Any]) -> None:
        self.database, self.name = database, f"hook_{uuid.uuid4().hex}"
        self(f"CREATE TABLE {self.name} (total int)")
        self(f"INSERT INTO {self.name} VALUES (0)")
        self("SELECT palisade_sticky(%s, %s)", self.name, self.name)
        self.write = f"UPDATE {self.name} SET total = total + 1"

    def __call__(self, statement: str, *values: object) -> Any:
        with self.database.transaction():
            cursor = self.database.execute(statement, values)
            row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]

    @property
    def total(self) -> int:
        return int(self(f"SELECT total FROM {self.name}"))

    @property
    def token(self) -> Any:
        return self("SELECT token FROM palisade_fence WHERE resource = %s", self.name)

    def claim(self, token: int) -> None:
        with self.database.transaction():
            postgres.claim(self.database, self.name, token)


@pytest.fixture
def fence(database: psycopg.Connection[Any]) -> Fence:
    return Fence(database)


@pytest.fixture
def engine(postgres_url: str) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(postgres_url.replace("postgres:", "postgresql+psycopg:", 1), pool_size=1)
    yield made
    made.dispose()


def code(error: BaseException) -> str | None:
    refused = rejection(error)
    return refused.code if refused else None


def test_every_transaction_of_the_block_claims(fence: Fence, engine: sqlalchemy.Engine) -> None:
    Session = sqlalchemy.orm.sessionmaker(engine)
    for sessions in (Session, sqlalchemy.orm.scoped_session(Session), engine):
        fence.claim((fence.token or 0) + 1)
        before, token = fence.total, fence.token + 1
        with fenced(sessions, fence.name, token):
            for _ in range(2):
                with Session.begin() as session:
                    session.execute(text(fence.write))
                    with session.begin_nested():
                        session.execute(text(fence.write))
            # A commit in the middle: the next transaction claims again.
            with Session() as session:
                session.execute(text(fence.write))
                session.commit()
                session.execute(text(fence.write))
                session.commit()
        assert (fence.total - before, fence.token) == (6, token)
        # After the block nobody claims, and the fenced table refuses.
        with pytest.raises(sqlalchemy.exc.DBAPIError) as forgot, Session.begin() as session:
            session.execute(text(fence.write))
        assert code(forgot.value) == "tokenless"


def test_a_stale_holder_gets_the_frameworks_error_and_writes_nothing(fence: Fence, engine: sqlalchemy.Engine) -> None:
    Session = sqlalchemy.orm.sessionmaker(engine)
    fence.claim(8)
    for sessions in (Session, engine):
        for _ in range(2):
            with (
                fenced(sessions, fence.name, 7),
                pytest.raises(sqlalchemy.exc.DBAPIError) as stale,
                Session.begin() as session,
            ):
                session.execute(text(fence.write))
            assert code(stale.value) == "stale"
        with fenced(sessions, fence.name, 8), Session.begin() as session:
            session.execute(text(fence.write))
    with fenced(engine, fence.name, 7), pytest.raises(sqlalchemy.exc.DBAPIError) as stale, engine.begin() as connection:
        connection.execute(text(fence.write))
    assert code(stale.value) == "stale"
    assert fence.total == 2


def test_two_resources_and_another_maker(fence: Fence, engine: sqlalchemy.Engine, database: Any) -> None:
    other = Fence(database)
    Session, Unfenced = sqlalchemy.orm.sessionmaker(engine), sqlalchemy.orm.sessionmaker(engine)
    with fenced(Session, fence.name, 3), fenced(Session, other.name, 4):
        with Session.begin() as session:
            session.execute(text(fence.write))
            session.execute(text(other.write))
        with pytest.raises(sqlalchemy.exc.DBAPIError), Unfenced.begin() as session:
            session.execute(text(fence.write))
    assert (fence.token, other.token, fence.total, other.total) == (3, 4, 1, 1)


def test_the_block_is_that_of_its_thread(fence: Fence, engine: sqlalchemy.Engine) -> None:
    Session = sqlalchemy.orm.sessionmaker(engine)
    refused: list[str | None] = []

    def elsewhere() -> None:
        try:
            with Session.begin() as session:
                session.execute(text(fence.write))
        except sqlalchemy.exc.DBAPIError as error:
            refused.append(code(error))

    with fenced(Session, fence.name, 3):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert refused == ["tokenless"]


def test_a_lost_lease_sends_nothing(fence: Fence, engine: sqlalchemy.Engine, server: Palisade) -> None:
    Session = sqlalchemy.orm.sessionmaker(engine)
    with Client(server.url) as client, client.lock(fence.name) as grant, fenced(Session, fence.name, grant):
        with Session.begin() as session:
            session.execute(text(fence.write))
        grant.release()
        with pytest.raises(LeaseLost), Session.begin() as session:
            session.execute(text(fence.write))
    assert fence.total == 1


def test_without_transactions_nothing_is_claimed(fence: Fence, engine: sqlalchemy.Engine) -> None:
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    Session = sqlalchemy.orm.sessionmaker(alone)
    with (
        fenced(Session, fence.name, 3),
        pytest.raises(ValueError, match="a fence needs a transaction"),
        Session.begin() as session,
    ):
        session.execute(text(fence.write))
    assert fence.token is None
    for wrong in (object(), "sessions", sqlalchemy):
        with pytest.raises(TypeError, match="sessionmaker"), fenced(wrong, fence.name, 3):
            pass


def test_the_pool_exhausted(fence: Fence, postgres_url: str) -> None:
    url = postgres_url.replace("postgres:", "postgresql+psycopg:", 1)
    small = sqlalchemy.create_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    with small.connect(), fenced(small, fence.name, 3), pytest.raises(sqlalchemy.exc.TimeoutError):
        small.connect()
    small.dispose()


def test_a_holder_that_is_stopped_in_its_transaction_loses_its_connection(fence: Fence, postgres_url: str) -> None:
    """The database ends it when the lease is over. Here the setting of the connection says so, as a grant does else."""
    url = postgres_url.replace("postgres:", "postgresql+psycopg:", 1)
    engine = sqlalchemy.create_engine(url, connect_args={"options": "-c palisade.lease_left_ms=100"})
    Session = sqlalchemy.orm.sessionmaker(engine)
    with (
        fenced(Session, fence.name, 7),
        pytest.raises(sqlalchemy.exc.DBAPIError, match="idle-in-transaction timeout") as ended,
        Session.begin() as session,
    ):
        session.execute(text(fence.write))
        pid = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
        end = time.monotonic() + 60
        while fence("SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid):
            assert time.monotonic() < end
            time.sleep(0.01)  # real time: asked again, up to a deadline
        session.execute(text(fence.write))
    assert code(ended.value) is None
    fence.claim(8)
    assert fence.total == 0
    engine.dispose()


def test_a_commit_that_fails(fence: Fence, engine: sqlalchemy.Engine) -> None:
    Session = sqlalchemy.orm.sessionmaker(engine)
    with (
        fenced(Session, fence.name, 7),
        pytest.raises(sqlalchemy.exc.OperationalError),
        Session.begin() as session,
    ):
        session.execute(text(fence.write))
        fence("SELECT pg_terminate_backend(%s, 10000)", session.execute(text("SELECT pg_backend_pid()")).scalar_one())
    # The same holder may go on.
    with fenced(Session, fence.name, 7), Session.begin() as session:
        session.execute(text(fence.write))
    assert fence.total == 1


def test_a_token_of_another_server_or_lock(fence: Fence, engine: sqlalchemy.Engine) -> None:
    for holder, told in (
        (Pass(3, "a", "l"), None),
        (Pass(4, "b", "l"), "wrong_authority"),
        (Pass(4, "a"), "wrong_lock"),
    ):
        try:
            with fenced(engine, fence.name, holder), engine.begin():
                pass
            assert told is None
        except sqlalchemy.exc.DBAPIError as error:
            assert code(error) == told


def test_asyncio(fence: Fence, postgres_url: str) -> None:
    async def run() -> None:
        made = aio.create_async_engine(postgres_url.replace("postgres:", "postgresql+asyncpg:", 1))
        Session = aio.async_sessionmaker(made)
        for number, sessions in enumerate((Session, made, aio.async_scoped_session(Session, asyncio.current_task))):

            async def write() -> None:
                async with Session.begin() as session:
                    await session.execute(text(fence.write))

            token = 2**40 + 10 * number
            with fenced(sessions, fence.name, token + 2):
                await asyncio.gather(write(), write())
                assert fence.token == token + 2
            with fenced(sessions, fence.name, token + 1), pytest.raises(sqlalchemy.exc.DBAPIError) as stale:
                await write()
            assert code(stale.value) == "stale"
            with pytest.raises(sqlalchemy.exc.DBAPIError) as forgot:
                await write()
            assert code(forgot.value) == "tokenless"
        async with aio.AsyncSession(made) as session:
            with fenced(session, fence.name, 2**41):
                await session.execute(text(fence.write))
                await session.commit()
        assert fence.total == 7
        await made.dispose()

    asyncio.run(run())


@pytest.mark.parametrize("driver", ["pymysql", "aiomysql"])
def test_mariadb_gives_the_pool_its_connection_back_as_it_was(driver: str, mysql_url: str) -> None:
    """Else the next user's transaction would end after the bound of this one's lease."""
    name, idle = f"hook-{uuid.uuid4().hex}", text("SELECT @@SESSION.idle_write_transaction_timeout")

    def sync() -> None:
        engine = sqlalchemy.create_engine(mysql_url.replace("mysql:", "mysql+pymysql:", 1), pool_size=1)
        with fenced(engine, name, 3), engine.begin() as connection:
            assert connection.execute(idle).scalar() == 10
        with engine.connect() as connection:
            assert connection.execute(idle).scalar() == 0
        engine.dispose()

    async def run() -> None:
        engine = aio.create_async_engine(mysql_url.replace("mysql:", "mysql+aiomysql:", 1), pool_size=1)
        with fenced(engine, name, 3):
            async with engine.begin() as connection:
                assert (await connection.execute(idle)).scalar() == 10
        async with engine.connect() as connection:
            assert (await connection.execute(idle)).scalar() == 0
        await engine.dispose()

    if driver == "pymysql":
        sync()
    else:
        asyncio.run(run())
    with connected(mysql_url) as reader:
        assert ask(reader, f"SELECT token FROM palisade_fence WHERE resource = '{name}'") == 3


def execute(statement: str) -> None:
    with django.db.connection.cursor() as cursor:
        cursor.execute(statement)


def test_django(fence: Fence, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _django(postgres_url)
    claims: list[Any] = []
    counted = postgres._claims

    def counting(*them: Any) -> Any:
        claims.append(them)
        return counted(*them)

    monkeypatch.setattr(postgres, "_claims", counting)
    with palisade.django.fenced(fence.name, 7):
        with transaction.atomic():
            execute(fence.write)
            with transaction.atomic():
                execute(fence.write)
        assert len(claims) == 1, "once for each outermost block"
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            execute(fence.write)
            raise ZeroDivisionError
        execute(fence.write)  # in an atomic of its own
        execute("SELECT 1")
        assert len(claims) == 3
        with transaction.atomic():
            # A claim in a savepoint that is rolled back is none.
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                raise ZeroDivisionError
            execute(fence.write)
        assert (fence.total, fence.token) == (4, 7)
    fence.claim(8)
    for attempt in range(2):
        with (
            palisade.django.fenced(fence.name, 7),
            pytest.raises(django.db.DatabaseError) as stale,
            transaction.atomic(),
        ):
            execute(fence.write)
        assert code(stale.value) == "stale", attempt
    with pytest.raises(django.db.DatabaseError) as forgot:
        execute(fence.write)
    assert code(forgot.value) == "tokenless"
    with (
        transaction.atomic(),
        pytest.raises(ValueError, match="outside of `atomic`"),
        palisade.django.fenced(fence.name, 9),
    ):
        pass
    assert fence.total == 4
    django.db.connection.close()


def test_djangos_command(fence: Fence, postgres_url: str, server: Palisade, monkeypatch: pytest.MonkeyPatch) -> None:
    _django(postgres_url)
    monkeypatch.setenv("PALISADE_URL", server.url)

    class Write(django.core.management.BaseCommand):  # type: ignore[misc]
        def handle(self, *arguments: Any, **options: Any) -> None:
            execute(fence.write)

    monkeypatch.setattr(command, "call_command", lambda name: django.core.management.call_command(Write()))
    run = ["--ttl", "5s", fence.name, "write"]
    django.core.management.call_command(command.Command(), *run)
    assert (fence.total, fence.token) == (1, 1)
    with (
        Client(server.url) as client,
        client.lock(fence.name),
        pytest.raises(CommandError, match="another process has the lock"),
    ):
        django.core.management.call_command(command.Command(), *run)
    with fence.database.transaction():
        postgres.claim(fence.database, fence.name, Pass(99, server.authority(), fence.name))
    with pytest.raises(CommandError, match="token 3 is stale: 3 < 99"):
        django.core.management.call_command(command.Command(), *run)
    assert fence.total == 1
    django.db.connection.close()


MANAGE = """
import os, sys, django, sqlalchemy
from django.conf import settings
from django.core.management import execute_from_command_line
url = sqlalchemy.make_url(os.environ["SHOP_URL"].replace("postgres:", "postgresql:", 1))
place = {"NAME": url.database, "USER": url.username, "HOST": url.host, "PORT": url.port}
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **place}},
    INSTALLED_APPS=["palisade.django", "django.contrib.contenttypes"],
)
execute_from_command_line(sys.argv)
"""


def test_djangos_migrations(postgres_url: str, binary: str, server: Palisade) -> None:
    name = f"migrated_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = postgres_url.rsplit("/", 1)[0] + f"/{name}"
    subprocess.run([binary, "fence", "install", "postgres", url], check=True, stdout=subprocess.DEVNULL)

    def manage(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", MANAGE, "fenced", "--ttl", "5s", "schema", "migrate", *arguments]
        environment = {**os.environ, "SHOP_URL": url, "PALISADE_URL": server.url}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert manage("contenttypes", "0001").returncode == 0
    with psycopg.connect(url) as connection:
        postgres.claim(connection, "schema", Pass(99, server.authority(), "schema"))
        connection.commit()
        refused = manage()
        assert (refused.returncode, "token 2 is stale: 2 < 99" in refused.stderr) == (1, True), refused.stderr
        applied = connection.execute("SELECT name FROM django_migrations").fetchall()
    assert applied == [("0001_initial",)]


def test_a_fence_that_is_not_installed(postgres_url: str) -> None:
    name = f"bare_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = sqlalchemy.make_url(postgres_url.replace("postgres:", "postgresql+psycopg:", 1)).set(database=name)
    engine = sqlalchemy.create_engine(url)
    with (
        fenced(engine, "orders", 3),
        pytest.raises(sqlalchemy.exc.ProgrammingError, match="palisade_claim"),
        engine.begin(),
    ):
        pass
    with pytest.raises(FenceNotInstalled, match="palisade fence install"), postgres.transact(engine, "orders", 3):
        pass
    engine.dispose()
