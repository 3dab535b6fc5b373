"""The examples of docs/use/python.md: each runs as it stands there, and writes once."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import psycopg
import pytest
import redis
import sqlalchemy
from conftest import ROOT
from suite.servers import Palisade
from test_mysql import ask, connected

PAGE = (ROOT / "docs/use/python.md").read_text()
# The names of the list of lines, in the order of the page.
NAMES = [
    "SQLAlchemy",
    "SQLAlchemy with asyncio",
    "asyncpg",
    "psycopg",
    "Django",
    "PyMySQL",
    "aiomysql",
    "redis.asyncio",
]
NAMES += ["Celery", "APScheduler", "RQ", "Airflow", "Alembic"]
BLOCKS = [block for block in re.findall(r"^```python(?: norun)?\n(.*?)^```", PAGE, re.M | re.S) if "try:" not in block]
# The program around the example.
BEFORE = {
    "Django": """
import os, django, sqlalchemy
from django.conf import settings
url = sqlalchemy.make_url(os.environ["SHOP_URL"].replace("postgres:", "postgresql:", 1))
place = {"NAME": url.database, "USER": url.username, "HOST": url.host, "PORT": url.port}
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **place}})
django.setup()
"""
}
# RQ imports a module of jobs.
RQ = """
import os, redis, rq
with redis.Redis.from_url(os.environ["REDIS_URL"]) as connection:
    job = rq.Queue(connection=connection).enqueue("jobs.nightly")
    rq.Worker(["default"], connection=connection).work(burst=True, logging_level="ERROR")
    assert job.latest_result().exc_string is None, job.latest_result().exc_string
"""
# The example is the middle of its `env.py`.
ALEMBIC = """
import os
from alembic import command, config
options = config.Config()
options.set_main_option("script_location", ".")
options.set_main_option("sqlalchemy.url", os.environ["SQLALCHEMY_URL"])
command.upgrade(options, "head")
"""
ENV = """
from alembic import context
from sqlalchemy import engine_from_config
config, target_metadata = context.config, None
"""
MIGRATION = """
from alembic import op
revision, down_revision = "one", None
def upgrade():
    op.execute("INSERT INTO migrated VALUES (1)")
"""
AFTER = {"Celery": "nightly()\n", "APScheduler": "once('ledger')(nightly)()\n"}


@pytest.fixture(scope="module")
def shop(postgres_url: str, mysql_url: str, binary: str) -> str:
    """Databases with a fenced table `ledger`."""
    url = postgres_url.rsplit("/", 1)[0] + "/python_page"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS python_page WITH (FORCE)")
        connection.execute("CREATE DATABASE python_page")
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE ledger AS SELECT 0 AS total")
        connection.execute("CREATE TABLE migrated (total int)")
    with connected(mysql_url) as own:
        ask(own, "CREATE OR REPLACE TABLE ledger (total int) ENGINE=InnoDB")
        ask(own, "INSERT INTO ledger VALUES (0)")
        own.commit()
    for system, place in (("postgres", url), ("mysql", mysql_url)):
        subprocess.run([binary, "fence", "install", system, place, "ledger"], check=True, stdout=subprocess.DEVNULL)
    return url


@pytest.fixture(scope="module")
def authority(binary: str) -> Any:
    """One for all examples: the resource belongs to it."""
    with Palisade(binary) as running:
        yield running


def test_the_lines_are_those_that_the_page_says() -> None:
    counted = {name: sum(bool(line) for line in block.splitlines()) for name, block in zip(NAMES, BLOCKS, strict=True)}
    said = {
        name: int(number) for name, number in re.findall(r"[:,]\s+([\w. ]+) (\d+)(?=[,.])", PAGE[: PAGE.index("\n## ")])
    }
    assert said == counted
    assert max(counted.values()) < 10


@pytest.mark.parametrize("name", [name for name in NAMES if name != "Airflow"])
def test_an_example_runs(
    name: str,
    shop: str,
    authority: Palisade,
    mysql_url: str,
    redis_url: str,
    cache: redis.Redis,
    tmp_path: pathlib.Path,
) -> None:
    def total() -> int:
        if name in ("PyMySQL", "aiomysql"):
            with connected(mysql_url) as own:
                return int(ask(own, "SELECT total FROM ledger"))
        if name == "redis.asyncio":
            return int(cache.get("{ledger}:total") or 0)
        with psycopg.connect(shop) as connection:
            # A migration writes a table of another resource: its own is the schema.
            table = "(SELECT count(*) AS total FROM migrated) AS rows" if name == "Alembic" else "ledger"
            row = connection.execute(f"SELECT total FROM {table}").fetchone()
            assert row is not None
            return int(row[0])

    before = total()
    program = BEFORE.get(name, "") + BLOCKS[NAMES.index(name)] + AFTER.get(name, "")
    if name == "RQ":
        (tmp_path / "jobs.py").write_text(program)
        program = RQ
    if name == "Alembic":
        (tmp_path / "env.py").write_text(ENV + program)
        (tmp_path / "versions").mkdir()
        (tmp_path / "versions/one.py").write_text(MIGRATION)
        program = ALEMBIC
    places = {"SHOP_URL": shop, "REDIS_URL": redis_url, "BROKER_URL": "memory://", "PALISADE_URL": authority.url}
    driver = "postgresql+asyncpg:" if "asyncio" in name else "postgresql+psycopg:"
    places |= {"SQLALCHEMY_URL": shop.replace("postgres:", driver, 1), "HOME": str(tmp_path)}
    mysql = sqlalchemy.make_url(mysql_url)
    (tmp_path / ".my.cnf").write_text(f"[client]\nhost={mysql.host}\nport={mysql.port}\nuser={mysql.username}\n")
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, env={**os.environ, **places})
    assert total() == before + 1
