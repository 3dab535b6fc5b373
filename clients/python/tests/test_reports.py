"""A fence that refuses a token as stale is reported to the authority, in the background: docs/operate/history.md."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import os
import pathlib
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Iterator

import httpx
import psycopg
import pytest
import test_fork
from served import Served
from suite.servers import Palisade

from palisade import AsyncClient, Client
from palisade.fences import Pass, Stale, postgres, sqlite
from palisade.fences import http as gateway
from palisade.fences.files import Folder

#: Claims with a holder at one resource.
Claim = Callable[[Any], object]


@contextlib.contextmanager
def superseded(server: Palisade, client: Client, *names: str) -> Iterator[tuple[Any, Any]]:
    """A holder that renews only in 20 s, so without notices it believes in its lease, and the holder after it."""
    old = client.locks(*names, ttl="60s").acquire()
    with Client(server.url) as other:
        for name in names:
            other.break_lock(name, old.token)
        with other.locks(*names, ttl="60s") as new:
            yield old, new


def rejections(server: Palisade, lock: str, count: int) -> list[dict[str, Any]]:
    """What the history has of a lock, as soon as it is so much."""
    end = time.monotonic() + 30
    while True:
        grants = server.ask("GET", f"/v1/history?lock={lock}")["grants"]
        found = [one for grant in grants for one in grant.get("rejections", [])]
        if len(found) >= count:
            return found
        assert time.monotonic() < end, f"{lock} has {found}"
        time.sleep(0.05)  # real time: asked again, up to a deadline


def refused(claim: Claim, holder: Any) -> None:
    with pytest.raises(Stale):
        claim(holder)


class _Api(http.server.BaseHTTPRequestHandler):
    """It knows nothing of fences."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gateway_url(binary: str, tmp_path: pathlib.Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Api) as api:
        threading.Thread(target=api.serve_forever, daemon=True).start()
        command = [binary, "gateway", "--upstream", f"http://127.0.0.1:{api.server_port}", "--data", f"{tmp_path}/g"]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout is not None
                lines = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stdout)
                yield next(found[0] for found in lines if found)
            finally:
                process.kill()
                api.shutdown()


def _of_folder(tmp_path: pathlib.Path) -> tuple[Claim, str, str]:
    (tmp_path / "reports").mkdir()
    reports = Folder(tmp_path / "reports")
    return lambda holder: reports.put(holder, "/total", b"1"), str(tmp_path / "reports"), "put"


def _of_postgres(database: psycopg.Connection[Any]) -> tuple[Claim, str, str]:
    def claim(holder: Any) -> None:
        with postgres.transact(database, resource, holder):
            pass

    resource = f"orders-{os.urandom(8).hex()}"
    return claim, resource, "claim"


def _of_gateway(url: str) -> tuple[Claim, str, str]:
    def put(holder: Any) -> None:
        gateway.raise_for_fence(httpx.put(f"{url}/total?secret=1", headers=gateway.headers(holder)))

    return put, url.removeprefix("http://"), "PUT /total"


@pytest.fixture(params=["folder", "postgres", "gateway"])
def fence(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> tuple[Claim, str, str]:
    if request.param == "folder":
        return _of_folder(tmp_path)
    if request.param == "postgres":
        return _of_postgres(request.getfixturevalue("database"))
    return _of_gateway(request.getfixturevalue("gateway_url"))


def test_a_refused_write_is_in_the_history(server: Palisade, fence: tuple[Claim, str, str]) -> None:
    claim, resource, operation = fence
    silent = Client(server.url, report_refusals=False, notices=False)
    with silent, superseded(server, silent, "control") as (old, new):
        # Without names, so that both locks may claim it.
        claim(new.token)
        refused(claim, old)
    with Client(server.url, notices=False) as client, superseded(server, client, "orders") as (old, new):
        claim(new.token)
        refused(claim, old.token)
        refused(claim, Pass(old.token, old.authority, "orders"))
        refused(claim, old)
        refused(claim, old)
        (found,) = rejections(server, "orders", 1)
        assert client.reports_dropped == 0
    told = {name: found[name] for name in ("resource", "highest", "operation", "times")}
    # Bare tokens belong to no client. The second report of the grant equals the first, within ten seconds.
    assert told == {"resource": resource, "highest": new.token, "operation": operation, "times": 1}
    # The control came before, and would be there.
    assert rejections(server, "control", 0) == []
    assert server.ask("GET", "/v1/status")["counts"]["rejections_reported"] == 1


def test_the_lock_is_that_of_the_token(server: Palisade, tmp_path: pathlib.Path) -> None:
    claim, _, _ = _of_folder(tmp_path)
    with Client(server.url, notices=False) as client, superseded(server, client, "a", "b") as (old, new):
        claim(new.part("b"))
        refused(claim, old.part("b"))
        assert len(rejections(server, "b", 1)) == 1
    assert rejections(server, "a", 0) == []


def test_asyncio(server: Palisade, tmp_path: pathlib.Path) -> None:
    claim, _, _ = _of_folder(tmp_path)

    async def work() -> None:
        async with AsyncClient(server.url, notices=False) as client, AsyncClient(server.url) as other:
            old = await client.lock("orders", ttl="60s").acquire()
            await other.break_lock("orders", old.token)
            async with other.lock("orders") as new:
                claim(new)
                refused(claim, old)

    asyncio.run(work())
    assert len(rejections(server, "orders", 1)) == 1


def test_a_thousand(server: Palisade, binary: str, tmp_path: pathlib.Path) -> None:
    url = f"sqlite://{tmp_path}/shop.db"
    names = [f"seat-{number}" for number in range(1_000)]
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE orders (total INTEGER)")
        subprocess.run([binary, "fence", "install", "sqlite", url], check=True, stdout=subprocess.DEVNULL)
        with Client(server.url, notices=False) as client, superseded(server, client, "seats") as (old, new):
            with sqlite.transact_all(database, dict.fromkeys(names, Pass(new.token))):
                pass
            began = time.monotonic()
            database.execute("BEGIN IMMEDIATE")
            for name in names:
                refused(lambda holder, name=name: sqlite.claim(database, name, holder), old)  # type: ignore[misc]
            database.execute("ROLLBACK")
            queue = client._reports._queues.here()
            assert len(queue.waiting) <= 64
            assert queue.dropped > 500
            client.close()
            took = time.monotonic() - began
    while not client._reports.is_idle():
        time.sleep(0.01)  # real time: the last post is under way
    counts = server.ask("GET", "/v1/status")["counts"]
    posted = counts["rejections_reported"] + counts["rejections_unknown"]
    assert posted + client.reports_dropped == 1_000
    assert 1 <= posted <= 2 + took * 10


GONE = """
import statistics, time
from palisade.fences import Stale
from palisade.fences.files import Folder
root, reports = sys.argv[2], sys.argv[3] == "reports"
client = palisade.Client(url, report_refusals=reports, notices=False)
old = client.lock("orders", ttl="60s").acquire()
print(old.token, flush=True)
sys.stdin.readline()
took = []
for number in range(30):
    folder = Folder(f"{root}/{number}")
    began = time.perf_counter()
    try:
        folder.claim(old)
    except Stale:
        took.append(time.perf_counter() - began)
print(len(took), statistics.median(took), flush=True)
"""


def test_an_authority_that_is_gone_delays_nobody(server: Palisade, tmp_path: pathlib.Path) -> None:
    """The control is the same program without reports. One that waited would take the two seconds of an attempt."""
    took: dict[str, float] = {}
    ended: dict[str, float] = {}
    for kind in ("none", "reports"):
        command = [sys.executable, "-c", test_fork.PRELUDE + GONE, server.url, str(tmp_path), kind]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdin is not None and program.stdout is not None
            token = int(program.stdout.readline())
            with Client(server.url) as other:
                other.break_lock("orders", token)
                newer = other.lock("orders").acquire().token
                other.break_lock("orders", newer)
            for number in range(30):
                (tmp_path / f"{number}").mkdir(exist_ok=True)
                Folder(tmp_path / f"{number}").claim(newer)
            os.kill(server.process.pid, signal.SIGSTOP)
            try:
                program.stdin.write("\n")
                program.stdin.flush()
                count, median = program.stdout.readline().split()
                said = time.monotonic()
                assert program.wait(60) == 0
                took[kind], ended[kind] = float(median), time.monotonic() - said
                assert int(count) == 30
            finally:
                os.kill(server.process.pid, signal.SIGCONT)
    assert took["reports"] < took["none"] * 5 + 0.05
    assert ended["reports"] < ended["none"] + 1


FORKED = """
from palisade.fences.files import Folder
from palisade.fences.rule import pass_of
from palisade.fences import Stale
client, other = palisade.Client(url, notices=False), palisade.Client(url)
old = client.lock("orders", ttl="60s").acquire()
other.break_lock("orders", old.token)
new, held = other.lock("orders").acquire(), pass_of(old)
folders = []
for name in ("parent", "child"):
    os.mkdir(os.path.join(sys.argv[2], name))
    folders.append(Folder(os.path.join(sys.argv[2], name)))
    folders[-1].claim(new)

def refused(folder):
    try:
        folder.claim(held)
    except Stale:
        client._reports.wait()

refused(folders[0])
pid = os.fork()
if pid == 0:
    refused(folders[1])
    os._exit(0)
os.waitpid(pid, 0)
print(json.dumps(client.reports_dropped))
"""


def test_a_forked_child_reports_by_itself(server: Palisade, tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-c", test_fork.PRELUDE + FORKED, server.url, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    found = rejections(server, "orders", 2)
    assert sorted(pathlib.Path(one["resource"]).name for one in found) == ["child", "parent"]


def test_the_double_answers(served: Served) -> None:
    with served.client() as client:
        old, new = (client.lock("orders", client_id="me").acquire().token for _ in range(2))
        end = time.monotonic() + 30

        def is_recorded(token: int) -> object:
            body = {"fencing_token": token, "resource": "orders", "highest": new, "operation": ""}
            return client._ask("POST", "/v1/locks/orders/rejections", body, dict)["recorded"]

        while not is_recorded(old):
            assert time.monotonic() < end
            time.sleep(0.05)  # real time: the program's history has a grant a second later
        assert not is_recorded(new)
        assert not is_recorded(new + 1)
