"""A holder that is stopped in the middle of a write, through a framework. `test_frameworks.py` starts it.

    zombie.py FRAMEWORK URL TABLE

It reads a total, computes the next one, begins its transaction the way the framework's manual does, and says "stopped".
Then it is stopped with SIGSTOP, while another holder writes. The first time there is no fence: this is the control. The
second time it has the token 1 at the resource TABLE. It says how each write ended: the framework's error, and what
`rejection` makes of it. FRAMEWORK may be `mysqlclient:` and the name of one that uses this driver."""

from __future__ import annotations

import asyncio
import json
import pathlib
import sys
import tempfile
from typing import Any, Optional

from palisade.fences import mysql, postgres, rejection

FRAMEWORK, URL, TABLE = sys.argv[1:]
DRIVER, _, FRAMEWORK = FRAMEWORK.rpartition(":")
TOKEN: Optional[int] = None
READ = f"SELECT total FROM {TABLE}"
WRITE = f"UPDATE {TABLE} SET total = "


def stop() -> None:
    """Here the parent sends SIGSTOP, and its line arrives before the SIGCONT."""
    print("stopped", flush=True)
    sys.stdin.readline()


def place(url: str) -> dict[str, Any]:
    from sqlalchemy import make_url  # noqa: PLC0415

    parts = make_url(url)
    return {"host": parts.host, "port": parts.port, "user": parts.username}


async def asyncpg() -> None:
    import asyncpg  # noqa: PLC0415

    connection = await asyncpg.connect(URL)
    total = await connection.fetchval(READ)
    async with connection.transaction():
        stop()
        if TOKEN is not None:
            # The plain statement: without the helper, too, the error is asyncpg's.
            await connection.execute("SELECT palisade_claim($1, $2)", TABLE, TOKEN)
        await connection.execute(f"{WRITE}{total + 1}")


async def psycopg() -> None:
    import psycopg  # noqa: PLC0415

    async with await psycopg.AsyncConnection.connect(URL) as connection, connection.cursor() as cursor:
        await cursor.execute(READ)
        row = await cursor.fetchone()
        assert row is not None
        await connection.commit()
        stop()
        if TOKEN is None:
            await cursor.execute(f"{WRITE}{row[0] + 1}")
        else:
            await connection.commit()
            async with postgres.atransact(connection, TABLE, TOKEN):
                await cursor.execute(f"{WRITE}{row[0] + 1}")


def session() -> None:
    from sqlalchemy import create_engine, orm, text  # noqa: PLC0415

    from palisade.sqlalchemy import fenced  # noqa: PLC0415

    driver = "postgresql+psycopg:"
    if URL.startswith("mysql:"):
        driver = "mysql+mysqldb:" if DRIVER else "mysql+pymysql:"
    Session = orm.sessionmaker(create_engine(driver + URL.partition(":")[2]))
    with Session.begin() as own:
        total = own.execute(text(READ)).scalar_one()

    def write() -> None:
        with Session.begin() as own:
            stop()
            own.execute(text(f"{WRITE}{total + 1}"))

    if TOKEN is None:
        write()
    else:
        with fenced(Session, TABLE, TOKEN):
            write()


async def asession() -> None:
    from sqlalchemy import text  # noqa: PLC0415
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine  # noqa: PLC0415

    from palisade.sqlalchemy import fenced  # noqa: PLC0415

    driver = "mysql+aiomysql:" if URL.startswith("mysql:") else "postgresql+asyncpg:"
    engine = create_async_engine(driver + URL.partition(":")[2])
    Session = async_sessionmaker(engine)
    async with Session.begin() as own:
        total = (await own.execute(text(READ))).scalar_one()

    async def write() -> None:
        async with Session.begin() as own:
            stop()
            await own.execute(text(f"{WRITE}{total + 1}"))

    try:
        if TOKEN is None:
            await write()
        else:
            with fenced(Session, TABLE, TOKEN):
                await write()
    finally:
        await engine.dispose()


def django() -> None:
    import django  # noqa: PLC0415
    from django.conf import settings  # noqa: PLC0415
    from django.db import connection, models, transaction  # noqa: PLC0415

    if not settings.configured:
        system = "mysql" if URL.startswith("mysql:") else "postgresql"
        if system == "mysql" and not DRIVER:
            import pymysql  # noqa: PLC0415

            pymysql.install_as_MySQLdb()
        database = {"ENGINE": f"django.db.backends.{system}", "NAME": URL.rsplit("/", 1)[1]}
        settings.configure(DATABASES={"default": {**database, **{key.upper(): it for key, it in place(URL).items()}}})
        django.setup()

    class Account(models.Model):  # type: ignore[misc]
        total = models.IntegerField(primary_key=True)

        class Meta:
            app_label, db_table = f"shop{TOKEN}", TABLE

    from palisade.django import fenced  # noqa: PLC0415

    total = Account.objects.get().total

    def write() -> None:
        with transaction.atomic():
            stop()
            Account.objects.update(total=total + 1)

    if TOKEN is None:
        write()
    else:
        with fenced(TABLE, TOKEN):
            write()
    connection.close()


def pymysql() -> None:
    import pymysql  # noqa: PLC0415

    with pymysql.connect(**place(URL), database="shop") as connection, connection.cursor() as cursor:
        cursor.execute(READ)
        (total,) = cursor.fetchone()
        connection.rollback()
        connection.begin()
        stop()
        if TOKEN is not None:
            cursor.execute("CALL palisade_claim(%s, %s, NULL, NULL)", [TABLE, TOKEN])
        cursor.execute(f"{WRITE}{total + 1}")
        connection.commit()


def mysqlclient() -> None:
    import MySQLdb  # noqa: PLC0415

    connection = MySQLdb.connect(**place(URL), database="shop")
    with connection.cursor() as cursor:
        cursor.execute(READ)
        (total,) = cursor.fetchone()
        connection.rollback()
        connection.begin()
        stop()
        if TOKEN is not None:
            cursor.execute("CALL palisade_claim(%s, %s, NULL, NULL)", [TABLE, TOKEN])
        cursor.execute(f"{WRITE}{total + 1}")
        connection.commit()


async def aiomysql() -> None:
    import aiomysql  # noqa: PLC0415

    async with aiomysql.connect(**place(URL), db="shop") as connection, connection.cursor() as cursor:
        await cursor.execute(READ)
        (total,) = await cursor.fetchone()
        await connection.rollback()
        stop()
        if TOKEN is None:
            await cursor.execute(f"{WRITE}{total + 1}")
            await connection.commit()
        else:
            async with mysql.atransact(connection, TABLE, TOKEN):
                await cursor.execute(f"{WRITE}{total + 1}")


async def redis() -> None:
    from redis.asyncio import Redis  # noqa: PLC0415

    async with Redis.from_url(URL) as cache:
        key = f"{{{TABLE}}}:total"
        total = int(await cache.get(key) or 0)
        stop()
        if TOKEN is None:
            await cache.set(key, total + 1)
        else:
            await cache.fcall("palisade_set", 2, f"palisade:fence:{{{TABLE}}}", key, TOKEN, total + 1)


ENV = """
import os, sys
from contextlib import nullcontext
from alembic import context
from sqlalchemy import create_engine
import __main__ as zombie
from palisade.sqlalchemy import fenced
engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
fence = nullcontext() if zombie.TOKEN is None else fenced(engine, zombie.TABLE, zombie.TOKEN)
with fence, engine.connect() as connection:
    context.configure(connection=connection, version_table=f"version{zombie.TOKEN}_{zombie.TABLE}")
    zombie.stop()
    with context.begin_transaction():
        context.run_migrations()
"""
VERSION = """
import __main__ as zombie
from alembic import op
revision, down_revision = "one", None
def upgrade():
    op.execute(zombie.WRITE + "1")
"""


def alembic() -> None:
    from alembic import command, config  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        scripts = pathlib.Path(folder)
        (scripts / "versions").mkdir()
        (scripts / "env.py").write_text(ENV)
        (scripts / "versions" / "one.py").write_text(VERSION)
        options = config.Config()
        options.set_main_option("script_location", folder)
        options.set_main_option("sqlalchemy.url", "postgresql+psycopg:" + URL.partition(":")[2])
        command.upgrade(options, "head")


def told() -> dict[str, str]:
    write = globals()[FRAMEWORK]
    try:
        if asyncio.iscoroutinefunction(write):
            asyncio.run(write())
        else:
            write()
    except Exception as error:
        refused = rejection(error)
        kinds = " ".join(f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__)
        return {"ended": "refused", "kinds": kinds, "code": refused.code if refused else repr(error)}
    return {"ended": "written"}


if __name__ == "__main__":
    for TOKEN in (None, 1):  # noqa: B007
        print(json.dumps(told()), flush=True)
        sys.stdin.readline()
