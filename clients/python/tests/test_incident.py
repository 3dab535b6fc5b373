"""An incident with real processes, and what `palisade history --json` says of it: docs/operate/history.md.

The times of the history are compared with those at which this machine's clock stood before and after each act of the
test, so no margin is a guess: a server that stamped anything else would be outside.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any, Callable, Iterator, Optional

import pytest
import test_fork
import test_reports
from suite.servers import Palisade

from palisade.fences.files import Folder

#: The history has milliseconds, and a wait is rounded by itself.
MS = 0.002

#: A holder as its author would write it: it takes what it shows to the fences before it works. Each line on its
#: standard input is a step.
WRITER = """
import httpx, psycopg, redis
from palisade.fences import Stale, http, postgres
from palisade.fences.files import Folder
from palisade.fences.redis import Resource
from palisade.fences.rule import pass_of

place, lock, name, ttl = json.loads(sys.argv[2]), *sys.argv[3:]

def say(**facts):
    print(json.dumps(facts), flush=True)

def at_database(claims):
    with psycopg.connect(place["database"]) as database, postgres.transact(database, f"{lock}-database", held):
        pass

def at_cache(claims):
    with redis.Redis.from_url(place["cache"]) as cache:
        resource = Resource(f"{lock}-cache")
        resource.claim(cache, held) if claims else resource.set(cache, held, f"{{{lock}-cache}}:total", 1)

def at_file(claims):
    folder = Folder(place["file"])
    folder.claim(held) if claims else folder.put(held, "/total", b"1")

def at_gateway(claims):
    more = {"X-Fencing-Operation": "claim"} if claims else {}
    http.raise_for_fence(httpx.put(f"{place['gateway']}/total", headers={**headers, **more}))

client = palisade.Client(url)
client.status()
say(ready=True)
sys.stdin.readline()
say(asks=time.time())
lease = client.lock(lock, ttl=ttl, wait="60s", client_id=name, metadata="nightly").acquire()
say(granted=time.time(), token=lease.token)
held, headers = pass_of(lease), http.headers(lease)
for line in sys.stdin:
    step, *places = line.split()
    if step == "die":
        # Between the refusal and the report.
        palisade._reports.Reports.add = lambda *_: os.kill(os.getpid(), 9)
    elif step == "dropped":
        say(dropped=client.reports_dropped)
    else:
        refused = []
        for where in places:
            try:
                globals()[f"at_{where}"](step == "claim")
            except Stale:
                refused.append(where)
        say(refused=refused)
os._exit(0)
"""


class Writer:
    """A process that holds a lock and writes."""

    def __init__(self, url: str, places: dict[str, str], lock: str, name: str, ttl: str = "60s") -> None:
        command = [sys.executable, "-c", test_fork.PRELUDE + WRITER, url, json.dumps(places), lock, name, ttl]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.hear()["ready"]

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())  # type: ignore[no-any-return]

    def ask(self) -> Writer:
        self.tell("acquire")
        self.asks = float(self.hear()["asks"])
        return self

    def hold(self) -> Writer:
        said = self.hear()
        self.granted, self.token = float(said["granted"]), int(said["token"])
        return self

    def tell(self, step: str, *places: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join((step, *places)) + "\n")
        self.process.stdin.flush()

    def do(self, step: str, *places: str) -> list[str]:
        """The places that refused it."""
        self.tell(step, *places)
        return list(self.hear()["refused"])

    def dropped(self) -> int:
        self.tell("dropped")
        return int(self.hear()["dropped"])

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        until(lambda: pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def until(happened: Callable[[], Any]) -> Any:
    end = time.monotonic() + 60
    while not (result := happened()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)  # real time: asked again, up to a deadline
    return result


@contextlib.contextmanager
def gateway(binary: str, server: Palisade, data: pathlib.Path) -> Iterator[tuple[str, str]]:
    """A gateway that reports by itself, and the address of its metrics."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), test_reports._Api) as api:
        threading.Thread(target=api.serve_forever, daemon=True).start()
        command = [binary, "gateway", "--upstream", f"http://127.0.0.1:{api.server_port}", "--data", f"{data}"]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--route", "/total=api"]
        command += ["--report-to", server.url, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout is not None
                said = json.loads(process.stdout.readline())
                yield said["url"], said["admin"]
            finally:
                process.kill()
                api.shutdown()


@pytest.fixture
def places(tmp_path: pathlib.Path) -> dict[str, str]:
    (tmp_path / "reports").mkdir()
    return {"file": str(tmp_path / "reports")}


@pytest.fixture
def history(binary: str, server: Palisade) -> Callable[..., list[dict[str, Any]]]:
    """What the program prints, one grant for each token."""

    def grants(*arguments: str) -> list[dict[str, Any]]:
        command = [binary, "history", "--json", "--authority", server.url, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    return grants


def at(instant: str) -> float:
    return datetime.datetime.fromisoformat(instant.replace("Z", "+00:00")).timestamp()


def reports(grant: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((one["resource"], one["operation"]) for one in grant.get("rejections", []))


def test_the_five_questions(
    binary: str,
    server: Palisade,
    places: dict[str, str],
    tmp_path: pathlib.Path,
    history: Callable[..., list[dict[str, Any]]],
    postgres_url: str,
    redis_url: str,
) -> None:
    places.update(database=postgres_url, cache=redis_url)
    lock = f"orders-{os.urandom(8).hex()}"
    everywhere = ("database", "cache", "file", "gateway")
    with gateway(binary, server, tmp_path / "gateway") as (url, _), contextlib.ExitStack() as ends:
        places["gateway"] = url
        # A lease that outlasts by far what it takes, here and now, to ask for a lock.
        probe, began = ends.enter_context(Writer(server.url, places, f"{lock}-probe", "probe")), time.monotonic()
        probe.ask().hold()
        ttl = 2 + round(20 * (time.monotonic() - began))
        second = ends.enter_context(Writer(server.url, places, lock, "web-2"))
        first = ends.enter_context(Writer(server.url, places, lock, "web-1", f"{ttl}s")).ask().hold()
        assert first.do("claim", *everywhere) == []
        assert first.do("write", *everywhere) == []
        writes = time.time()
        first.pause()
        server.show(lock)
        paused = time.time()
        second.ask()
        until(lambda: server.show(lock).get("waiters") == 1)
        waits = time.time()
        second.hold()
        assert second.do("claim", *everywhere) == []
        resumed = time.time()
        first.resume()
        assert first.do("write", *everywhere) == list(everywhere)

        def told() -> Optional[tuple[dict[str, Any], ...]]:
            found = history(lock)
            one = next((grant for grant in found if grant["fencing_token"] == first.token), None)
            other = next((grant for grant in found if grant["fencing_token"] == second.token), None)
            return (one, other) if one and other and len(one.get("rejections", [])) == 5 else None

        late, holder = until(told)
        seen = time.time()
    # The holder, and since when.
    assert (late["client_id"], late["metadata"]) == ("web-1", "nightly")
    assert first.asks - MS <= at(late["granted_at"]) <= first.granted
    # Why it ended: no renewal came after the pause, and the lease lasted as long as the last one said.
    ended = late["ended"]
    assert ended["how"] == "expired"
    assert at(late["granted_at"]) - MS <= at(ended["renewed_at"]) <= paused
    assert at(ended["renewed_at"]) + ttl - MS <= at(ended["at"]) <= second.granted
    # Who waited, and how long.
    assert (holder["client_id"], "ended" in holder) == ("web-2", False)
    assert second.asks - MS <= at(holder["asked_at"]) <= waits
    assert at(ended["at"]) - MS <= at(holder["granted_at"]) <= second.granted
    waited = at(holder["granted_at"]) - at(holder["asked_at"])
    assert abs(waited - holder["waited_ms"] / 1_000) <= MS
    # The late writer: this one at all four, as its own client and the gateway say; the other one nowhere.
    assert reports(late) == sorted(
        [
            (f"{lock}-database", "claim"),
            (f"{lock}-cache", "write"),
            (places["file"], "put"),
            (url.removeprefix("http://"), "PUT /total"),
            ("api", "PUT /total"),
        ]
    )
    assert not reports(holder)
    for one in late["rejections"]:
        assert one["highest"] == second.token
        assert resumed - MS <= at(one["reported_at"]) <= seen
    # The control: its writes before the pause were not late, and are not there.
    assert writes < min(at(one["reported_at"]) for one in late["rejections"])
    assert [grant["fencing_token"] for grant in history("--refused")] == [first.token]


def superseded(server: Palisade, places: dict[str, str], lock: str) -> tuple[Writer, int]:
    """A holder that does not know that its lock was taken, and the token of the one after it."""
    old = Writer(server.url, places, lock, f"{lock}-1").ask().hold()
    server.lock(lock, "break", fencing_token=old.token, reason="it hangs")
    new = int(server.lock(lock, "acquire", client_id=f"{lock}-2", lease_duration_ms=60_000)["fencing_token"])
    until(lambda: server.ask("GET", f"/v1/history?lock={lock}&token={new}")["grants"])
    return old, new


def with_refusals(server: Palisade, lock: str) -> object:
    return server.ask("GET", f"/v1/history?lock={lock}&refused=true")["grants"]


def put(url: str, lock: str, token: int) -> None:
    headers = {"X-Fencing-Token": str(token), "X-Fencing-Lock": lock, "X-Fencing-Operation": "claim"}
    urllib.request.urlopen(urllib.request.Request(f"{url}/total", method="PUT", headers=headers)).close()


def test_a_writer_killed_before_it_can_report(
    binary: str,
    server: Palisade,
    places: dict[str, str],
    tmp_path: pathlib.Path,
    history: Callable[..., list[dict[str, Any]]],
) -> None:
    """It leaves no trace, unless the resource reports by itself. The control is a writer that lives."""
    for lock, dies in (("lives", False), ("dies", True)):
        places["file"] = str(tmp_path / lock)
        os.mkdir(places["file"])
        old, new = superseded(server, places, lock)
        with old:
            Folder(places["file"]).claim(new)
            if dies:
                old.tell("die")
                old.tell("write", "file")
                assert old.process.wait(60) == -signal.SIGKILL
            else:
                assert old.do("write", "file") == ["file"]
                until(functools.partial(with_refusals, server, lock))
        # When this one is there, an earlier one is, too.
        body = {"fencing_token": old.token, "highest": new, "resource": "~last", "operation": ""}
        assert server.lock(lock, "rejections", **body)["recorded"]
        (late,) = history(lock, "--refused")
        assert reports(late) == ([] if dies else [(places["file"], "put")]) + [("~last", "")]
    with gateway(binary, server, tmp_path / "gateway") as (url, _):
        places["gateway"] = url
        old, new = superseded(server, places, "at-a-gateway")
        with old:
            put(url, "at-a-gateway", new)
            old.tell("die")
            old.tell("write", "gateway")
            assert old.process.wait(60) == -signal.SIGKILL
        until(lambda: reports(history("at-a-gateway", "--token", str(old.token))[0]) == [("api", "PUT /total")])


def test_a_forged_report_accuses_nobody_that_was_not_there(
    server: Palisade, places: dict[str, str], history: Callable[..., list[dict[str, Any]]]
) -> None:
    old, new = superseded(server, places, "orders")
    with old:

        def report(token: int, highest: int, lock: str = "orders") -> object:
            body = {"fencing_token": token, "highest": highest, "resource": "forged", "operation": "DELETE"}
            return server.lock(lock, "rejections", **body)["recorded"]

        before = history("orders")
        assert not report(new + 100, new + 101)
        assert not report(old.token, new, "another")
        assert not report(new, old.token), "not late"
        assert history("orders") == before
        counts = server.ask("GET", "/v1/status")["counts"]
        assert (counts["rejections_reported"], counts["rejections_unknown"]) == (0, 3)
        # The control: of a grant that was there, it is believed, and says who said so.
        assert report(old.token, new)
        (late,) = history("--refused")
        assert (late["fencing_token"], reports(late)) == (old.token, [("forged", "DELETE")])
        assert late["rejections"][0]["reported_by"] == "anonymous"


def metric(admin: str, name: str) -> int:
    with urllib.request.urlopen(f"{admin}/metrics") as answer:
        found = re.search(rf"^{name} (\d+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return int(found[1])


def test_a_report_that_comes_while_the_authority_is_gone(
    binary: str,
    server: Palisade,
    places: dict[str, str],
    tmp_path: pathlib.Path,
    history: Callable[..., list[dict[str, Any]]],
) -> None:
    """It is dropped and counted, and does not come later; the grants are in the history as if nothing had been."""
    with gateway(binary, server, tmp_path / "gateway") as (url, admin):
        places["gateway"] = url
        old, new = superseded(server, places, "orders")
        with old:
            Folder(places["file"]).claim(new)
            put(url, "orders", new)
            server.process.kill()
            server.process.wait()
            assert old.do("write", "file", "gateway") == ["file", "gateway"]
            until(lambda: old.dropped() == 2)
            until(lambda: metric(admin, "palisade_gateway_reports_dropped_total") == 1)
            command = [binary, "serve", "--listen", f"127.0.0.1:{server.port}", "--data", f"{server.folder}/data"]
            assert server.process.stdout is not None
            server.process.stdout.close()
            server.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            assert server._port() == server.port
            # The control: one that comes afterwards is kept.
            body = {"fencing_token": old.token, "highest": new, "resource": "later", "operation": "put"}
            until(lambda: server.lock("orders", "rejections", **body).get("recorded"))
        kept = until(lambda: history("orders", "--token", str(old.token)))
        assert [(grant["ended"]["how"], reports(grant)) for grant in kept] == [("revoked", [("later", "put")])]
