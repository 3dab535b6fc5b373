"""Jobs under Celery, APScheduler and Django: real libraries, a real server."""

from __future__ import annotations

import asyncio
import inspect
import pathlib
import pickle
import queue
import subprocess
import sys
import threading
import uuid
from typing import Any, Iterator

import celery
import celery.exceptions
import psycopg
import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from celery.contrib.testing.worker import start_worker
from django.core.management import call_command
from django.core.management.base import BaseCommand
from suite.servers import Palisade
from test_postgres import _django

from palisade import AsyncClient, AsyncGrant, Client, Grant, Holder, Invalid, LeaseLost, LockHeld, PalisadeError
from palisade.celery import Scheduler, sender
from palisade.fences import FenceLost, Rejected, Stale, postgres
from palisade.jobs import Skipped, once


@pytest.fixture
def client(server: Palisade) -> Iterator[Client]:
    with Client(server.url) as made:
        yield made


def test_a_job_runs_while_it_holds_the_lock(client: Client) -> None:
    @once("nightly", client=client)
    def nightly(part: int, grant: Grant) -> int:
        """Does it."""
        grant.check()
        shown = client.show("nightly")
        assert shown.holder is not None
        assert shown.holder.token == grant.token
        return 2 * part

    assert nightly(21) == 42  # type: ignore[call-arg]
    assert (nightly.__name__, nightly.__doc__) == ("nightly", "Does it.")
    assert client.show("nightly").holder is None
    with client.lock("nightly"):
        skipped = nightly(21)  # type: ignore[call-arg]
        assert isinstance(skipped, Skipped)
        assert not skipped


def test_a_job_does_not_run_again_within_its_period(client: Client) -> None:
    for period, again in (("1h", "skipped: 'nightly' ran lately"), (0, "ran")):
        name = "nightly" if period else "hourly"

        @once(name, client=client, at_least_for=period)
        def job() -> str:
            return "ran"

        assert (job(), str(job())) == ("ran", again)


def test_a_job_that_fails_gives_the_lock_back(client: Client) -> None:
    @once("nightly", client=client)
    def nightly() -> None:
        raise RuntimeError("no disk")

    for _ in range(2):
        with pytest.raises(RuntimeError):
            nightly()
    assert client.show("nightly").holder is None


def test_a_job_that_failed_has_had_its_period(client: Client) -> None:
    @once("nightly", client=client, at_least_for="1h")
    def nightly() -> None:
        raise RuntimeError("no disk")

    with pytest.raises(RuntimeError):
        nightly()
    assert str(nightly()) == "skipped: 'nightly' ran lately"


def test_a_lock_may_be_named_by_the_arguments(client: Client) -> None:
    @once(lambda customer, **_: f"import/{customer}", client=client)
    def importing(customer: str, again: str, grant: Grant) -> list[str]:
        nested = importing(again, again=again) if again != customer else "-"  # type: ignore[call-arg]
        return [grant.lock, str(nested)]

    assert importing("a", again="a") == ["import/a", "-"]  # type: ignore[call-arg]
    with client.lock("import/a"):
        assert str(importing("a", again="a")) == "skipped: another client holds 'import/a'"  # type: ignore[call-arg]
        assert importing("b", again="a") == ["import/b", "skipped: another client holds 'import/a'"]  # type: ignore[call-arg]


def test_so_many_may_run_at_a_time(client: Client) -> None:
    @once("convert", client=client, permits=(1, 2))
    def convert(more: int, grant: Grant) -> list[int]:
        return [*grant.slots, *(convert(more - 1) or [0])] if more else []  # type: ignore[call-arg]

    assert convert(1) == [1, 0]  # type: ignore[call-arg]
    assert convert(2) == [1, 2, 0]  # type: ignore[call-arg]
    with client.lock("convert", permits=(1, 2)):
        assert convert(2) == [2, 0]  # type: ignore[call-arg]


def test_a_job_that_crashed_keeps_the_lock_closed(client: Client) -> None:
    @once("printer", client=client, lock_delay="60s")
    def prints(grant: Grant) -> None:
        client.break_lock("printer", grant.token, "it hangs")

    prints()
    assert str(prints()) == "skipped: 'printer' ran lately"


def test_each_process_has_a_client_of_its_own(server: Palisade, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALISADE_URL", server.url)
    assert once("nightly")(lambda: "ran")() == "ran"

    @once("placed")
    def placed(first: int, grant: Grant, *more: int) -> tuple[int, ...]:
        return (first, grant.token, *more)

    assert placed(7, 8, 9) == (7, 2, 8, 9)  # type: ignore[arg-type]

    async def nightly(grant: AsyncGrant) -> str:
        grant.check()
        return f"ran with token {grant.token}"

    assert asyncio.run(once("nightly")(nightly)()) == "ran with token 3"
    with pytest.raises(TypeError, match="nightly needs an AsyncClient, and got Client"):
        asyncio.run(once("nightly", client=Client)(nightly)())


def test_a_coroutine_function(client: Client, server: Palisade) -> None:
    made: list[AsyncClient] = []

    def lazily() -> AsyncClient:
        made.append(AsyncClient(server.url))
        return made[-1]

    @once(lambda customer: f"import/{customer}", client=lazily)
    async def importing(grant: AsyncGrant, customer: str) -> tuple[str, bool]:
        grant.check()
        return customer, client.show(grant.lock).holder is not None

    async def run() -> None:
        assert await importing("a") == ("a", True)
        with client.lock("import/a"):
            skipped = await importing("a")
            assert isinstance(skipped, Skipped)
            assert str(skipped) == "skipped: another client holds 'import/a'"
        assert client.show("import/a").holder is None
        for each in made:
            await each.aclose()

    assert inspect.iscoroutinefunction(importing)
    assert not made, "the module was imported, and nothing is made yet"
    asyncio.run(run())


def test_a_skipped_run_may_raise_what_the_framework_wants(client: Client) -> None:
    @once("nightly", client=client, raises=celery.exceptions.Ignore)
    def nightly() -> str:
        return "ran"

    assert nightly() == "ran"
    with client.lock("nightly"), pytest.raises(celery.exceptions.Ignore, match="another client holds"):
        nightly()


def test_one_beat_of_two_publishes_with_its_token(
    client: Client, server: Palisade, tmp_path: pathlib.Path, database: psycopg.Connection[Any]
) -> None:
    app = celery.Celery("beat", broker="memory://")
    app.conf.beat_schedule = {"nightly": {"task": "nightly", "schedule": 0.001, "options": {"headers": {"own": 1}}}}
    app.conf.palisade_beat_lock = f"beat-{uuid.uuid4().hex}"

    def beat(name: str) -> Scheduler:
        place = str(tmp_path / name)
        return Scheduler(app=app, lazy=False, schedule_filename=place, client=lambda: Client(server.url))

    def published() -> list[dict[str, Any]]:
        with app.connection_for_read() as connection, connection.SimpleQueue("celery") as messages:
            found = [messages.get_nowait() for _ in range(messages.qsize())]
            return [message.headers for message in found]

    def ticks(scheduler: Scheduler) -> list[dict[str, Any]]:
        for _ in range(3):
            scheduler.tick()
        return published()

    first, second = beat("first"), beat("second")
    assert first.tick() <= first.stand_by
    by_first = ticks(first)
    assert by_first
    assert (ticks(second), second.tick()) == ([], second.stand_by)
    # An operator takes the lock from the first one, which does not know yet. The second one leads.
    holder = client.show(app.conf.palisade_beat_lock).holder
    assert holder is not None
    client.break_lock(app.conf.palisade_beat_lock, holder.token, "it hangs")
    by_second = ticks(second)
    assert by_second
    old, new = sender(by_first[0]), sender(by_second[0])
    assert (old.lock, old.authority, by_first[0]["own"]) == (app.conf.palisade_beat_lock, server.authority(), 1)
    assert old.token < new.token
    # Its late messages are refused at the fence.
    with postgres.transact(database, old.lock or "", new):
        pass
    with pytest.raises(Stale), postgres.transact(database, old.lock or "", old):
        pass
    with pytest.raises(LookupError):
        sender({})
    second.close()
    assert client.show(app.conf.palisade_beat_lock).holder is None
    first.close()


@pytest.mark.parametrize(
    "error",
    [
        LeaseLost("expired", "orders", 3),
        LockHeld("held", "busy", Holder("other", 2, 1.5, None, None, None), 2.0),
        Invalid("invalid", "no"),
        Stale(7, 8),
        Rejected("wrong_authority", authority="a"),
        FenceLost("gone"),
    ],
)
def test_errors_pass_between_processes(error: PalisadeError) -> None:
    """Pools and queues send them."""
    sent = pickle.loads(pickle.dumps(error))
    assert (type(sent), str(sent), vars(sent)) == (type(error), str(error), vars(error))


class Runs:
    """A job that two threads start at the same time: the first to run goes on until the other one was skipped."""

    def __init__(self) -> None:
        self.ran, self.over = 0, threading.Event()

    def job(self) -> str:
        self.ran += 1
        assert self.over.wait(30)
        return "ran"


@pytest.mark.filterwarnings("ignore")
def test_two_celery_workers_run_a_task_once(client: Client) -> None:
    app = celery.Celery("jobs", broker="memory://", backend="cache+memory://")
    runs = Runs()

    @app.task(name="nightly", bind=True)  # type: ignore[untyped-decorator]
    @once("nightly", client=client, at_least_for="1h")
    def nightly(self: Any, factor: int, grant: Grant) -> str:
        assert self.request.id
        return f"{runs.job()} {factor} with token {grant.token}"

    with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False):
        first = nightly.delay(3)
        while client.show("nightly").holder is None:
            pass
        second = nightly.delay(3)
        assert second.get(timeout=30) == "skipped: another client holds 'nightly'"
        runs.over.set()
        assert first.get(timeout=30) == "ran 3 with token 1"
        # The clock of another beat is late: the job is over, and its period is not.
        assert nightly.delay(3).get(timeout=30) == "skipped: 'nightly' ran lately"
    assert runs.ran == 1


def test_two_schedulers_run_a_job_once(client: Client) -> None:
    runs = Runs()
    results: queue.Queue[str] = queue.Queue()

    def note() -> None:
        results.put(once("nightly", client=client, at_least_for="1h")(runs.job)())

    schedulers = [BackgroundScheduler(), BackgroundScheduler()]
    for scheduler in schedulers:
        scheduler.add_job(note)
        scheduler.start()
    assert results.get(timeout=30) == "skipped: another client holds 'nightly'"
    runs.over.set()
    assert results.get(timeout=30) == "ran"
    # Its clock is late: the job is over, and its period is not.
    schedulers[0].add_job(note)
    assert results.get(timeout=30) == "skipped: 'nightly' ran lately"
    for scheduler in schedulers:
        scheduler.shutdown()


def test_a_command_of_django(client: Client, postgres_url: str) -> None:
    _django(postgres_url)

    class Command(BaseCommand):  # type: ignore[misc]
        @once("nightly", client=client, at_least_for="1h")
        def handle(self, *arguments: Any, grant: Grant, **options: Any) -> str:
            assert not call_command(Command())
            return f"token {grant.token}"

    assert call_command(Command()) == "token 1"
    skipped = call_command(Command())
    assert (bool(skipped), str(skipped)) == (False, "skipped: 'nightly' ran lately")


def test_types_know_that_the_grant_is_given(tmp_path: pathlib.Path) -> None:
    program = """
from typing import Union
from palisade import AsyncClient, AsyncGrant, Client, Grant, Holder, Invalid, LeaseLost, LockHeld, PalisadeError
from palisade.celery import Scheduler, sender
from palisade.fences import FenceLost, Rejected, Stale, postgres
from palisade.jobs import Skipped, once

@once("nightly", client=Client())
def nightly(grant: Grant) -> int:
    return grant.token

@once(lambda customer: customer, client=Client())
def each(grant: Grant, customer: str) -> None: ...

@once("plain", client=Client())
def plain(customer: str) -> str:
    return customer

@once("async")
async def later(grant: AsyncGrant, customer: str) -> int:
    return grant.token

@once("async plain")
async def plainly() -> str:
    return ""

async def both() -> Union[int, str, Skipped]:
    told: Union[int, Skipped] = await later("a")
    return told or await plainly()

told: Union[int, Skipped] = nightly()
each("a")
each(customer="a")
print(plain("a"))
"""
    wrong = "nightly(5)  # unexpected\neach()  # missing\nplain()  # missing\nlater()  # missing\n"
    for text, lines in ((program, 0), (program + wrong, 5)):
        (tmp_path / "job.py").write_text(text)
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "job.py"]
        checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        found = [line for line in checked.stdout.splitlines() if line.startswith("job.py") and ": error:" in line]
        assert len(found) == lines, checked.stdout
