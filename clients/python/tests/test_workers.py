"""Worker programs that load the application once and fork: Celery (prefork), RQ and uWSGI. The client is made, has a
connection, and holds a lock before the fork. `tests/test_fork.py` has gunicorn, multiprocessing and the bare fork. Then
workers and schedulers that are stopped in the middle of a job: Celery, RQ and APScheduler."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterator

import celery
import psycopg
import pytest
import redis
import rq
from conftest import _free_port
from suite.servers import Palisade
from test_fork import _ask

from palisade import Client, LeaseLost

WORK = """
import os, pathlib, re, socket, time
import palisade

folder, parent = pathlib.Path({folder!r}), os.getpid()
client = palisade.Client({url!r}, patience="4s")
mine = client.lock("held", ttl="60s", wait=0).acquire()
shared = socket.create_connection(("127.0.0.1", {port}))

def take(name):
    try:
        with client.lock(name, ttl="5s", wait="2s" if name != "held" else 0) as grant:
            told = "granted" if grant.held and grant.lock == name else "crossed"
    except palisade.PalisadeError as error:
        told = type(error).__name__
    return " ".join([told, mine.release(), "child" if os.getpid() != parent else "parent"])

# A naive client: all processes have the parent's connection.
def send(name):
    shared.sendall(f"GET /v1/locks/{{name}} HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n".encode())

def receive():
    text = ""
    while not re.search(r'"resource_id" ?: ?"(\\w+)"', text):
        piece = shared.recv(65536).decode()
        assert piece, "the server closed the connection"
        text += piece
    return re.search(r'"resource_id" ?: ?"(\\w+)"', text)[1]

def wait_for(flag):
    end = time.monotonic() + 60
    while not (folder / flag).exists() and time.monotonic() < end:
        time.sleep(0.01)  # real time: asked again, up to a deadline

send("any")
receive()

def first():
    send("one")
    (folder / "sent").touch()
    wait_for("read")
    return "done"

def second():
    wait_for("sent")
    send("two")
    told = receive()
    (folder / "read").touch()
    return told
"""


@pytest.fixture
def work(server: Palisade, tmp_path: pathlib.Path) -> pathlib.Path:
    """The folder of a module `work`."""
    (tmp_path / "work.py").write_text(WORK.format(folder=str(tmp_path), url=server.url, port=server.port))
    return tmp_path


def check(server: Palisade, names: list[str], told: list[str]) -> None:
    """Nobody got another's answer, and the parent has its lock, which no child could give back."""
    expected = ["LockHeld over child" if name == "held" else "granted over child" for name in names]
    assert told == expected
    assert server.show("held")["holder"] is not None


NAMES = ["held" if number % 3 == 0 else f"free{number}" for number in range(30)]


@pytest.fixture
def queue(redis_url: str) -> Iterator[str]:
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushall()
    yield redis_url


def test_celery(server: Palisade, work: pathlib.Path, queue: str) -> None:
    (work / "tasks.py").write_text(
        f"""
import celery, work
app = celery.Celery("tasks", broker="{queue}/1", backend="{queue}/2")
app.conf.worker_prefetch_multiplier = 1
for function in (work.take, work.first, work.second):
    app.task(name=function.__name__)(function)
"""
    )
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool=prefork", "--concurrency=3", "-Ofair"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=CRITICAL"]
    worker = subprocess.Popen([*command, *quiet], cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    app = celery.Celery(broker=f"{queue}/1", backend=f"{queue}/2")
    naive, sent = [], []
    try:
        # A control: on a connection that the processes share, one gets the other's answer.
        naive = [app.send_task("first"), app.send_task("second")]
        assert [each.get(timeout=60) for each in naive] == ["done", "one"]
        sent = [app.send_task("take", [name]) for name in NAMES]
        check(server, NAMES, [each.get(timeout=60) for each in sent])
    finally:
        worker.terminate()
        worker.wait(30)
        # A result unsubscribes when it is collected. Celery 5.3 then asks for ever, if its Redis has ended by then.
        naive, sent = [], []
        gc.collect()
        app.close()


def test_rq(server: Palisade, work: pathlib.Path, queue: str) -> None:
    """Its worker forks for each job. Modules imported before are preloaded, as its manual says."""
    (work / "worker.py").write_text(
        f"""
import redis, rq, work
rq.Worker(["default"], connection=redis.Redis.from_url("{queue}")).work(burst=True, logging_level="ERROR")
"""
    )
    with redis.Redis.from_url(queue) as connection:
        jobs = rq.Queue(connection=connection)
        # A control: one job ends before it has read its answer, and the next one gets it.
        naive = [jobs.enqueue("work.send", "one"), jobs.enqueue("work.second")]
        sent = [jobs.enqueue("work.take", name) for name in NAMES]
        (work / "sent").touch()
        subprocess.run([sys.executable, "worker.py"], cwd=work, check=True, timeout=120, stderr=subprocess.DEVNULL)
        check(server, NAMES, [str(job.return_value()) for job in sent])
        assert naive[1].return_value() == "one"


# A module `stopped` with a job that writes a total, and is stopped before it does so.
STOPPED = """
import os, pathlib, time
import psycopg
from palisade import Client
from palisade.fences import postgres
from palisade.jobs import once

folder = pathlib.Path({folder!r})

@once("{table}", client=lambda: Client({url!r}), ttl="{ttl}", wait="{wait}")
def write(total, is_fenced, is_stopped, grant):
    with psycopg.connect({database!r}) as db:
        if is_stopped:
            (folder / "pid.part").write_text(str(os.getpid()))
            (folder / "pid.part").rename(folder / "pid")
            end = time.monotonic() + 60
            while not (folder / "go").exists() and time.monotonic() < end:
                time.sleep(0.01)  # real time: asked again, up to a deadline
        if is_fenced:
            with postgres.transact(db, "{table}", grant):
                db.execute("UPDATE {table} SET total = %s", [total])
        else:
            db.execute("UPDATE {table} SET total = %s", [total])
    return "written"
"""
CELERY = """
import celery
app = celery.Celery("stopped", broker="{queue}/1", backend="{queue}/2")
app.conf.worker_prefetch_multiplier = 1
app.task(name="write")(write)
"""


class Stopped:
    """A table with a total, the module of the job, and the process that runs it."""

    def __init__(self, server: Palisade, folder: pathlib.Path, url: str, database: psycopg.Connection[Any]) -> None:
        self.server, self.folder, self.database = server, folder, database
        self.table = f"total_{uuid.uuid4().hex}"
        self.values = {"folder": str(folder), "url": server.url, "database": url, "table": self.table}
        database.execute(f"CREATE TABLE {self.table} AS SELECT 0 AS total")
        database.commit()

    def module(self, text: str = "", **more: str) -> None:
        (self.folder / "stopped.py").write_text((STOPPED + text).format(**self.values, **more))

    def stop(self) -> int:
        """Stops the job that says it is ready, and lets it write when it is continued."""
        pid, end = self.folder / "pid", time.monotonic() + 60
        while not pid.exists():
            assert time.monotonic() < end, "the job does not begin"
            time.sleep(0.01)  # real time: asked again, up to a deadline
        stopped = int(pid.read_text())
        os.kill(stopped, signal.SIGSTOP)

        def runs(thread: pathlib.Path) -> bool:
            return (thread / "stat").read_text().rpartition(") ")[2][0] != "T"

        # The thread of the job may go on for a moment, and would take its row with it.
        while any(map(runs, pathlib.Path(f"/proc/{stopped}/task").iterdir())):
            assert time.monotonic() < end, "the process does not stop"
            time.sleep(0.001)  # real time: asked again, up to a deadline
        (self.folder / "go").touch()
        return stopped

    def take_its_lock(self) -> None:
        """As when its lease ends, without the wait."""
        with Client(self.server.url) as client:
            holder = client.show(self.table).holder
            assert holder is not None
            client.break_lock(self.table, holder.token, "it is stopped")

    def total(self) -> int:
        row = self.database.execute(f"SELECT total FROM {self.table}").fetchone()
        self.database.commit()
        (self.folder / "pid").unlink()
        (self.folder / "go").unlink()
        assert row is not None
        return int(row[0])


@pytest.fixture
def stopped(server: Palisade, tmp_path: pathlib.Path, postgres_url: str, database: psycopg.Connection[Any]) -> Stopped:
    return Stopped(server, tmp_path, postgres_url, database)


def test_a_celery_worker_that_is_stopped(stopped: Stopped, queue: str) -> None:
    """The first task is stopped for longer than its lease, while the second one writes. The control is not fenced."""
    stopped.module(CELERY, queue=queue, ttl="1s", wait="30s")
    command = [sys.executable, "-m", "celery", "-A", "stopped", "worker", "--pool=prefork", "--concurrency=2", "-Ofair"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=CRITICAL"]
    null = subprocess.DEVNULL
    worker = subprocess.Popen([*command, *quiet], cwd=stopped.folder, stdout=null, stderr=null)
    app = celery.Celery(broker=f"{queue}/1", backend=f"{queue}/2")
    try:
        for is_fenced in (False, True):
            first = app.send_task("write", [1, is_fenced, True])
            zombie = stopped.stop()
            assert app.send_task("write", [70, is_fenced, False]).get(timeout=60) == "written"
            os.kill(zombie, signal.SIGCONT)
            if is_fenced:
                with pytest.raises(LeaseLost):
                    first.get(timeout=60)
            else:
                assert first.get(timeout=60) == "written"
            assert stopped.total() == (70 if is_fenced else 1)
    finally:
        worker.terminate()
        worker.wait(30)
        app.close()


def test_an_rq_worker_that_is_stopped(stopped: Stopped, queue: str) -> None:
    """The process of the first job is stopped, while another worker runs the second one. The control is not fenced."""
    stopped.module(ttl="30s", wait="30s")
    (stopped.folder / "worker.py").write_text(
        f"""
import redis, rq
rq.Worker(["default"], connection=redis.Redis.from_url("{queue}")).work(logging_level="CRITICAL")
"""
    )
    command = [sys.executable, "worker.py"]
    workers = [subprocess.Popen(command, cwd=stopped.folder, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        with redis.Redis.from_url(queue) as connection:
            jobs = rq.Queue(connection=connection)

            def result(job: rq.job.Job) -> str:
                end = time.monotonic() + 60
                while (told := job.latest_result()) is None:
                    assert time.monotonic() < end, "the job does not end"
                    time.sleep(0.01)  # real time: asked again, up to a deadline
                return str(told.return_value or told.exc_string)

            for is_fenced in (False, True):
                first = jobs.enqueue("stopped.write", 1, is_fenced, True)
                zombie = stopped.stop()
                stopped.take_its_lock()
                assert result(jobs.enqueue("stopped.write", 70, is_fenced, False)) == "written"
                os.kill(zombie, signal.SIGCONT)
                told = result(first)
                # The fence refuses it, unless a renewal is first.
                assert ("errors.Stale" in told or "LeaseLost" in told) if is_fenced else told == "written", told
                assert first.get_status() == ("failed" if is_fenced else "finished")
                assert stopped.total() == (70 if is_fenced else 1)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait(30)


SCHEDULER = """
import sys
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.interval import IntervalTrigger
import stopped

def told(event):
    print(type(event.exception).__name__ if event.exception else event.retval, flush=True)

scheduler = BlockingScheduler(timezone="UTC")
scheduler.add_listener(told, EVENT_JOB_ERROR | EVENT_JOB_EXECUTED)
total, is_fenced, is_stopped = map(int, sys.argv[1:])
trigger = None if is_stopped else IntervalTrigger(seconds=0.2)
scheduler.add_job(stopped.write, trigger, [total, is_fenced, is_stopped])
scheduler.start()
"""


@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_scheduler_that_is_stopped(stopped: Stopped, is_fenced: bool) -> None:
    """Two machines have the same job in APScheduler. One is stopped in it, while the other runs it. The control is not
    fenced."""
    stopped.module(ttl="30s", wait="0s")
    (stopped.folder / "scheduler.py").write_text(SCHEDULER)

    def start(total: int, is_stopped: bool) -> subprocess.Popen[str]:
        command = [sys.executable, "scheduler.py", str(total), str(int(is_fenced)), str(int(is_stopped))]
        null = subprocess.DEVNULL
        return subprocess.Popen(command, cwd=stopped.folder, stdout=subprocess.PIPE, stderr=null, text=True)

    processes = [start(1, True)]
    try:
        assert stopped.stop() == processes[0].pid
        processes.append(start(70, False))
        first, second = (process.stdout for process in processes)
        assert first is not None
        assert second is not None
        assert second.readline().startswith("skipped: another client holds")
        stopped.take_its_lock()
        while (told := second.readline().strip()) != "written":
            assert told.startswith("skipped: "), told
        processes[1].kill()
        processes[1].wait()
        os.kill(processes[0].pid, signal.SIGCONT)
        # The fence refuses it, unless a renewal is first.
        assert first.readline().strip() in ({"Stale", "LeaseLost"} if is_fenced else {"written"})
        assert stopped.total() == (70 if is_fenced else 1)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_uwsgi(server: Palisade, work: pathlib.Path) -> None:
    (work / "application.py").write_text(
        """
import work
def application(environ, start_response):
    verb, name = environ["PATH_INFO"].strip("/").split("/")
    told = work.take(name) if verb == "take" else getattr(work, verb)()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [told.encode()]
"""
    )
    port = _free_port()
    uwsgi = pathlib.Path(sys.executable).with_name("uwsgi")
    assert uwsgi.exists(), f"{uwsgi} is missing: clients/install installs it"
    # Without --lazy-apps the application is loaded once, by the master. Renewals need threads.
    flags = ["--master", "--processes=3", "--enable-threads", "--need-app", "--die-on-term", "--worker-reload-mercy=2"]
    place = [f"--http-socket=127.0.0.1:{port}", f"--home={sys.prefix}", "--pythonpath=.", "--module=application"]
    worker = subprocess.Popen([uwsgi, *flags, *place], cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        assert _ask(f"{url}/take/ready") == "granted over child"

        def get(path: str) -> str:
            with urllib.request.urlopen(f"{url}/{path}", timeout=60) as answer:
                return str(answer.read().decode())

        with ThreadPoolExecutor(3) as threads:
            # A control: on a connection that the processes share, one gets the other's answer.
            assert list(threads.map(get, ["first/a", "second/a"])) == ["done", "one"]
            check(server, NAMES, list(threads.map(get, [f"take/{name}" for name in NAMES])))
    finally:
        worker.terminate()
        worker.wait(30)
