"""Processes that are forked from one that has used a client: multiprocessing, gunicorn --preload, a fork of C as uWSGI
makes it, and a second event loop. Each runs in a process of its own."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest
from conftest import _free_port
from suite.servers import Palisade

import palisade

PRELUDE = """
import ctypes, json, os, sys, time, warnings
import palisade
warnings.simplefilter("ignore")
url = sys.argv[1]
"""


def run(code: str, server: Palisade) -> Any:
    """The output of a program, as JSON."""
    command = [sys.executable, "-c", PRELUDE + code, server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


CHILDREN = """
name = f"held-{os.getpid()}"
holder = palisade.Client(url, notices=False).lock(name, ttl="60s", wait=0).acquire()
client = palisade.Client(url, patience="2s")
client.status()
parent, read, write = palisade._process.this_process(), *os.pipe()
shares_pool = False

def child(number):
    if shares_pool:
        palisade._transport.this_process = lambda: parent
    for turn in range(25):
        try:
            with client.lock(name if number < 2 else f"free-{number}", ttl="5s", wait=0) as grant:
                told = "second holder" if number < 2 else "granted"
        except palisade.LockHeld:
            told = "held"
        except palisade.PalisadeError as error:
            told = "crossed" if "another request" in str(error) else str(error)
        os.write(write, told.encode() + b";")
"""
# Tells of each answer that was not believed; the client itself asks again.
NOTES = """
believed = palisade._transport.foreign
def foreign(nonce, answer):
    why = believed(nonce, answer)
    if why is not None and "another request" in why:
        os.write(write, b"noted;")
    return why
palisade._transport.foreign = foreign
"""
REPORT = """
os.close(write)
seen = b""
while piece := os.read(read, 65536):
    seen += piece
seen = seen.decode().split(";")[:-1]
print(json.dumps({told: seen.count(told) for told in ("second holder", "granted", "held", "crossed")}))
"""
WITH_MULTIPROCESSING = """
import multiprocessing
fork = multiprocessing.get_context("fork")
children = [fork.Process(target=child, args=(number,)) for number in range(6)]
for each in children: each.start()
for each in children: each.join()
"""
# uWSGI forks without the hooks of os.register_at_fork.
WITH_A_FORK_OF_C = """
pids = []
for number in range(6):
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        child(number)
        os._exit(0)
    pids.append(pid)
for pid in pids: os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("fork", [WITH_MULTIPROCESSING, WITH_A_FORK_OF_C], ids=["multiprocessing", "uwsgi"])
def test_a_child_has_connections_of_its_own(server: Palisade, fork: str) -> None:
    seen = run(CHILDREN + fork + REPORT, server)
    assert seen == {"second holder": 0, "granted": 100, "held": 50, "crossed": 0}


def test_children_that_share_a_connection_are_told_of_crossed_answers_and_never_a_grant(server: Palisade) -> None:
    """The control: on the parent's connection answers do cross, and the nonce shows it. Both children send while the
    server is stopped, and the first one is stopped before it can read, so each reads the other's answer."""
    fork = f"""
import palisade._bounded, select
reads, tells = os.pipe()
read_on = palisade._bounded._Stream.read
def told(*given, **named):
    os.write(tells, b".")
    return read_on(*given, **named)
palisade._bounded._Stream.read = told
os.kill({server.process.pid}, 19)
pids = []
for number in (0, 2):
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        child(number)
        os._exit(0)
    pids.append(pid)
    os.read(reads, 1)  # it has sent its request, in this order, and waits for the answer
os.kill(pids[0], 19)
os.kill({server.process.pid}, 18)
assert select.select([read], [], [], 30)[0]  # the other one has read first
os.kill(pids[0], 18)
for pid in pids: os.waitpid(pid, 0)
"""
    shares = CHILDREN.replace("shares_pool = False", "shares_pool = True").replace("range(25)", "range(1)")
    shares = shares.replace('"2s"', '"8s"')
    crossed = NOTES + shares + fork + REPORT.replace('"crossed")', '"noted", "crossed")')
    seen = run(crossed, server)
    assert seen["second holder"] == 0
    assert seen["noted"] >= 1, "no answers crossed, so the test above shows nothing"


@pytest.mark.parametrize("fork", ["os.fork()", "ctypes.PyDLL(None).fork()"], ids=["python", "uwsgi"])
def test_a_child_that_leaves_the_block_leaves_the_lock_to_its_parent(server: Palisade, fork: str) -> None:
    code = f"""
client = palisade.Client(url)
read, write = os.pipe()
try:
    with client.lock("orders", ttl="9s", wait=0) as grant:
        pid = {fork}
        if pid == 0:
            try:
                grant.check()
                says = "holds"
            except palisade.LeaseLost as lost:
                says = str(lost)
            told = dict(says=says, held=grant.held, remaining=grant.remaining, lost=grant.lost.wait(1))
            told["release"] = grant.release()
            os.write(write, json.dumps(told).encode())
            sys.exit(0)
        os.waitpid(pid, 0)
        stranger = palisade.Client(url).lock("orders", wait=0).try_acquire()
        told = json.loads(os.read(read, 65536))
        print(json.dumps(dict(told, stranger=stranger is not None, parent=grant.held)))
except SystemExit:
    os._exit(0)
"""
    told = run(code, server)
    assert "before the fork" in told.pop("says")
    child = {"held": False, "remaining": 0, "lost": True, "release": "over"}
    assert told == {**child, "stranger": False, "parent": True}


def test_gunicorn_with_a_preloaded_client(server: Palisade, tmp_path: Any) -> None:
    (tmp_path / "application.py").write_text(
        f"""
import os
import palisade
client = palisade.Client({server.url!r}, patience="2s")
mine = client.lock("held", ttl="60s", wait=0).acquire()  # by the master, when it loads the application

def app(environ, start_response):
    name = environ["PATH_INFO"].strip("/")
    try:
        with client.lock(name, ttl="5s", wait="1s" if name != "held" else 0) as grant:
            told = "granted" if grant.held else "lost"
    except palisade.PalisadeError as error:
        told = type(error).__name__
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{{os.getpid()}} {{told}} {{mine.held}}".encode()]
"""
    )
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "--preload",
        "--workers=3",
        f"--bind=127.0.0.1:{port}",
        "application:app",
    ]
    gunicorn = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        answers = set()
        for number in range(60):
            name = "held" if number % 2 else f"free-{number}"
            answers.add((name == "held", *_ask(f"http://127.0.0.1:{port}/{name}").split()[1:]))
        # A worker holds nothing of its master's, and the master's lock is never granted again.
        assert answers == {(True, "LockHeld", "False"), (False, "granted", "False")}
        assert server.show("held")["holder"] is not None
    finally:
        gunicorn.terminate()
        gunicorn.wait(30)


def _ask(url: str) -> str:
    for _ in range(600):
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:
            subprocess.run(["sleep", "0.05"], check=True)  # it is starting
    raise AssertionError(f"{url} does not answer")


def test_a_client_works_on_one_event_loop_after_the_other(server: Palisade) -> None:
    code = """
import asyncio
client = palisade.AsyncClient(url)
async def once():
    async with client.lock("orders", ttl="5s", wait="1s") as grant:
        return grant.token
async def keeps():
    return await client.lock("kept", ttl="5s", wait="1s").acquire()
async def goes_on(grant):
    held = grant.held
    return held, await grant.release()
tokens = [asyncio.run(once()), asyncio.run(once())]
kept = asyncio.run(keeps())
held, how = asyncio.run(goes_on(kept))
asyncio.run(client.aclose())
print(json.dumps([tokens[0] < tokens[1], held, how]))
"""
    assert run(code, server) == [True, True, "released"]


def test_a_child_whose_parents_id_it_has_in_another_namespace_holds_nothing(server: Palisade) -> None:
    """The control: without the hook of `os.register_at_fork` it would take itself for its parent."""
    code = """
number = os.getpid()
os.getpid = lambda: number  # as process 1 of a container sees it, and its child in another PID namespace
client = palisade.Client(url)
read, write = os.pipe()
with client.lock("orders", ttl="9s", wait=0) as grant:
    for hook in True, False:
        if os.fork() == 0:
            if not hook:
                palisade._process._forks -= 1
            os.write(write, json.dumps([grant.held, grant.release()]).encode())
            os._exit(0)
        os.wait()
        print(os.read(read, 65536).decode(), end=" " if hook else "\\n")
"""
    command = [sys.executable, "-c", PRELUDE + code, server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == '[false, "over"] [true, "released"]\n'


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_error_of_a_worker_process_reaches_its_parent(server: Palisade, tmp_path: Any, method: str) -> None:
    """The control: an exception that cannot be made anew kills the pool's own thread, and the parent waits for ever."""
    (tmp_path / "work.py").write_text(
        """
import palisade
from palisade.fences.errors import Stale

def fails(number):
    holder = palisade.Holder("other", 4, 1.5)
    held = palisade.LockHeld("held", "no", holder, 2.5)
    raise [palisade.LeaseLost("expired", "orders", 3), held, Stale(3, 4)][number]

class Plain(Exception):
    def __init__(self, code, message):
        super().__init__(message)
"""
    )
    code = f"""
import multiprocessing, pickle
sys.path.insert(0, {str(tmp_path)!r})
import work
if __name__ == "__main__":
    told = []
    with multiprocessing.get_context({method!r}).Pool(1) as pool:
        for number in range(3):
            try:
                pool.apply(work.fails, [number])
            except palisade.PalisadeError as error:
                more = [getattr(error, name, None) for name in ("lock", "token", "retry_after", "highest")]
                told.append([type(error).__name__, error.code, str(error)[:3], *more])
    try:
        pickle.loads(pickle.dumps(work.Plain("code", "message")))
    except TypeError as error:
        told.append("missing" in str(error))
    print(json.dumps(told))
"""
    lost = ["LeaseLost", "expired", "the", "orders", 3, None, None]
    held = ["LockHeld", "held", "no", None, None, 2.5, None]
    assert run(code, server) == [lost, held, ["Stale", "stale", "tok", None, 3, None, 4], True]


def test_what_belongs_to_a_process_is_not_copied_and_the_error_says_what_to_do(server: Palisade) -> None:
    """`multiprocessing` with spawn and forkserver copies the arguments of a process."""
    asynchronous = palisade.AsyncClient(server.url)
    with palisade.Client(server.url) as client, client.lock("orders", wait=0) as grant:
        for each in (client, client.lock("other"), grant, asynchronous, asynchronous.lock("other")):
            for copies in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="another process: make a client there"):
                    copies(each)


def test_a_loss_is_announced_on_the_next_event_loop(server: Palisade) -> None:
    """The control: a bare event, which the task of the first loop would have set."""
    code = """
import asyncio
client = palisade.AsyncClient(url)
async def acquires():
    return await client.lock("orders", ttl="1s", wait=0).acquire()
async def waits(grant):
    try:
        await asyncio.wait_for(asyncio.Event.wait(grant.lost), 2)
        bare = True
    except TimeoutError:
        bare = False
    return bare, await asyncio.wait_for(grant.lost.wait(), 20)
grant = asyncio.run(acquires())
told = asyncio.run(waits(grant))
try:
    grant.check()
except palisade.LeaseLost as lost:
    print(json.dumps([*told, lost.code]))
"""
    assert run(code, server) == [False, True, "expired"]


def test_an_async_client_without_asyncio_says_so(server: Palisade) -> None:
    """As trio runs it, or a program that forgot `asyncio.run`."""
    client = palisade.AsyncClient(server.url)
    for call in (client.lock("orders", wait=0).acquire(), client.show("orders")):
        with pytest.raises(palisade.Invalid, match="event loop of asyncio"):
            call.send(None)
