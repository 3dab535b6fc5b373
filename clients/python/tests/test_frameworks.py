"""A holder that is stopped (SIGSTOP) in the middle of a write, through each framework. The control loses a write that
was acknowledged to another holder meanwhile; with the fence nothing is lost, and the refusal is the framework's own
kind of error. `zombie.py` is the stopped holder."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import uuid
from typing import Any, Callable, Iterator

import psycopg
import pytest
import redis
from test_mysql import ask, connected

from palisade.fences import mysql, postgres

ZOMBIE = pathlib.Path(__file__).with_name("zombie.py")
# The framework's own kind of error, or Palisade's where its helper begins the transaction.
POSTGRES = {
    "asyncpg": "asyncpg.exceptions._base.PostgresError",
    "psycopg": "palisade.fences.errors.Stale",
    "session": "sqlalchemy.exc.DBAPIError",
    "asession": "sqlalchemy.exc.DBAPIError",
    "django": "django.db.utils.DatabaseError",
    "alembic": "sqlalchemy.exc.DBAPIError",
}
MYSQL = {
    "pymysql": "pymysql.err.OperationalError",
    "aiomysql": "palisade.fences.errors.Stale",
    "session": "sqlalchemy.exc.DBAPIError",
    "asession": "sqlalchemy.exc.DBAPIError",
    "django": "django.db.utils.DatabaseError",
}
MYSQLCLIENT = {
    "mysqlclient": "MySQLdb.OperationalError",
    "mysqlclient:session": "sqlalchemy.exc.DBAPIError",
    "mysqlclient:django": "django.db.utils.DatabaseError",
}


class Target:
    """A total, and how another holder writes it: with a token it claims first."""

    def __init__(self, url: str, read: Callable[[str], int], write: Callable[[str, int, int | None], None]) -> None:
        self.url, self.read, self.write = url, read, write

    def arm(self, name: str) -> None:
        self.write(name, 0, 1)


@pytest.fixture
def in_postgres(postgres_url: str, database: psycopg.Connection[Any]) -> Target:
    def read(name: str) -> int:
        with database.transaction():
            row = database.execute(f"SELECT total FROM {name}").fetchone()
        assert row is not None
        return int(row[0])

    def write(name: str, total: int, token: int | None) -> None:
        with database.transaction():
            database.execute(f"CREATE TABLE IF NOT EXISTS {name} (total int)")
            if token is not None:
                postgres.claim(database, name, token)
            if not database.execute(f"UPDATE {name} SET total = %s", [total]).rowcount:
                database.execute(f"INSERT INTO {name} VALUES (%s)", [total])

    database.execute("SET client_min_messages = error")
    database.commit()
    return Target(postgres_url, read, write)


@pytest.fixture
def in_mysql(mysql_url: str) -> Iterator[Target]:
    with connected(mysql_url, autocommit=True) as connection:

        def read(name: str) -> int:
            return int(ask(connection, f"SELECT total FROM {name}"))

        def write(name: str, total: int, token: int | None) -> None:
            if ask(connection, f"SELECT 1 FROM information_schema.tables WHERE table_name = '{name}'") is None:
                ask(connection, f"CREATE TABLE {name} (total int) ENGINE=InnoDB")
                ask(connection, f"INSERT INTO {name} VALUES (0)")
            if token is None:
                ask(connection, f"UPDATE {name} SET total = {total}")
            else:
                with mysql.transact(connection, name, token):
                    ask(connection, f"UPDATE {name} SET total = {total}")

        yield Target(mysql_url, read, write)


@pytest.fixture
def in_redis(redis_url: str, cache: redis.Redis, binary: str) -> Target:
    subprocess.run([binary, "fence", "install", "redis", redis_url], check=True, stdout=subprocess.DEVNULL)

    def write(name: str, total: int, token: int | None) -> None:
        key = f"{{{name}}}:total"
        if token is None:
            cache.set(key, total)
        else:
            cache.fcall("palisade_set", 2, f"palisade:fence:{{{name}}}", key, str(token), str(total))

    def arm(name: str) -> None:
        cache.delete(f"{{{name}}}:total")
        write(name, 0, 1)

    target = Target(redis_url, lambda name: int(cache.get(f"{{{name}}}:total") or 0), write)
    target.arm = arm  # type: ignore[method-assign]
    return target


def check(framework: str, target: Target, kind: str) -> None:
    name = f"total_{uuid.uuid4().hex}"
    target.write(name, 0, None)
    command = [sys.executable, str(ZOMBIE), framework, target.url, name]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    said, told_to = child.stdout, child.stdin
    assert said is not None
    assert told_to is not None
    try:

        def stopped(token: int | None) -> dict[str, str]:
            """How the write ends of a holder that is stopped while the one with `token` writes."""
            assert said.readline() == "stopped\n"
            child.send_signal(signal.SIGSTOP)
            told_to.write("go on\n")
            told_to.flush()
            target.write(name, 70, token)
            assert target.read(name) == 70, "the write is acknowledged, and there"
            child.send_signal(signal.SIGCONT)
            told: dict[str, str] = json.loads(said.readline())
            return told

        assert stopped(None) == {"ended": "written"}
        assert target.read(name) == 1, "the control loses the acknowledged write"
        target.arm(name)
        told_to.write("again, with a fence\n")
        told_to.flush()
        told = stopped(2)
        assert (target.read(name), told["ended"], told["code"]) == (70, "refused", "stale"), told
        assert kind in told["kinds"].split()
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("framework", POSTGRES)
def test_in_postgresql(framework: str, in_postgres: Target) -> None:
    check(framework, in_postgres, POSTGRES[framework])


@pytest.mark.parametrize("framework", MYSQL)
def test_in_mariadb(framework: str, in_mysql: Target) -> None:
    check(framework, in_mysql, MYSQL[framework])


@pytest.mark.mysqlclient
@pytest.mark.parametrize("framework", MYSQLCLIENT)
def test_by_mysqlclient(framework: str, in_mysql: Target) -> None:
    check(framework, in_mysql, MYSQLCLIENT[framework])


def test_in_redis(in_redis: Target) -> None:
    check("redis", in_redis, "redis.exceptions.ResponseError")
