#!/usr/bin/env python3
"""Upgrades a cluster from one program to another, under load, and checks the answers that its clients got.

    check_upgrade.py OLD NEW [--seconds N] [--no-key] [--json]
    check_upgrade.py --self-test

Three nodes on loopback, restarted as docs/operate/cluster.md says: one after another, the leader last. The first one also goes
back to OLD once, before anything is used that OLD does not know. Meanwhile clients acquire, renew and release over
HTTP; one holds a lock from the beginning to the end, and two wait for another lock all the time, in their order.

The history of their grants must be right, and a damaged one must be found: at the end of each run its own history is
damaged in four ways, and `--self-test` does the same without any node.

A program from before 25 November 2026 did not encrypt request ids, and needs `--no-key`: with a cluster key, requests
that wait when the first leader of the new version takes over lose their places, and this check finds that.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, ClassVar, Optional

from check_package import SOON, Wrong, must
from grant_history import Grant, History, Loss, judge, self_test

#: How long a client repeats a request until it is settled.
PATIENCE = 20.0
#: Longer than any run.
LONG_MS = 900_000
#: The leases of the clients, and the time between the renewals of the lock that is held all the time.
LEASE_MS, RENEW_EVERY = 6_000, 1.0
CLIENTS, LOCKS = 6, 3
#: Nothing happened, or it may have happened: the request is repeated with the same id.
REPEAT = ("not_leader", "unavailable", "unknown_outcome")
#: Kinds of requests, the oldest first. One that OLD does not know is refused until every node knows it.
KINDS: dict[str, dict[str, Any]] = {
    "readers": {"mode": "shared"},
    "permits": {"permits": {"count": 1, "of": 2}},
    "time after a grant": {"at_least_for_ms": 1},
    "several locks": {"also": ["one more"]},
    "mode update": {"mode": "update"},
}
Reply = dict[str, Any]


class Node:
    def __init__(self, place: pathlib.Path, host: str, number: int) -> None:
        self.data, self.log = place / f"node-{number}", place / f"node-{number}.log"
        self.name = f"node {number}"
        self.listen, self.peer = f"{host}:{7420 + 2 * number}", f"{host}:{7421 + 2 * number}"
        self.process: Optional[subprocess.Popen[bytes]] = None

    def start(self, program: str, flags: list[str], **environment: str) -> None:
        own = ["--listen", self.listen, "--peer-listen", self.peer, "--data", os.fspath(self.data)]
        ours = {name: value for name, value in os.environ.items() if not name.startswith("PALISADE_")}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [program, "serve", *own, *flags],
                env=ours | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        ended = self.process.wait(SOON)
        must(ended == 0, f"{self.name} ended with {ended}")

    def ask(self, method: str, path: str, body: Optional[Reply] = None, within: float = 5.0) -> tuple[int, Reply]:
        """One attempt; an `OSError` if there is no answer."""
        connection = http.client.HTTPConnection(self.listen, timeout=within)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (http.client.HTTPException, ValueError) as broken:
            raise ConnectionError(repr(broken)) from None
        finally:
            connection.close()


class Cluster:
    def __init__(self, place: pathlib.Path, key: bool) -> None:
        high, low = divmod(os.getpid() % 65_536, 256)
        # An address that nobody else uses: ports stay free while a node is down.
        self.nodes = [Node(place, f"127.{high | 128}.{low}.77", number) for number in range(3)]
        self.flags = ["--cluster", ",".join(node.peer for node in self.nodes)]
        if key:
            (place / "cluster.key").write_text(secrets.token_hex(32))
            self.flags += ["--cluster-key-file", os.fspath(place / "cluster.key")]

    def start(self, node: Node, program: str) -> None:
        node.start(program, self.flags)

    def statuses(self) -> list[Optional[str]]:
        """The answer of each node at `/readyz`; nothing for a node that is not ready."""
        said: list[Optional[str]] = []
        for node in self.nodes:
            said.append(None)
            with contextlib.suppress(OSError):
                said[-1] = node.ask("GET", "/readyz")[1].get("status")
        return said

    def leading(self) -> Optional[Node]:
        return next((node for node, status in zip(self.nodes, self.statuses()) if status == "leading"), None)

    def leader(self) -> Node:
        leader: Node = self.until("somebody leads", self.leading)
        return leader

    def until_level(self) -> None:
        """Every node is ready, and lags behind by nothing."""

        def level() -> bool:
            statuses = self.statuses()
            if None in statuses or "leading" not in statuses:
                return False
            with contextlib.suppress(OSError):
                view = self.nodes[statuses.index("leading")].ask("GET", "/v1/cluster")[1]
                members = view["members"]
                connected = sum(member["connected"] is not False for member in members)
                return connected == len(self.nodes) and all(member["matched"] == view["last"] for member in members)
            return False

        self.until("all nodes are ready, with lag 0", level)

    def until(self, what: str, holds: Callable[[], Any]) -> Any:
        end = time.monotonic() + SOON
        while True:
            held = holds()
            if held:
                return held
            for node in self.nodes:
                gone = node.process is not None and node.process.poll() not in (None, 0)
                must(not gone, f"{node.name} has ended")
            must(time.monotonic() < end, f"{what}: not within {SOON:.0f} s")
            time.sleep(0.02)  # real time: asked again, up to a deadline

    def tell(self) -> None:
        """The last lines of each node."""
        for node in self.nodes:
            last = node.log.read_text().splitlines()[-15:] if node.log.exists() else []
            print(f"{node.name}, {node.listen}:", *last, sep="\n  ", file=sys.stderr)

    def end(self) -> None:
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.process.kill()
                node.process.wait()


class Client:
    """Repeats a request until it is settled, as docs/reference/protocol.md says."""

    #: Of all clients.
    repeated: ClassVar[collections.Counter[str]] = collections.Counter()
    longest = 0.0

    def __init__(self, cluster: Cluster, history: History) -> None:
        self.cluster, self.history = cluster, history

    def settle(self, path: str, body: Reply, at: Node, wait: float = 0.0) -> tuple[int, Reply, float]:
        """The answer, and when the attempt that it answers was sent. A long wait goes on at the leader, as those of our
        own clients do."""
        began, node, why = time.monotonic(), at, ""
        while True:
            sent = time.monotonic()
            left = began + wait - sent
            must(left > -PATIENCE, f"{path} was not settled within {wait + PATIENCE:.0f} s: {why}")
            if wait:
                body = body | {"wait_ms": max(1, int(left * 1000))}
            code, leader = "no answer", None
            try:
                status, reply = node.ask("POST", path, body, within=max(left, 0) + 5)
                error = reply.get("error", {})
                code, leader, why = error.get("code"), error.get("leader"), str(error)
            except OSError as silent:
                why = repr(silent)
            if code not in REPEAT and code != "no answer":
                if not wait:
                    Client.longest = max(Client.longest, time.monotonic() - began)
                return status, reply, sent
            Client.repeated[code] += 1
            time.sleep(0.02)  # real time: asked again, as a client does
            others = [other for other in self.cluster.nodes if other is not node]
            if wait > PATIENCE:
                node = self.cluster.leading() or random.choice(others)
            else:
                node = next((known for known in others if leader == f"http://{known.listen}"), random.choice(others))

    def acquire(self, lock: str, at: Node, lease_ms: int = LEASE_MS, wait: float = 0.0) -> Held:
        asked, request = time.monotonic(), secrets.token_hex(16)
        body = {"client_id": f"client-{request}", "request_id": request, "lease_duration_ms": lease_ms}
        status, reply, sent = self.settle(f"/v1/locks/{lock}/acquire", body, at, wait)
        must(status == 200, f"{lock} was not granted: {reply}")
        until = sent + reply["valid_for_ms"] / 1000
        grant = Grant(lock, reply["fencing_token"], asked, time.monotonic(), until)
        self.history.grants.append(grant)
        return Held(self, grant, {"lock_token": reply["lock_token"], "fencing_token": grant.token})


class Held:
    """A lock in a client's hands."""

    def __init__(self, client: Client, grant: Grant, names: Reply) -> None:
        self.client, self.grant, self.names = client, grant, names

    def renew(self, at: Node) -> None:
        reply, sent = self.say("renew", at)
        self.grant.until = max(self.grant.until, sent + reply["valid_for_ms"] / 1000)

    def release(self, at: Node) -> None:
        believed, self.grant.until = self.grant.until, min(self.grant.until, time.monotonic())
        self.say("release", at, believed)

    def say(self, what: str, at: Node, believed: Optional[float] = None) -> tuple[Reply, float]:
        status, reply, sent = self.client.settle(f"/v1/locks/{self.grant.lock}/{what}", self.names, at)
        if status != 200:
            lost = dataclasses.replace(self.grant, until=believed or self.grant.until)
            self.client.history.losses.append(Loss(lost, time.monotonic(), reply["error"]["code"]))
            raise Wrong(f"{what} of {self.grant.lock}, token {self.grant.token}: {reply['error']}")
        return reply, sent


class Load:
    """Clients in threads; an error of one of them is raised at the next step."""

    #: The longest time that a client works under a grant.
    work_seconds = 0.02

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self.cluster, self.client = cluster, client
        self.over = threading.Event()
        self.complaints: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def run(self, act: Callable[[], None]) -> threading.Thread:
        def acting() -> None:
            try:
                act()
            except Exception as complaint:
                self.complaints.append(complaint)

        thread = threading.Thread(target=acting, daemon=True)
        thread.start()
        return thread

    def start(self) -> None:
        acts = [lambda number=number: self.work(number) for number in range(CLIENTS)]
        self.threads = [self.run(act) for act in (*acts, self.hold)]

    def work(self, number: int) -> None:
        lock = f"work-{number % LOCKS}"
        while not self.over.is_set():
            held = self.client.acquire(lock, self.anywhere(), wait=PATIENCE)
            time.sleep(random.uniform(0, self.work_seconds))  # real time: its work takes this long
            if random.random() < 0.3:
                held.renew(self.anywhere())
            held.release(self.anywhere())

    def hold(self) -> None:
        """One lease over everything."""
        held = self.client.acquire("held", self.anywhere())
        while not self.over.wait(RENEW_EVERY):
            held.renew(self.anywhere())
        shown = self.cluster.leader().ask("GET", "/v1/locks/held")[1]
        token = (shown["holder"] or {}).get("fencing_token")
        must(token == held.grant.token, f"held has token {held.grant.token}, and the leader shows {shown}")
        held.release(self.anywhere())

    def anywhere(self) -> Node:
        return random.choice(self.cluster.nodes)

    def check(self) -> None:
        if self.complaints:
            raise self.complaints[0]

    def stop(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(PATIENCE + SOON)
            must(not thread.is_alive(), "a client has not come to an end")
        self.check()


class Queue:
    """A lock that is held, and two clients that wait for it."""

    def __init__(self, load: Load, name: str, through: Optional[Node] = None) -> None:
        self.load, self.lock = load, f"queue-{name}"
        self.front = load.client.acquire(self.lock, load.anywhere(), LONG_MS)
        #: The places of those that got it.
        self.granted: list[int] = []
        # They go to the leader, unless a node is named.
        self.threads = [self.wait(at or load.cluster.leader(), place) for place, at in enumerate((through, None), 1)]

    def wait(self, at: Node, place: int) -> threading.Thread:
        def waiting() -> None:
            held = self.load.client.acquire(self.lock, at, LONG_MS, wait=LONG_MS / 1000)
            self.granted.append(place)
            order = list(self.granted)
            held.release(self.load.anywhere())
            must(order == sorted(order) and len(order) == place, f"{self.lock} was granted out of turn: {order}")

        thread = self.load.run(waiting)
        self.load.cluster.until(f"{place} wait in {self.lock}", lambda: self.length() == place)
        return thread

    def length(self) -> int:
        with contextlib.suppress(OSError):
            shown = self.load.cluster.nodes[0].ask("GET", f"/v1/locks/{self.lock}")[1]
            return int(shown.get("waiters", -1))
        return -1

    def end(self) -> None:
        """The lock is free: they get it in their order."""
        self.front.release(self.load.anywhere())
        for thread in self.threads:
            thread.join(PATIENCE + SOON)
            self.load.check()
            must(not thread.is_alive(), f"{self.lock} was not granted to all that wait for it: only to {self.granted}")


class Upgrade:
    def __init__(self, old: str, new: str, place: pathlib.Path, arguments: argparse.Namespace) -> None:
        self.old, self.new, self.seconds, self.quiet = old, new, arguments.seconds, arguments.json
        self.cluster, self.history = Cluster(place, not arguments.no_key), History()
        self.client = Client(self.cluster, self.history)
        self.load = Load(self.cluster, self.client)
        self.steps: list[Reply] = []
        #: Kinds that OLD does not know, and how they were answered meanwhile.
        self.newer: list[str] = []
        self.answers: collections.Counter[str] = collections.Counter()
        #: Whether a node is OLD.
        self.mixed = True

    def step(self, name: str, since: float, **more: Any) -> None:
        """Records a step that has been done since then, and the clients' view of it."""
        self.load.check()
        now = time.monotonic()
        work, pause = self.history.since(since, now)
        step = {"step": name, "seconds": round(now - since, 1), "grants": work, "no_grant_ms": round(pause * 1000)}
        self.steps.append(step | more)
        if not self.quiet:
            told = [f"{step['seconds']} s", f"{work} grants", f"none for {step['no_grant_ms']} ms"]
            told += [f"{key.replace('_', ' ')}: {value}" for key, value in more.items()]
            print(f"== {name}: {', '.join(told)}", flush=True)

    def run(self) -> None:
        began = time.monotonic()
        for node in self.cluster.nodes:
            self.cluster.start(node, self.old)
        self.cluster.until_level()
        self.newer = [kind for kind in KINDS if not self.knows(kind)]
        self.load.start()
        everything = Queue(self.load, "all")
        time.sleep(self.seconds)  # real time: the load runs for so long
        self.step("OLD at three nodes", began, new_since_then=", ".join(self.newer) or "no kind of request")

        leader = self.cluster.leader()
        first, second = (node for node in self.cluster.nodes if node is not leader)
        self.restart(first, self.new, "a follower to NEW")
        self.restart(first, self.old, "back to OLD")
        self.restart(first, self.new, "to NEW again")
        self.restart(second, self.new, "the other follower to NEW")
        self.restart(leader, self.new, "the leader to NEW")
        self.mixed = False
        began = time.monotonic()
        for kind in self.newer:
            must(self.knows(kind), f"{kind}: refused when all nodes are NEW")
        self.step("what OLD does not know works", began)
        follower = next(node for node in self.cluster.nodes if node is not self.cluster.leader())
        self.restart(follower, self.new, "a follower restarts while somebody waits through it", through=follower)
        if self.newer:
            self.no_way_back(follower)
        began = time.monotonic()
        everything.end()
        self.load.stop()
        self.step("the lock that was held all the time, and the queue for another one", began)
        judge(self.history)

    def restart(self, node: Node, program: str, name: str, through: Optional[Node] = None) -> None:
        began = time.monotonic()
        queue = Queue(self.load, str(len(self.steps)), through)
        led = self.cluster.leader() is node
        node.stop()
        if led and self.mixed:
            # The node that leads now is NEW, and knows of one that is not.
            self.refusals(self.cluster.nodes[self.cluster.nodes.index(node) - 1])
        self.cluster.start(node, program)
        self.cluster.until_level()
        if not led and self.mixed:
            self.refusals(node)
        time.sleep(self.seconds)  # real time: the load runs for so long
        queue.end()
        self.step(name, began, node=node.name)

    def refusals(self, at: Node) -> None:
        """While a node is OLD, a request of a kind that it does not know is refused, with the next step. An OLD leader
        can only answer that the request is wrong."""
        for kind in self.newer:
            status, error = self.try_kind(kind, at)
            code, message = error.get("code"), error.get("message", "")
            self.answers[code or "granted"] += 1
            must(status != 200, f"{kind}: granted while a node is OLD, and could not read the log any more")
            must(code in ("refused", "unavailable", "invalid"), f"{kind}: {error}")
            if code != "invalid":
                must("palisade cluster remove" in message, f"{kind}: it is not said what to do: {message}")

    def try_kind(self, kind: str, at: Node) -> tuple[int, Reply]:
        """One answer that says more than who leads."""
        request = secrets.token_hex(16)
        body = {"client_id": request, "request_id": request, "lease_duration_ms": 100, **KINDS[kind]}
        end = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError):
                status, reply = at.ask("POST", f"/v1/locks/kind-{list(KINDS).index(kind)}/acquire", body)
                error = reply.get("error", {})
                if error.get("code") not in ("not_leader", "unknown_outcome"):
                    return status, error
            must(time.monotonic() < end, f"{kind}: no answer")
            time.sleep(0.02)  # real time: asked again, up to a deadline

    def knows(self, kind: str) -> bool:
        """Whether it is granted, once the leader has heard from all nodes."""
        end = time.monotonic() + PATIENCE
        while True:
            status, error = self.try_kind(kind, self.cluster.leader())
            if status == 200 or error.get("code") == "invalid" or time.monotonic() > end:
                return status == 200
            must(error.get("code") in ("unavailable", "refused"), f"{kind}: {error}")
            time.sleep(0.02)  # real time: asked again, up to a deadline

    def no_way_back(self, node: Node) -> None:
        """OLD does not skip entries that it does not know."""
        began = time.monotonic()
        node.stop()
        written = len(node.log.read_text())
        self.cluster.start(node, self.old)
        assert node.process is not None
        try:
            ended = node.process.wait(SOON)
        except subprocess.TimeoutExpired:
            raise Wrong("OLD serves a log with entries that it does not know") from None
        said = node.log.read_text()[written:]
        must(ended != 0 and "unknown version" in said, f"OLD ended with {ended} and says: {said}")
        self.cluster.start(node, self.new)
        self.cluster.until_level()
        self.step("OLD does not start any more on what NEW has used; NEW does", began, node=node.name)

    def summary(self) -> Reply:
        return {
            "grants": len(self.history.grants),
            "highest_token": max(grant.token for grant in self.history.grants),
            "repeated": dict(Client.repeated),
            "longest_without_a_wait_ms": round(Client.longest * 1000),
            "newer_kinds": self.newer,
            "their_answers_while_a_node_was_old": dict(self.answers),
            "steps": self.steps,
        }

    def report(self) -> None:
        summary = self.summary()
        if self.quiet:
            print(json.dumps(summary, indent=2))
            return
        del summary["steps"]
        for key, value in summary.items():
            print(f"{key.replace('_', ' ')}: {value}")
        print("tokens rise, none was given twice, no grant was lost or early; each damage to this history was found")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", metavar="OLD", help="the program that runs first")
    parser.add_argument("new", nargs="?", metavar="NEW", help="the program that replaces it")
    parser.add_argument("--seconds", type=float, default=1.0, help="load between two steps [default: 1]")
    parser.add_argument("--no-key", action="store_true", help="nodes without --cluster-key-file")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    parser.add_argument("--self-test", action="store_true", help="only show that a damaged history is found")
    arguments = parser.parse_args()
    if not arguments.self_test and arguments.new is None:
        parser.error("name the two programs, OLD and NEW")
    for program in filter(None, (arguments.old, arguments.new)):
        if not os.access(program, os.X_OK):
            parser.error(f"{program} is no program; `cargo build --release -p palisade` makes one")
    try:
        self_test()
        if arguments.self_test:
            print("check_upgrade: a repeated token, a falling one, an early grant and a lost one are found")
            return 0
        with tempfile.TemporaryDirectory(prefix="palisade-upgrade-") as place:
            upgrade = Upgrade(arguments.old, arguments.new, pathlib.Path(place), arguments)
            try:
                upgrade.run()
                upgrade.report()
            except (Wrong, subprocess.TimeoutExpired):
                upgrade.cluster.tell()
                raise
            finally:
                upgrade.cluster.end()
    except (Wrong, subprocess.TimeoutExpired) as wrong:
        print(f"check_upgrade: {wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
