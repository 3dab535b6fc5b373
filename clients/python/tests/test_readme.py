"""Every example of the README, as it stands there."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
from typing import Any

import psycopg
import pytest
import sqlalchemy
from suite.servers import Palisade
from test_postgres import _django

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]


@pytest.fixture
def shop(postgres_url: str, binary: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A database as the README's reader has it, found by the environment."""
    url = sqlalchemy.make_url(postgres_url.replace("postgres:", "postgresql:", 1))
    for name, value in {"PGHOST": url.host, "PGPORT": url.port, "PGUSER": url.username}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PALISADE_FENCE_URL", postgres_url.rsplit("/", 1)[0] + "/shop")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)")
        connection.execute("CREATE DATABASE shop")
    with psycopg.connect("dbname=shop", autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (total int)")
        connection.execute("INSERT INTO orders VALUES (41)")
        yield connection


def test_from_install_to_a_fenced_write(
    shop: psycopg.Connection[Any], server: Palisade, binary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALISADE_URL", server.url)
    (commands,) = (text for language, text in BLOCKS if language == "sh")
    pip, install = (shlex.split(line) for line in commands.splitlines())
    # `clients/check` has run the first command.
    assert pip == ["pip", "install", "./clients/python[postgres]"]
    assert install[0] == "palisade"
    subprocess.run([binary, *install[1:]], check=True, stdout=subprocess.DEVNULL)
    lines = [line for line in PYTHON[0].splitlines() if line]
    assert len(lines) + 2 <= 10
    exec(compile(PYTHON[0], str(README), "exec"), {})
    assert shop.execute("SELECT total FROM orders").fetchone() == (42,)
    # The fence is up: the token after this one is the only one that may write now.
    assert shop.execute("SELECT token, lock FROM palisade_fence WHERE resource = 'orders'").fetchone() == (1, "orders")


@pytest.mark.parametrize("number", range(1, len(PYTHON)))
def test_every_other_example_runs(
    number: int,
    postgres_url: str,
    redis_url: str,
    server: Palisade,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _django(postgres_url)
    monkeypatch.setenv("PALISADE_URL", server.url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.chdir(tmp_path)
    os.mkdir("reports")
    exec(compile(PYTHON[number], str(README), "exec"), {})
    assert server.next_token() == 2
    assert "Traceback" not in capsys.readouterr().out
