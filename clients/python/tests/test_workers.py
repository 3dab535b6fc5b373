"""Worker programs that load the application once and fork: Celery (prefork), RQ and uWSGI. The client is made, has a
connection, and holds a lock before the fork. `tests/test_fork.py` has gunicorn, multiprocessing and the bare fork."""

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

from palisade import LeaseLost

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


STOPPED = """
import os, pathlib, time
import celery, psycopg
from palisade import Client
from palisade.fences import postgres
from palisade.jobs import once

folder = pathlib.Path({folder!r})
app = celery.Celery("stopped", broker="{queue}/1", backend="{queue}/2")
app.conf.worker_prefetch_multiplier = 1

@app.task(name="write")
@once("{table}", client=lambda: Client({url!r}), ttl="1s", wait="30s")
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


def test_a_celery_worker_that_is_stopped(
    server: Palisade, tmp_path: pathlib.Path, queue: str, postgres_url: str, database: psycopg.Connection[Any]
) -> None:
    """The first task is stopped for longer than its lease, while the second one writes. The control is not fenced."""
    table, pid, go = f"total_{uuid.uuid4().hex}", tmp_path / "pid", tmp_path / "go"
    database.execute(f"CREATE TABLE {table} AS SELECT 0 AS total")
    database.commit()
    values = {"folder": str(tmp_path), "queue": queue, "url": server.url, "database": postgres_url, "table": table}
    (tmp_path / "stopped.py").write_text(STOPPED.format(**values))
    command = [sys.executable, "-m", "celery", "-A", "stopped", "worker", "--pool=prefork", "--concurrency=2", "-Ofair"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=CRITICAL"]
    worker = subprocess.Popen([*command, *quiet], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    app = celery.Celery(broker=f"{queue}/1", backend=f"{queue}/2")
    try:
        for is_fenced in (False, True):
            first = app.send_task("write", [1, is_fenced, True])
            end = time.monotonic() + 60
            while not pid.exists():
                assert time.monotonic() < end, "the task does not begin"
                time.sleep(0.01)  # real time: asked again, up to a deadline
            zombie = int(pid.read_text())
            os.kill(zombie, signal.SIGSTOP)
            go.touch()
            assert app.send_task("write", [70, is_fenced, False]).get(timeout=60) == "written"
            os.kill(zombie, signal.SIGCONT)
            if is_fenced:
                with pytest.raises(LeaseLost):
                    first.get(timeout=60)
            else:
                assert first.get(timeout=60) == "written"
            row = database.execute(f"SELECT total FROM {table}").fetchone()
            database.commit()
            assert row == (70 if is_fenced else 1,)
            pid.unlink()
            go.unlink()
    finally:
        worker.terminate()
        worker.wait(30)
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
