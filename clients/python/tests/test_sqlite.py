"""The fence in SQLite, through sqlite3, SQLAlchemy and Django, in a file that the fence in Rust shares."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import sqlite3
import subprocess
import sys
from typing import Any, Callable, ContextManager, Iterator

import django.db
import pytest
import sqlalchemy
from sqlalchemy.orm import Session
from test_postgres import _django
from test_rule import VECTORS, operation
from test_rule import record as record_of

import palisade.django
import palisade.sqlalchemy
from palisade import Invalid
from palisade.attempts import Attempts
from palisade.fences import FenceNotInstalled, Pass, Rejected, Stale, postgres, rejection, sqlite
from palisade.fences.rule import Rule

Install = Callable[..., None]


@pytest.fixture
def operator(tmp_path: pathlib.Path, binary: str) -> Callable[..., str]:
    """`palisade fence …` about the file."""

    def run(*words: str) -> str:
        url = f"sqlite://{tmp_path}/shop.db"
        command = [binary, "fence", words[0], *(["sqlite", url] if words[0] == "install" else []), *words[1:]]
        more = [] if words[0] == "install" else ["--url", url]
        return subprocess.run([*command, *more], check=True, capture_output=True, text=True).stdout

    return run


@pytest.fixture
def file(tmp_path: pathlib.Path, operator: Callable[..., str]) -> str:
    name = str(tmp_path / "shop.db")
    with contextlib.closing(sqlite3.connect(name)) as connection, connection:
        connection.execute("CREATE TABLE totals (total INTEGER NOT NULL)")
        connection.execute("INSERT INTO totals VALUES (0)")
    operator("install")
    return name


@contextlib.contextmanager
def plain(file: str, **options: Any) -> Iterator[Any]:
    with contextlib.closing(sqlite3.connect(file, **options)) as connection:
        yield connection


@contextlib.contextmanager
def automatic(file: str) -> Iterator[Any]:
    with plain(file, isolation_level=None) as connection:
        yield connection


@contextlib.contextmanager
def with_factories(file: str) -> Iterator[Any]:
    with plain(file) as connection:
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        yield connection


@contextlib.contextmanager
def engine(file: str) -> Iterator[Any]:
    made = sqlalchemy.create_engine(f"sqlite:///{file}")
    yield made
    made.dispose()


@contextlib.contextmanager
def alchemist(file: str) -> Iterator[Any]:
    with engine(file) as made, made.connect() as connection:
        yield connection


@contextlib.contextmanager
def session(file: str) -> Iterator[Any]:
    with engine(file) as made, Session(made) as own:
        yield own


@contextlib.contextmanager
def djangos(file: str) -> Iterator[Any]:
    alias = pathlib.Path(file).parent.name
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": file}
    django.db.connections.databases[alias] = django.db.connections.configure_settings({"default": database})["default"]
    connection = django.db.connections[alias]
    yield connection
    connection.close()


KINDS = [plain, automatic, with_factories, engine, alchemist, session, djangos]
Kind = Callable[[str], ContextManager[Any]]


@pytest.fixture(params=KINDS, ids=lambda kind: str(kind.__name__))
def kind(request: pytest.FixtureRequest) -> Any:
    if request.param is djangos:
        request.getfixturevalue("django_settings")
    return request.param


@pytest.fixture
def django_settings(postgres_url: str) -> None:
    """Those that the other tests of this process need."""
    _django(postgres_url)


def execute(own: Any, statement: str) -> Any:
    if hasattr(own, "ensure_connection"):
        with own.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone() if cursor.description else None
    if isinstance(own, sqlite3.Connection):
        row = own.execute(statement).fetchone()
        return None if row is None else tuple(row)
    result = own.execute(sqlalchemy.text(statement))
    return result.fetchone() if result.returns_rows else None


def total(file: str) -> int:
    with plain(file) as connection:
        return int(connection.execute("SELECT total FROM totals").fetchone()[0])


def test_transact_writes_nothing_for_an_older_holder_or_after_an_error(file: str, kind: Kind) -> None:
    def write(holders: dict[str, Any], number: int, fails: bool = False) -> None:
        with kind(file) as connection, sqlite.transact_all(connection, holders) as own:
            execute(own, f"UPDATE totals SET total = {number}")
            if fails:
                raise ZeroDivisionError

    write({"orders": 8}, 8)
    with pytest.raises(Stale, match="token 7 is stale: 7 < 8"):
        write({"orders": 7}, 7)
    with pytest.raises(ZeroDivisionError):
        write({"orders": 9}, 9, fails=True)
    assert total(file) == 8
    # The failed work took its claim with it.
    write({"orders": 8}, 10)
    write({"other": 9}, 11)
    with pytest.raises(Stale):
        write({"orders": 9, "other": 8}, 12)
    write({"orders": 8, "other": 9}, 13)
    write({"orders": Pass(9, "a", "orders")}, 14)
    with pytest.raises(Rejected) as refused:
        write({"orders": Pass(9, "b", "orders")}, 15)
    assert (refused.value.code, total(file)) == ("wrong_authority", 14)


def test_a_transaction_that_is_over_before_its_end_is_told(file: str, kind: Kind) -> None:
    """The control is the test above: the same without the end."""
    with kind(file) as connection, pytest.raises(Invalid, match="is over") as told:  # noqa: SIM117
        with sqlite.transact(connection, "orders", 1) as own:
            execute(own, "ROLLBACK")
            execute(own, "BEGIN") if kind in (automatic, djangos) else None
            execute(own, "UPDATE totals SET total = 5")
    assert (told.value.code, total(file)) == ("rolled_back", 0)


def test_every_vector_is_decided_alike(file: str) -> None:
    columns = "authority", "lock", "token", "written", "sequence", "digest", "result"
    names = f"resource, {', '.join(columns)}"
    with plain(file) as connection:
        for number, case in enumerate(json.loads(VECTORS.read_text())):
            presented, asked = operation(case["operation"])
            if presented is None:
                continue
            name, before = f"vector-{number}", record_of(case["record"])
            stored = tuple(sqlite._columns(before).values())
            connection.execute(f"INSERT INTO palisade_fence ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (name, *stored))
            rule = Rule(strict=case["mode"] == "strict", max_jump=case.get("max_jump"))
            try:
                admitted = sqlite._run(connection, {name: presented}, asked, rule)
                verdict = "repeat" if admitted.repeat else "admit"
            except Rejected as refused:
                verdict = refused.code
            assert verdict == case["verdict"], case
            shown = connection.execute(f"SELECT {', '.join(columns)} FROM palisade_fence WHERE resource = ?", (name,))
            now = sqlite._record_of(dict(zip(columns, shown.fetchone(), strict=True)))
            assert now == (record_of(case["next"]) if "next" in case else before), case
        connection.rollback()


def test_a_repeat_has_its_result(file: str) -> None:
    def write(digest: int) -> Any:
        with plain(file) as connection, connection:
            answer = sqlite.write(connection, "orders", 7, sequence=1, digest=digest)
            if not answer.repeat:
                sqlite.record(connection, "orders", 7, 1, b"done")
                with pytest.raises(ValueError, match="not number 2"):
                    sqlite.record(connection, "orders", 7, 2, b"")
            return answer

    assert not write(2**64 - 1).repeat
    again = write(2**64 - 1)
    assert (again.repeat, again.record.result) == (True, b"done")
    with pytest.raises(Rejected) as refused:
        write(6)
    assert refused.value.code == "sequence_reused"


def test_a_file_is_shared_with_rust(file: str, operator: Callable[..., str]) -> None:
    with plain(file) as connection:
        with sqlite.transact(connection, "orders", Pass(7, "a", "orders")):
            pass
        shown = json.loads(operator("show", "orders", "--json"))
        assert 7 in shown.values()
        assert "a" in shown.values()
        operator("rearm", "orders", "--floor", "40", "--yes")
        with pytest.raises(Stale), sqlite.transact(connection, "orders", Pass(8, "a", "orders")):
            pass


def test_a_sticky_table_of_rust_takes_the_newest_token_alone(
    file: str, operator: Callable[..., str], kind: Kind
) -> None:
    operator("install", "totals=orders")
    with kind(file) as connection, sqlite.transact(connection, "orders", 7) as own:
        execute(own, "UPDATE totals SET total = 7")
    assert total(file) == 7
    # Code without the fence, and a connection whose claim is not the newest any more.
    with plain(file) as bare, pytest.raises(sqlite3.OperationalError) as unknown:
        bare.execute("UPDATE totals SET total = 8")
    told = rejection(unknown.value)
    assert told is not None
    assert told.code == "tokenless"
    with automatic(file) as old, automatic(file) as new:
        with sqlite.transact(old, "orders", 7):
            pass
        with sqlite.transact(new, "orders", 8):
            pass
        with pytest.raises(sqlite3.IntegrityError) as late:
            old.execute("UPDATE totals SET total = 9")
        assert isinstance(rejection(late.value), Stale)
        # The control: the newest holder's connection.
        new.execute("UPDATE totals SET total = 10")
        # A rejected holder's connection shows no token any more.
        with pytest.raises(Stale), sqlite.transact(old, "orders", 7):
            pass
        with pytest.raises(sqlite3.IntegrityError) as none:
            old.execute("UPDATE totals SET total = 11")
        told = rejection(none.value)
        assert told is not None
        assert told.code == "tokenless"
        # Nobody but a claim sets the token, a trigger or a view least of all.
        with pytest.raises(sqlite3.OperationalError):
            old.execute("SELECT palisade_token('orders', 8)").fetchall()
    assert total(file) == 10


def test_a_claim_outside_of_a_transaction_is_refused(file: str) -> None:
    with automatic(file) as connection:
        with pytest.raises(ValueError, match="needs a transaction"):
            sqlite.claim(connection, "orders", 7)
        connection.execute("BEGIN")
        with pytest.raises(ValueError, match="is in one"), sqlite.transact(connection, "orders", 7):
            pass
        # The control.
        sqlite.claim(connection, "orders", 7)
        sqlite.check(connection, "orders", 7)
        connection.execute("COMMIT")
        with pytest.raises(ValueError, match="nothing to claim"):
            sqlite.claim_all(connection, {})


def test_what_is_missing_is_named(tmp_path: pathlib.Path, file: str) -> None:
    with plain(str(tmp_path / "bare.db")) as connection:
        with pytest.raises(FenceNotInstalled, match="palisade fence install sqlite"):
            sqlite.claim(connection, "orders", 1)
        with pytest.raises(TypeError, match=r"palisade\.fences\.sqlite"):
            postgres.claim(connection, "orders", 1)
        with pytest.raises(TypeError, match="SQLite"):
            Attempts("jobs").take(connection, "me")
    for what in (object(), None):
        with pytest.raises(TypeError, match="sqlite3"):
            sqlite.claim(what, "orders", 1)


def test_every_transaction_of_a_block_claims(file: str, django_settings: None) -> None:
    with engine(file) as made, palisade.sqlalchemy.fenced(made, "orders", 7):
        with made.begin() as connection:
            execute(connection, "UPDATE totals SET total = 7")
        with plain(file) as newer, sqlite.transact(newer, "orders", 8):
            pass
        with pytest.raises(Stale), made.begin() as connection:
            execute(connection, "UPDATE totals SET total = 9")
    with djangos(file) as connection, palisade.django.fenced("orders", 8, using=connection.alias):
        execute(connection, "UPDATE totals SET total = 8")
        with plain(file) as newer, sqlite.transact(newer, "orders", 9):
            pass
        with pytest.raises(Stale):
            execute(connection, "UPDATE totals SET total = 9")
    assert total(file) == 8


HOLDER = """
import sqlite3, sys
from palisade.fences import Stale, sqlite
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
with sqlite.transact(connection, "orders", 7):
    (total,) = connection.execute("SELECT total FROM totals").fetchone()
print("read", flush=True)
sys.stdin.readline()
try:
    if sys.argv[2] == "unfenced":
        connection.execute("UPDATE totals SET total = ?", [total + 1])
    else:
        with sqlite.transact(connection, "orders", 7):
            connection.execute("UPDATE totals SET total = ?", [total + 1])
    print("wrote")
except Stale:
    print("refused")
"""


@pytest.mark.parametrize(("does", "told", "wanted"), [("fenced", "refused", 5), ("unfenced", "wrote", 1)])
def test_a_stopped_holders_write_is_refused(file: str, does: str, told: str, wanted: int) -> None:
    """The control: without the fence the acknowledged 5 of the next holder is lost."""
    command = [sys.executable, "-c", HOLDER, file, does]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "read\n"
        process.send_signal(signal.SIGSTOP)
        with plain(file) as connection, sqlite.transact(connection, "orders", 8):
            connection.execute("UPDATE totals SET total = 5")
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate("\n", timeout=60)
    assert (said, total(file)) == (f"{told}\n", wanted)
