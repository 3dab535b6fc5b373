"""Job attempts in a table of the user's own, on a real PostgreSQL: each mistake of hand-written ones loses something
without the pattern, and nothing with it. Time passes by statements that move time-stamps back."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import uuid
from typing import Any, Callable, Iterator

import psycopg
import pytest
import redis
import sqlalchemy
from conftest import ROOT
from test_mysql import ask, connected
from test_mysql import opened as opened_mysql
from test_transact import opened

from palisade import Invalid
from palisade.attempts import AsyncAttempts, Attempt, Attempts
from palisade.fences import Rejected, Stale, postgres
from palisade.fences.redis import Resource

Database = psycopg.Connection[tuple[Any, ...]]
PAGE = (ROOT / "docs/use/job-attempts.md").read_text()


class Jobs:
    """A table of jobs, the helper for it, and a table with a total that the jobs write."""

    def __init__(self, url: str) -> None:
        self.url, name = url, uuid.uuid4().hex
        self.table, self.accounts = f"jobs_{name}", f"accounts_{name}"
        self.db: Database = psycopg.connect(url, autocommit=True)
        for statement in re.findall(r"^```sql norun\n(CREATE.*?)^```", PAGE, re.M | re.S)[0].split(";"):
            if statement.strip():
                self(statement.replace("jobs_open", f"open_{name}").replace("jobs", self.table))
        self(f"ALTER TABLE {self.table} ADD progress int, ADD result text, ADD claimed_at timestamptz DEFAULT now()")
        self(f"CREATE TABLE {self.accounts} (total int)")
        self(f"INSERT INTO {self.accounts} VALUES (0)")
        self.attempts = Attempts(self.table)
        self.id = self.add()

    def __call__(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self.db.execute(statement.replace("JOBS", self.table).replace("ACCOUNTS", self.accounts), values)
        return cursor.fetchall() if cursor.description else [()] * max(0, cursor.rowcount)

    def add(self) -> int:
        return int(self("INSERT INTO JOBS (payload) VALUES ('{}') RETURNING id")[0][0])

    def take(self, worker: str) -> Attempt:
        taken = self.attempts.take(self.db, worker)
        assert taken is not None
        return taken

    def lease_passes(self) -> None:
        self("UPDATE JOBS SET lease_until = clock_timestamp() - interval '1 second' WHERE state = 'running'")

    def two(self, second: str = "w2") -> tuple[Attempt, Attempt]:
        """w1 is paused past its lease, and another attempt has its job."""
        old = self.take("w1")
        self.lease_passes()
        return old, self.take(second)

    def of(self, columns: str) -> Any:
        row = self(f"SELECT {columns} FROM JOBS WHERE id = %s", self.id)[0]
        return row[0] if len(row) == 1 else row

    @property
    def total(self) -> int:
        return int(self("SELECT total FROM ACCOUNTS")[0][0])

    def write(self, attempt: Attempt, statement: str, *values: object) -> None:
        with self.attempts.transact(self.db, attempt):
            self(statement, *values)


@pytest.fixture
def jobs(postgres_url: str) -> Iterator[Jobs]:
    made = Jobs(postgres_url)
    yield made
    made.db.close()


@pytest.fixture
def same(postgres_url: str) -> Iterator[Jobs]:
    """Another table, for the same story with the pattern."""
    made = Jobs(postgres_url)
    yield made
    made.db.close()


def test_1_a_stable_name_of_a_worker_is_no_owner(jobs: Jobs, same: Jobs) -> None:
    jobs.two("w1")
    progress = "UPDATE JOBS SET progress = %s WHERE worker = 'w1' AND state = 'running'"
    assert jobs(progress, 70), "the second attempt's progress is acknowledged"
    assert jobs(progress, 10), "the first one's passes for it"
    assert jobs.of("progress") == 10

    old, new = same.two("w1")
    with same.db.transaction():
        same.attempts.guard(same.db, new)
        same("UPDATE JOBS SET progress = 70")
    with pytest.raises(Stale, match="token 1 is stale: 1 < 2"):
        same.write(old, "UPDATE JOBS SET progress = 10")
    assert same.of("progress, state") == (70, "running")


def test_2_a_heartbeat_without_a_predicate_steals_the_lease_back(jobs: Jobs, same: Jobs) -> None:
    jobs.two()
    jobs("UPDATE JOBS SET lease_until = now() + interval '30 s', worker = 'w1' WHERE id = %s", jobs.id)
    done = "UPDATE JOBS SET state = 'done', result = %s WHERE id = %s AND worker = %s AND state = 'running'"
    assert not jobs(done, "new", jobs.id, "w2"), "the job's owner is refused"
    assert jobs(done, "old", jobs.id, "w1")
    assert jobs.of("result") == "old"

    old, new = same.two()
    with pytest.raises(Stale):
        same.attempts.heartbeat(same.db, old)
    same.attempts.heartbeat(same.db, new)
    same.write(new, "UPDATE JOBS SET result = 'new'")
    assert same.of("result, state, worker") == ("new", "done", "w2")


def test_3_a_state_alone_does_not_say_whose_completion_it_is(jobs: Jobs, same: Jobs) -> None:
    jobs.two()
    done = "UPDATE JOBS SET state = 'done', result = %s WHERE id = %s AND state = 'running'"
    assert jobs(done, "old", jobs.id)
    assert not jobs(done, "new", jobs.id)
    assert jobs.of("result") == "old"

    old, new = same.two()
    with pytest.raises(Stale):
        same.write(old, "UPDATE JOBS SET result = 'old'")
    same.write(new, "UPDATE JOBS SET result = 'new'")
    assert same.of("result, state") == ("new", "done")


def test_4_a_generation_that_restarts(jobs: Jobs, same: Jobs, cache: redis.Redis) -> None:
    again = "UPDATE JOBS SET state = 'ready', attempt = 0"
    old = jobs.take("w1")
    fence, key = Resource(old.resource), f"{{{old.resource}}}:x"
    jobs.lease_passes()
    fence.claim(cache, jobs.take("w2"))
    jobs(again)  # an operator's button
    new = jobs.take("w3")
    with pytest.raises(Stale):
        fence.set(cache, new, key, 1)  # the rightful attempt
    jobs.write(old, "UPDATE JOBS SET result = 'old'")
    assert jobs.of("result, state, worker") == ("old", "done", "w3")

    old = same.take("w1")
    with same.db.transaction():
        same.attempts.fail(same.db, old, "no")
    assert same.of("state, reason, attempt") == ("ready", "no", 1)
    new = same.take("w3")
    assert new.attempt == 2
    with pytest.raises(Stale):
        same.write(old, "UPDATE JOBS SET result = 'old'")
    with same.db.transaction():
        same.attempts.fail(same.db, new, "never", retry=False)
    assert same.of("state, result") == ("failed", None)
    # The way to do it again is a new job.
    same("INSERT INTO JOBS (payload) SELECT payload FROM JOBS WHERE state = 'failed'")
    with pytest.raises(Rejected, match="already a write under this token"):
        same.write(new, "UPDATE JOBS SET result = 'old'")
    assert same.take("w1").job_id != same.id


def test_5_a_reaper_that_does_not_see_heartbeats(jobs: Jobs, same: Jobs) -> None:
    an_hour = "UPDATE JOBS SET claimed_at = now() - interval '1 hour'"
    first = jobs.take("w1")
    jobs(an_hour)
    jobs.attempts.heartbeat(jobs.db, first)
    jobs("UPDATE JOBS SET state = 'ready' WHERE state = 'running' AND claimed_at < now() - interval '30 s'")
    assert jobs.take("w2").attempt == 2, "two live workers have one job"
    with pytest.raises(Stale):
        jobs.write(first, "UPDATE ACCOUNTS SET total = 70")
    assert jobs.total == 0, "the work of an hour is lost"

    first = same.take("w1")
    same(an_hour)
    same.attempts.heartbeat(same.db, first)
    assert same.attempts.reap(same.db) == []
    assert same.attempts.take(same.db, "w2") is None
    same.write(first, "UPDATE ACCOUNTS SET total = 70")
    assert (same.total, same.of("state")) == (70, "done")


def test_6_clocks_of_workers(jobs: Jobs, same: Jobs) -> None:
    take = """UPDATE JOBS SET state = 'running', attempt = attempt + 1, worker = %(worker)s,
        lease_until = %(now)s::timestamptz + interval '30 s'
        WHERE state = 'ready' OR (state = 'running' AND lease_until < %(now)s::timestamptz) RETURNING attempt"""
    now = jobs("SELECT now(), now() + interval '60 s'")[0]
    for worker, clock in zip(("w1", "w2"), now, strict=True):
        row = jobs.db.execute(take.replace("JOBS", jobs.table), {"worker": worker, "now": clock}).fetchone()
        assert row is not None, "w2's clock is a minute ahead: it takes a job that was taken just now"
    with pytest.raises(Stale):
        jobs.write(Attempt(jobs.id, 1, "w1", {}, "jobs"), "UPDATE ACCOUNTS SET total = 70")
    assert jobs.total == 0

    first = same.take("w1")
    assert same.attempts.take(same.db, "w2") is None
    same.write(first, "UPDATE ACCOUNTS SET total = 70")
    assert same.total == 70


def test_7_an_id_that_is_used_again(jobs: Jobs, same: Jobs) -> None:
    old = jobs.take("w1")
    jobs("DELETE FROM JOBS")
    jobs("INSERT INTO JOBS (id, payload) OVERRIDING SYSTEM VALUE VALUES (%s, '{}')", old.job_id)
    assert jobs.take("w2").attempt == 1
    jobs.write(old, "UPDATE JOBS SET result = 'old'")
    assert jobs.of("result, state, worker") == ("old", "done", "w2"), "nobody did the new job"

    old = same.take("w1")
    same("DELETE FROM JOBS")
    same.id = same.add()
    new = same.take("w2")
    with pytest.raises(Rejected) as gone:
        same.write(old, "UPDATE JOBS SET result = 'old'")
    assert gone.value.code == "already_written"
    same.write(new, "UPDATE JOBS SET result = 'new'")
    assert same.of("result, state") == ("new", "done")


def test_8_effects_outside_of_the_row(jobs: Jobs, same: Jobs) -> None:
    old, new = jobs.two()
    jobs.write(new, "UPDATE ACCOUNTS SET total = 70")
    jobs("UPDATE ACCOUNTS SET total = 10")
    assert not jobs("UPDATE JOBS SET state = 'done' WHERE id = %s AND attempt = 1 AND state = 'running'", jobs.id)
    assert jobs.total == 10, "the completion was refused, and the effect stands"

    old, new = same.two()
    same.write(new, "UPDATE ACCOUNTS SET total = 70")
    with pytest.raises(Stale):
        same.write(old, "UPDATE ACCOUNTS SET total = 10")
    # And if the effect comes first, and the refusal is dropped, the transaction still cannot commit.
    with same.db.transaction():
        same("UPDATE ACCOUNTS SET total = 10")
        with pytest.raises(Stale):
            same.attempts.finish(same.db, old)
    assert same.total == 70


def test_9_a_maximum_that_only_failures_count(jobs: Jobs, same: Jobs) -> None:
    take = """UPDATE JOBS SET state = 'running', attempt = attempt + 1, lease_until = now() + interval '30 s'
        WHERE id = (SELECT id FROM JOBS WHERE state = 'ready' OR (state = 'running' AND lease_until < now())
            ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING id"""
    jobs.add()
    taken = []
    for _ in range(20):
        taken += jobs(take)  # and the job kills its worker
        jobs.lease_passes()
    assert {row[0] for row in taken} == {jobs.id}, "the job behind it never runs"

    second = same.add()
    for number in range(1, 6):
        assert (same.take("w1").job_id, same.of("attempt")) == (same.id, number)
        same.lease_passes()
    assert same.take("w2").job_id == second
    assert same.of("state, reason") == ("failed", "attempt 5 was the last of 5, and its lease expired (worker w1)")
    same.lease_passes()
    assert Attempts(same.table, max_attempts=1).reap(same.db) == [second]


def test_which_call_begins_a_transaction(jobs: Jobs, postgres_url: str) -> None:
    attempt = jobs.take("w1")
    for call in (jobs.attempts.guard, jobs.attempts.finish):
        with pytest.raises(ValueError, match="needs a transaction"):
            call(jobs.db, attempt)
    with jobs.db.transaction():
        for alone in (
            lambda: jobs.attempts.take(jobs.db, "w2"),
            lambda: jobs.attempts.reap(jobs.db),
            lambda: jobs.attempts.heartbeat(jobs.db, attempt),
        ):
            with pytest.raises(ValueError, match="an attempt has to count before its work begins"):
                alone()
    # A block that ends the job itself.
    with jobs.attempts.transact(jobs.db, attempt):
        jobs.attempts.fail(jobs.db, attempt, "no")
    assert jobs.of("state") == "ready"
    with pytest.raises(ZeroDivisionError), jobs.attempts.transact(jobs.db, jobs.take("w1")):
        jobs("UPDATE ACCOUNTS SET total = 10")
        raise ZeroDivisionError
    assert (jobs.total, jobs.of("state, attempt")) == (0, ("running", 2))
    with pytest.raises(TypeError, match="psycopg 3 Connection"):
        jobs.attempts.take(postgres_url, "w1")


def test_values_out_of_range_are_named() -> None:
    for wrong in ({"table": "a b"}, {"table": "a.b.c"}, {"max_attempts": 0}, {"authority": ""}, {"authority": "ä"}):
        with pytest.raises(Invalid):
            Attempts(**wrong)
    for lease in ("999ms", "25h", 0):
        with pytest.raises(ValueError, match="lease"):
            Attempts(lease=lease)
    assert Attempts("app.jobs").authority == "app.jobs"


def test_a_view_gives_other_columns_the_names(jobs: Jobs) -> None:
    name = f"view_{uuid.uuid4().hex}"
    jobs("ALTER TABLE JOBS RENAME id TO job_number")
    jobs(f"""CREATE VIEW {name} AS SELECT job_number AS id, state, attempt, lease_until, worker, reason FROM JOBS
        WHERE payload ->> 'queue' = 'mail'""")
    attempts = Attempts(name)
    assert attempts.take(jobs.db, "w1") is None
    jobs('UPDATE JOBS SET payload = \'{"queue": "mail"}\'')
    attempt = attempts.take(jobs.db, "w1")
    assert attempt is not None
    with attempts.transact(jobs.db, attempt):
        jobs("UPDATE ACCOUNTS SET total = 1")
    assert jobs("SELECT state FROM JOBS") == [("done",)]


def test_no_two_workers_get_one_job(jobs: Jobs) -> None:
    """A job that another transaction has is passed over, and nobody waits for it."""
    second, attempt = jobs.add(), jobs.take("w1")
    jobs.lease_passes()
    with psycopg.connect(jobs.url) as other, jobs.attempts.transact(other, attempt):
        with pytest.raises(psycopg.errors.LockNotAvailable), jobs.db.transaction():
            jobs("SELECT FROM JOBS WHERE id = %s FOR UPDATE NOWAIT", jobs.id)
        assert jobs.take("w2").job_id == second
        assert jobs.attempts.take(jobs.db, "w3") is None


def test_the_examples_of_the_page(jobs: Jobs) -> None:
    """Python's runs here, the others in their languages' own tests."""
    found = re.findall(r"^## (\w+)\n\n```\w+(?: norun)?\n(.*?)^```", PAGE, re.M | re.S)
    counted = {name: sum(bool(line.strip()) for line in block.splitlines()) for name, block in found}
    said = "Lines to a fenced job: " + ", ".join(f"{name} {lines}" for name, lines in counted.items()) + "."
    assert said in " ".join(PAGE.split())
    assert max(counted.values()) < 10
    jobs("UPDATE JOBS SET payload = %s", '{"amount": 7}')
    example = dict(found)["Python"].replace("dbname=shop", jobs.url).replace('"jobs"', f'"{jobs.table}"')
    subprocess.run([sys.executable, "-c", example.replace("accounts", jobs.accounts)], check=True)
    assert (jobs.total, jobs.of("state")) == (7, "done")


def test_the_index_of_the_page_is_used(jobs: Jobs) -> None:
    with jobs.db.transaction():
        jobs("SET LOCAL enable_seqscan = off")
        plan = jobs("""EXPLAIN SELECT id FROM JOBS WHERE attempt < 5 AND
            (state = 'ready' OR (state = 'running' AND lease_until < clock_timestamp())) ORDER BY id LIMIT 1""")
    assert " on open_" in str(plan)


def test_an_attempt_is_a_holder_for_every_fence(jobs: Jobs, cache: redis.Redis) -> None:
    old, new = jobs.two()
    assert (new.token, new.authority, new.lock) == (2, jobs.table, f"job:{jobs.id}")
    name = uuid.uuid4().hex
    with jobs.db.transaction():
        postgres.claim(jobs.db, f"{new.resource}-{name}", new)
    with pytest.raises(Stale), jobs.db.transaction():
        postgres.claim(jobs.db, f"{new.resource}-{name}", old)
    # A server's token, and another job's attempt, are no numbers to compare.
    for other, code in ((7, "wrong_authority"), (Attempt(99, 7, "w", {}, jobs.table), "wrong_lock")):
        with pytest.raises(Rejected) as refused, jobs.db.transaction():
            postgres.claim(jobs.db, f"{new.resource}-{name}", other)
        assert refused.value.code == code
    target = Resource(f"target-{name}")
    target.claim(cache, new)
    with pytest.raises(Stale):
        target.claim(cache, old)


@pytest.mark.parametrize("kind", ["psycopg", "asyncpg", "engine", "session"])
def test_asyncio(kind: str, jobs: Jobs) -> None:
    attempts = AsyncAttempts(jobs.table)

    async def run() -> None:
        async with opened(kind, jobs.url) as connection:
            old = await attempts.take(connection, "w1")
            assert old is not None
            assert old.row["payload"] in ({}, "{}")
            await attempts.heartbeat(connection, old)
            jobs.lease_passes()
            assert await attempts.reap(connection) == []
            new = await attempts.take(connection, "w2")
            assert new is not None
            with pytest.raises(Stale):
                async with attempts.transact(connection, old):
                    pass
            async with attempts.transact(connection, new) as own:
                await attempts.guard(own, new)
                await attempts.fail(own, new, "no")
            assert jobs.of("state, attempt") == ("ready", 2)
            new = await attempts.take(connection, "w2")
            assert new is not None
            async with attempts.transact(connection, new) as own:
                await attempts.finish(own, new)
            assert jobs.of("state, attempt") == ("done", 3)
            assert await attempts.take(connection, "w2") is None

    asyncio.run(run())


def test_sqlalchemy(jobs: Jobs) -> None:
    engine = sqlalchemy.create_engine(jobs.url.replace("postgres:", "postgresql+psycopg:", 1))
    attempt = jobs.attempts.take(engine, "w1")
    assert attempt is not None
    with jobs.attempts.transact(engine, attempt) as own:
        own.execute(sqlalchemy.text(f"UPDATE {jobs.accounts} SET total = 70"))
    assert (jobs.total, jobs.of("state")) == (70, "done")
    engine.dispose()


class InMariadb:
    """Two jobs in MariaDB, through a driver or SQLAlchemy."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url, self.name = kind, url, f"jobs_{uuid.uuid4().hex}"
        self.db = connected(url, autocommit=True)
        create = re.findall(r"^```sql norun\n(CREATE.*?);", PAGE[PAGE.index("### MySQL") :], re.M | re.S)[0]
        self(create.replace("jobs_open", "open").replace("jobs", self.name))
        self("CREATE TABLE JOBS_total AS SELECT 0 AS total")
        self("INSERT INTO JOBS (payload) VALUES ('{}'), ('{}')")
        self.attempts = Attempts(self.name, max_attempts=3)
        self.engine = sqlalchemy.create_engine(url.replace("mysql:", "mysql+pymysql:", 1))

    def __call__(self, statement: str) -> Any:
        return ask(self.db, statement.replace("JOBS", self.name))

    def through(self, call: Callable[[AsyncAttempts, Any], Any]) -> Any:
        async def run() -> Any:
            async with opened_mysql("aiomysql", self.url) as connection:
                return await call(AsyncAttempts(self.name, max_attempts=3), connection)

        return asyncio.run(run())

    def take(self, worker: str) -> Attempt:
        if self.kind == "aiomysql":
            taken: Attempt | None = self.through(lambda helper, connection: helper.take(connection, worker))
        else:
            taken = self.attempts.take(self.db if self.kind == "pymysql" else self.engine, worker)
        assert taken is not None
        return taken

    def write(self, attempt: Attempt, total: int) -> None:
        statement = f"UPDATE {self.name}_total SET total = {total}"

        async def run(helper: AsyncAttempts, connection: Any) -> None:
            async with helper.transact(connection, attempt), connection.cursor() as cursor:
                await cursor.execute(statement)

        if self.kind == "aiomysql":
            self.through(run)
        else:
            with self.attempts.transact(self.db if self.kind == "pymysql" else self.engine, attempt) as own:
                ask(own, statement)

    def lease_passes(self) -> None:
        self("UPDATE JOBS SET lease_until = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND WHERE state = 'running'")

    def of(self, attempt: Attempt) -> Any:
        return self(f"SELECT CONCAT(state, ' ', reason) FROM JOBS WHERE id = {attempt.job_id}")


@pytest.fixture(params=["pymysql", "engine", "aiomysql"])
def in_mariadb(request: pytest.FixtureRequest, mysql_url: str) -> Iterator[InMariadb]:
    made = InMariadb(request.param, mysql_url)
    yield made
    made.engine.dispose()
    made.db.close()


def test_in_mariadb_an_older_attempt_is_refused(in_mariadb: InMariadb) -> None:
    jobs = in_mariadb
    old = jobs.take("w1")
    for _ in range(2):
        jobs.attempts.heartbeat(jobs.db, old)  # also twice in one millisecond
    left = "lease_until BETWEEN UTC_TIMESTAMP(3) + INTERVAL 10 SECOND AND UTC_TIMESTAMP(3) + INTERVAL 31 SECOND"
    assert jobs(f"SELECT {left} FROM JOBS WHERE id = {old.job_id}") == 1
    assert jobs.take("w2").job_id != old.job_id
    assert jobs.attempts.take(jobs.db, "w3") is None
    jobs.lease_passes()
    new = jobs.take("w2")
    assert (new.job_id, new.attempt) == (old.job_id, 2)
    jobs.write(new, 70)
    with pytest.raises(Stale, match="token 1 is stale: 1 < 2"):
        jobs.write(old, 10)
    with pytest.raises(Stale):
        jobs.attempts.heartbeat(jobs.db, old)
    with pytest.raises(Rejected, match="already a write"):
        jobs.write(new, 10)
    # A refusal whose error is dropped: what came before it is rolled back.
    jobs.db.begin()
    jobs("UPDATE JOBS_total SET total = 10")
    with pytest.raises(Stale):
        jobs.attempts.finish(jobs.db, old)
    jobs.db.commit()
    assert jobs("SELECT total FROM JOBS_total") == 70


def test_in_mariadb_the_last_attempt_is_counted(in_mariadb: InMariadb) -> None:
    jobs = in_mariadb
    first = jobs.take("w1")
    with jobs.attempts.transact(jobs.db, first):
        jobs.attempts.fail(jobs.db, first, "no")
    assert jobs.of(first) == "ready no"
    assert [jobs.take("w1").attempt, jobs.take("w2").job_id] == [2, first.job_id + 1]
    jobs.lease_passes()
    assert jobs.take("w3").attempt == 3
    jobs.lease_passes()
    assert jobs.take("w3").job_id == first.job_id + 1
    assert jobs.of(first) == "failed attempt 3 was the last of 3, and its lease expired (worker w3)"
    assert jobs.attempts.reap(jobs.db) == []


CHILD = """
import sys, psycopg
from palisade.attempts import Attempt, Attempts
url, table, accounts, job, where = sys.argv[1:]
attempt, attempts = Attempt(int(job), 1, "w1", {}, table), Attempts(table, lease="1s")
def stop(here):
    if here == where:
        print("stopped", flush=True)
        input()
with psycopg.connect(url, autocommit=True) as db:
    total, = db.execute(f"SELECT total FROM {accounts}").fetchone()
    stop("control"), stop("before")
    try:
        if where == "control":
            db.execute(f"UPDATE {accounts} SET total = %s", [total + 1])
            done = f"UPDATE {table} SET state = 'done' WHERE id = %s AND attempt = 1 AND state = 'running'"
            print("written", db.execute(done, [job]).rowcount)
        else:
            with attempts.transact(db, attempt):
                stop("inside")
                db.execute(f"UPDATE {accounts} SET total = %s", [total + 1])
            print("written")
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("where", "told", "total"),
    [
        ("control", "written 0", 1),
        ("before", "Stale", 70),
        ("inside", "IdleInTransactionSessionTimeout|OperationalError", 70),
    ],
)
def test_a_worker_that_is_stopped(jobs: Jobs, where: str, told: str, total: int) -> None:
    """The control loses an acknowledged write, although its completion is refused."""
    jobs.take("w1")
    command = [sys.executable, "-c", CHILD, jobs.url, jobs.table, jobs.accounts, str(jobs.id), where]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "stopped\n"
    child.send_signal(signal.SIGSTOP)
    child.stdin.write("\n")
    child.stdin.flush()
    if where == "inside":
        # The database ends its transaction after a lease: until then the row is its own.
        jobs("SELECT FROM JOBS WHERE id = %s FOR UPDATE", jobs.id)
    jobs.lease_passes()
    jobs.write(jobs.take("w2"), "UPDATE ACCOUNTS SET total = 70")
    child.send_signal(signal.SIGCONT)
    # Older versions of psycopg do not name the time-out.
    assert re.fullmatch(told, child.communicate(timeout=60)[0].strip())
    assert child.wait() == 0
    assert jobs.total == total
