"""Jobs under Celery, APScheduler and Django: real libraries, a real server."""

from __future__ import annotations

import threading
from typing import Any, Iterator

import celery
import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from celery.contrib.testing.worker import start_worker
from django.core.management import call_command
from django.core.management.base import BaseCommand
from suite.servers import Palisade
from test_postgres import _django

from palisade import Client, Grant
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

    with pytest.raises(RuntimeError):
        nightly()
    assert client.show("nightly").holder is None


def test_each_process_has_a_client_of_its_own(server: Palisade, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALISADE_URL", server.url)
    assert once("nightly")(lambda: "ran")() == "ran"

    async def nightly() -> None: ...

    with pytest.raises(TypeError, match="AsyncClient"):
        once("nightly")(nightly)


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

    @app.task(name="nightly")  # type: ignore[untyped-decorator]
    @once("nightly", client=client)
    def nightly(factor: int, grant: Grant) -> str:
        return f"{runs.job()} {factor} with token {grant.token}"

    with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False):
        first = nightly.delay(3)
        while client.show("nightly").holder is None:
            pass
        second = nightly.delay(3)
        assert second.get(timeout=30) == "skipped: another client holds 'nightly'"
        runs.over.set()
        assert first.get(timeout=30) == "ran 3 with token 1"
    assert runs.ran == 1


def test_two_schedulers_run_a_job_once(client: Client) -> None:
    runs, results = Runs(), []
    schedulers = [BackgroundScheduler(), BackgroundScheduler()]

    def note() -> None:
        result = once("nightly", client=client)(runs.job)()
        results.append(result)
        if isinstance(result, Skipped):
            runs.over.set()

    for scheduler in schedulers:
        scheduler.add_job(note)
        scheduler.start()
    assert runs.over.wait(30)
    for scheduler in schedulers:
        scheduler.shutdown()
    assert sorted(map(str, results)) == ["ran", "skipped: another client holds 'nightly'"]


def test_a_command_of_django(client: Client, postgres_url: str) -> None:
    _django(postgres_url)

    class Command(BaseCommand):  # type: ignore[misc]
        @once("nightly", client=client)
        def handle(self, *arguments: Any, grant: Grant, **options: Any) -> str:
            return f"token {grant.token}"

    assert call_command(Command()) == "token 1"
    with client.lock("nightly"):
        assert not call_command(Command())
