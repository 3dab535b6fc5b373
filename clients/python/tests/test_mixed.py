"""A holder in Rust and one in Python share a fence: whichever is the zombie, nothing acknowledged is lost."""

from __future__ import annotations

import os
import subprocess
import uuid
from typing import Any, Iterator, Protocol

import adder
import psycopg
import pytest
import redis
from conftest import ROOT
from suite.servers import Palisade

from palisade import Client
from palisade.fences import Stale

ROUNDS = 20


class Adder(Protocol):
    """Reads and writes one number in two steps, as a holder that may be paused in between."""

    def read(self, token: int) -> int: ...

    def write(self, token: int, number: int) -> bool: ...


class Rust:
    def __init__(self, store: str, url: str, name: str, fenced: bool) -> None:
        program = os.environ.get("PALISADE_ADDER") or str(ROOT / "target" / "debug" / "examples" / "adder")
        build = "cargo build -p palisade-fence --features postgres,redis --example adder"
        assert os.path.exists(program), f"{program} is missing: run `{build}`, or set PALISADE_ADDER"
        command = [program, store, url, name, "fenced" if fenced else "unfenced"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def read(self, token: int) -> int:
        return int(self.ask(f"read {token}"))

    def write(self, token: int, number: int) -> bool:
        answer = self.ask(f"write {token} {number}")
        assert answer in ("written", "rejected stale")
        return answer == "written"

    def close(self) -> None:
        self.process.communicate()


class Python:
    """The adder of proof/fleet, in this process."""

    def __init__(self, store: str, url: str, name: str, fenced: bool) -> None:
        self.adder = adder.STORES[store](url, name, fenced)

    def read(self, token: int) -> int:
        return int(self.adder.read(token))

    def write(self, token: int, number: int) -> bool:
        try:
            self.adder.write(token, number)
        except Stale:
            return False
        return True

    def close(self) -> None:
        self.adder.close()


def lost(server: Palisade, zombie: Adder, holder: Adder) -> int:
    """How many acknowledged adds are missing in the end: in each round the zombie reads, is paused past its lease, and
    writes between the next holder's read and write."""
    acknowledged = 0
    with Client(server.url) as client:
        for _ in range(ROUNDS):
            first = client.lock("total", wait=0).acquire()
            seen = zombie.read(first.token)
            client.break_lock("total", first.token, "the zombie is paused")
            with client.lock("total", wait=0) as second:
                current = holder.read(second.token)
                acknowledged += zombie.write(first.token, seen + 1)
                acknowledged += holder.write(second.token, current + 1)
            first.release()
        with client.lock("total", wait=0) as last:
            return acknowledged - holder.read(last.token)


@pytest.fixture(params=["postgres", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(store: str, postgres_url: str, redis_url: str) -> Iterator[Any]:
    """Makes a holder in a language, all of them with one number of this test."""
    name, made = f"total-{uuid.uuid4().hex}", []
    url = postgres_url if store == "postgres" else redis_url
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS totals (name text PRIMARY KEY, total bigint)")
        connection.execute("INSERT INTO totals VALUES (%s, 0)", [name])

    def one(language: str, fenced: bool) -> Any:
        if store == "redis" and not fenced:
            with redis.Redis.from_url(url) as connection:
                connection.set(f"{{{name}}}:total", 0, nx=True)
        made.append((Rust if language == "rust" else Python)(store, url, name, fenced))
        return made[-1]

    yield one
    for holder in made:
        holder.close()


@pytest.mark.parametrize(("zombie", "holder"), [("python", "rust"), ("rust", "python")])
def test_nothing_is_lost_behind_a_shared_fence(server: Palisade, make: Any, zombie: str, holder: str) -> None:
    assert lost(server, make(zombie, True), make(holder, True)) == 0


@pytest.mark.parametrize(("zombie", "holder"), [("python", "rust"), ("rust", "python")])
def test_without_a_fence_an_add_is_lost_in_every_round(server: Palisade, make: Any, zombie: str, holder: str) -> None:
    assert lost(server, make(zombie, False), make(holder, False)) == ROUNDS


@pytest.mark.parametrize("store", ["postgres"])
def test_one_zombie_without_the_fence_is_enough_to_lose(server: Palisade, make: Any) -> None:
    """The fence binds only those who call it (and, with sticky tables, everybody)."""
    assert lost(server, make("python", False), make("rust", True)) == ROUNDS
