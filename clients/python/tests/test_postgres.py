"""The fence in PostgreSQL, through psycopg, SQLAlchemy and Django, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from typing import Any, Callable, ContextManager, Iterator

import django
import django.conf
import django.db
import django.db.transaction
import psycopg
import psycopg.rows
import pytest
import sqlalchemy
import sqlalchemy.orm
from test_rule import VECTORS, operation, record

from palisade.fences import FenceNotInstalled, Pass, Rejected, Stale, postgres
from palisade.fences.rule import Record, Rule

Begin = Callable[[], ContextManager[Any]]


@pytest.fixture
def resource() -> str:
    return f"orders-{uuid.uuid4().hex}"


def _django(url: str) -> Begin:
    if not django.conf.settings.configured:
        parts = sqlalchemy.make_url(url.replace("postgres:", "postgresql:", 1))
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": parts.database, "USER": parts.username}
        place = {"HOST": parts.host, "PORT": parts.port}
        django.conf.settings.configure(DATABASES={"default": {**database, **place}}, USE_TZ=True)
        django.setup()

    @contextlib.contextmanager
    def begin() -> Iterator[Any]:
        with django.db.transaction.atomic():
            yield django.db.connection

    return begin


@pytest.fixture(params=["psycopg", "sqlalchemy", "session", "django"])
def begin(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Begin]:
    """Begins a transaction, which commits at the end of its block."""
    url = postgres_url.replace("postgres:", "postgresql+psycopg:", 1)
    if request.param == "psycopg":
        with psycopg.connect(postgres_url, autocommit=True) as connection:

            @contextlib.contextmanager
            def transaction() -> Iterator[Any]:
                with connection.transaction():
                    yield connection

            yield transaction
    elif request.param == "django":
        yield _django(postgres_url)
        django.db.connection.close()
    else:
        engine = sqlalchemy.create_engine(url)
        yield engine.begin if request.param == "sqlalchemy" else sqlalchemy.orm.sessionmaker(engine).begin
        engine.dispose()


def test_a_newer_holder_shuts_the_older_one_out(begin: Begin, resource: str) -> None:
    with begin() as transaction:
        postgres.claim(transaction, resource, 7)
    with begin() as transaction:
        postgres.claim(transaction, resource, 8)
    with pytest.raises(Stale, match="token 7 is stale: 7 < 8; .* give up") as stale, begin() as transaction:
        postgres.claim(transaction, resource, 7)
    assert stale.value.highest == 8
    with begin() as transaction:
        postgres.claim(transaction, resource, 8)


def test_a_rejection_rolls_the_users_work_back(begin: Begin, resource: str, database: Any) -> None:
    with begin() as transaction:
        postgres.claim(transaction, resource, 8)
    other = f"other-{resource}"
    with pytest.raises(Stale), begin() as transaction:
        postgres.claim(transaction, other, 7)
        postgres.claim(transaction, resource, 7)
    assert database.execute("SELECT token FROM palisade_fence WHERE resource = %s", [other]).fetchone() is None


def test_a_numbered_write_is_recognised_and_answered(begin: Begin, resource: str) -> None:
    for repeat in (False, True):
        with begin() as transaction:
            written = postgres.write(transaction, resource, 7, sequence=1, digest=2**64 - 1)
            assert written.repeat is repeat
            if not repeat:
                postgres.record(transaction, resource, 7, 1, b"seat 12A")
            else:
                assert written.record.result == b"seat 12A"
    with pytest.raises(Rejected, match="another write") as reused, begin() as transaction:
        postgres.write(transaction, resource, 7, sequence=1, digest=5)
    assert reused.value.code == "sequence_reused"


def test_all_resources_are_claimed_or_none(begin: Begin, resource: str) -> None:
    first, second = f"a-{resource}", f"b-{resource}"
    with begin() as transaction:
        postgres.claim_all(transaction, {second: 9, first: 9})
        postgres.claim(transaction, second, 10)
    with pytest.raises(Stale), begin() as transaction:
        postgres.claim_all(transaction, {first: 9, second: 9})


def test_without_a_transaction_nothing_is_claimed(postgres_url: str, resource: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        with pytest.raises(ValueError, match="needs a transaction"):
            postgres.claim(connection, resource, 7)
        found = connection.execute("SELECT count(*) FROM palisade_fence WHERE resource = %s", [resource]).fetchone()
        assert found == (0,)


def test_a_database_without_the_fence_says_what_to_run(postgres_url: str) -> None:
    name = f"bare_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    with (
        psycopg.connect(postgres_url, dbname=name) as bare,
        pytest.raises(FenceNotInstalled, match="palisade fence install postgres"),
    ):
        postgres.claim(bare, "orders", 7)


def test_a_sticky_table_refuses_code_that_forgot_the_fence(begin: Begin, database: Any, resource: str) -> None:
    table = f"t_{uuid.uuid4().hex}"
    database.execute(f"CREATE TABLE {table} (n int)")
    database.execute("SELECT palisade_sticky(%s, %s)", [table, resource])
    database.commit()
    insert = f"INSERT INTO {table} VALUES (1)"

    def run(transaction: Any) -> None:
        if hasattr(transaction, "cursor"):
            with transaction.cursor() as cursor:
                cursor.execute(insert)
        else:
            transaction.execute(sqlalchemy.text(insert))

    with begin() as transaction:
        postgres.claim(transaction, resource, 7)
        run(transaction)
    forgot = None
    try:
        with begin() as transaction:
            run(transaction)
    except Exception as error:
        forgot = postgres.rejection(error)
    assert forgot is not None
    assert (forgot.code, forgot.highest) == ("tokenless", 7)


def test_asyncio(postgres_url: str, resource: str) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            await postgres.aclaim(connection, resource, Pass(7, "authority", "lock"))
            assert not (await postgres.awrite(connection, resource, Pass(7, "authority", "lock"), 1, 2)).repeat
            await postgres.arecord(connection, resource, 7, 1, b"done")
            await connection.commit()
            with pytest.raises(Rejected) as bare:
                await postgres.aclaim(connection, resource, 8)
            assert (bare.value.code, bare.value.authority) == ("wrong_authority", "authority")
            assert "pass the grant, not its number" in str(bare.value)
            await connection.rollback()

    asyncio.run(run())


def _stored(row: tuple[Any, ...]) -> Record:
    digest = None if row[6] is None else row[6] % 2**64
    return Record(row[1], row[2], row[3], row[4], row[5], digest, None if row[7] is None else bytes(row[7]))


def test_the_guard_row_decides_as_the_vectors_say(database: psycopg.Connection[Any], resource: str) -> None:
    """Each vector's record is stored, and the stored one after the operation is the vector's next."""
    wrong = []
    for number, case in enumerate(json.loads(VECTORS.read_text())):
        presented, asked = operation(case["operation"])
        if presented is None:
            # Code without a token does not call the fence here: the triggers refuse it.
            continue
        name = f"{resource}-{number}"
        before = record(case["record"])
        digest = before.digest - 2**64 if before.digest is not None and before.digest >= 2**63 else before.digest
        database.execute(
            "INSERT INTO palisade_fence (resource, authority, lock, token, written, sequence, digest, result)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
            [name, before.authority, before.lock, before.token, before.written, before.sequence, digest, before.result],
        )
        rule = Rule(strict=case["mode"] == "strict", max_jump=case.get("max_jump"))
        verdict = "admit"
        try:
            with database.transaction():
                if asked.kind == "claim":
                    postgres.claim(database, name, presented, rule)
                elif asked.kind == "read":
                    postgres.check(database, name, presented, rule)
                elif postgres.write(database, name, presented, asked.sequence, asked.digest, rule).repeat:
                    verdict = "repeat"
        except Rejected as no:
            verdict = no.code
        row = database.execute(
            """SELECT resource, authority, lock, token, written, sequence, digest, result FROM palisade_fence
            WHERE resource = %s""",
            [name],
        ).fetchone()
        assert row is not None
        expected = record(case["next"]) if "next" in case else before
        if verdict != case["verdict"] or _stored(row) != expected:
            wrong.append((case, verdict, row))
    assert wrong == []


def _pairs(cursor: Any) -> Callable[[Any], list[Any]]:
    return list


@pytest.mark.parametrize(
    "settings",
    [
        {"row_factory": psycopg.rows.dict_row},
        {"row_factory": getattr(psycopg.rows, "scalar_row", psycopg.rows.tuple_row)},  # psycopg 3.2
        {"row_factory": psycopg.rows.namedtuple_row},
        {"row_factory": _pairs},
        {"cursor_factory": psycopg.ClientCursor},
        {"cursor_factory": getattr(psycopg, "RawCursor", psycopg.Cursor)},  # psycopg 3.2
    ],
)
def test_factories_of_the_connection_do_not_matter(postgres_url: str, resource: str, settings: dict[str, Any]) -> None:
    one, two = Pass(3, "a", "orders"), Pass(4, "a", "orders")
    with psycopg.connect(postgres_url, **settings) as connection:
        postgres.claim(connection, resource, one)
        assert not postgres.write(connection, resource, one, 1, 2**63).repeat
        postgres.record(connection, resource, one, 1, b"done")
        assert postgres.write(connection, resource, one, 1, 2**63).record.result == b"done"
        postgres.check(connection, resource, two)

    async def run() -> None:
        async_settings = {
            name: {psycopg.ClientCursor: psycopg.AsyncClientCursor}.get(value, value)
            for name, value in settings.items()
            if value is not getattr(psycopg, "RawCursor", None)
        }
        connection = await psycopg.AsyncConnection.connect(postgres_url, **async_settings)
        async with connection:
            await postgres.aclaim(connection, resource, two)
            assert not (await postgres.awrite(connection, resource, two, 1, 5)).repeat

    asyncio.run(run())


def test_what_is_no_connection_of_a_supported_driver_is_named(postgres_url: str, resource: str) -> None:
    engine = sqlalchemy.create_engine(postgres_url.replace("postgres:", "postgresql+psycopg:", 1))
    with psycopg.connect(postgres_url) as connection:
        for wrong in (engine, connection.cursor(), sqlalchemy.orm.sessionmaker(engine), None):
            with pytest.raises(TypeError, match="psycopg 3 Connection"):
                postgres.claim(wrong, resource, 3)
        with pytest.raises(TypeError, match="AsyncConnection"):
            asyncio.run(postgres.aclaim(connection, resource, 3))
    engine.dispose()

    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            with pytest.raises(TypeError, match="begin with a take a psycopg 3 AsyncConnection"):
                postgres.claim(connection, resource, 3)

    asyncio.run(run())
