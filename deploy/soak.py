#!/usr/bin/env python3
"""Runs three nodes for an hour while nodes die, hang, restart and change their version, and checks what clients got.

    soak.py PROGRAM [--next PROGRAM] [--minutes N] [--seed N] [--json]

Every few seconds a node, the leader as often as a follower, is killed, stopped for a while as a hung one is, restarted,
or changed to the next program and back. Never two at a time: three nodes bear one. Meanwhile clients acquire, renew and
release over HTTP, and one holds a lock from the beginning to the end. At the end the history of all grants must be
right, and four damages of it must be found. Memory, descriptors and directories are measured each minute.

The next program knows one more version of the log's format if it was built with the feature `testing`, as development
builds are.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from check_package import Wrong, must
from check_upgrade import Client, Cluster, Load, Node
from grant_history import History, judge, self_test

#: The longest time between two events, and that a node is away.
BETWEEN, AWAY = 20.0, 5.0
NEXT = {"PALISADE_TEST_NEXT_VERSION": "1"}
MIB = 1 << 20


class Slower(Load):
    """An hour of it must fit into the memory of the check."""

    work_seconds = 0.5


class Soak:
    def __init__(self, program: str, following: str, place: pathlib.Path, quiet: bool) -> None:
        self.program, self.following, self.quiet = program, following, quiet
        self.cluster, self.history = Cluster(place, key=True), History()
        self.client = Client(self.cluster, self.history)
        self.load = Slower(self.cluster, self.client)
        #: The node that runs the next program, if any.
        self.newer: Node | None = None
        #: Of each kind of event: how many, and the longest time without a grant.
        self.events: dict[str, list[int]] = {}
        self.sizes: list[dict[str, float]] = []

    def run(self, minutes: float) -> None:
        for node in self.cluster.nodes:
            self.cluster.start(node, self.program)
        self.cluster.until_level()
        self.load.start()
        began = measured = time.monotonic()
        time.sleep(5)  # real time: the clients begin
        self.measure()
        while time.monotonic() < began + 60 * minutes:
            self.event()
            if time.monotonic() > measured + 60:
                measured = time.monotonic()
                self.measure()
        self.load.stop()
        self.measure()
        judge(self.history)

    def event(self) -> None:
        leader = self.cluster.leader()
        node = random.choice([leader, random.choice([other for other in self.cluster.nodes if other is not leader])])
        act = random.choice([self.killed, self.hung, self.restarted, self.changed])
        began = time.monotonic()
        name = f"{'the leader' if node is leader else 'a follower'} {act(node)}"
        self.cluster.until_level()
        time.sleep(random.uniform(1, BETWEEN))  # real time: the load runs for so long
        self.load.check()
        work, pause = self.history.since(began, time.monotonic())
        count, longest = self.events.get(name, [0, 0])
        self.events[name] = [count + 1, max(longest, round(pause * 1000))]
        if not self.quiet:
            print(f"== {name}: {work} grants, none for {pause * 1000:.0f} ms", flush=True)

    def killed(self, node: Node) -> str:
        assert node.process is not None
        node.process.kill()
        node.process.wait()
        node.process = None
        self.away()
        self.begin(node)
        return "is killed"

    def hung(self, node: Node) -> str:
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)
        self.away()
        node.process.send_signal(signal.SIGCONT)
        return "hangs"

    def restarted(self, node: Node) -> str:
        node.stop()
        self.away()
        self.begin(node)
        return "restarts"

    def changed(self, node: Node) -> str:
        """One node at a time is newer, so that nothing is written that the others do not know."""
        node = self.newer or node
        back = node is self.newer
        self.newer = None if back else node
        node.stop()
        self.begin(node)
        return "goes back to this program" if back else "goes to the next program"

    def begin(self, node: Node) -> None:
        if node is self.newer:
            node.start(self.following, self.cluster.flags, **NEXT)
        else:
            node.start(self.program, self.cluster.flags)

    def away(self) -> None:
        time.sleep(random.uniform(0, AWAY))  # real time: the node is away for so long

    def measure(self) -> None:
        """The largest of the three nodes."""
        memory, descriptors, bytes_on_disk = [], [], []
        for node in self.cluster.nodes:
            assert node.process is not None
            process = pathlib.Path("/proc", str(node.process.pid))
            status = (process / "status").read_text().split()
            memory.append(int(status[status.index("VmRSS:") + 1]) / 1024)
            descriptors.append(len(os.listdir(process / "fd")))
            bytes_on_disk.append(sum(file.stat().st_size for file in node.data.rglob("*") if file.is_file()))
        self.sizes.append(
            {"memory_mib": max(memory), "descriptors": max(descriptors), "directory_mib": max(bytes_on_disk) / MIB}
        )

    def summary(self) -> dict[str, Any]:
        return {
            "grants": len(self.history.grants),
            "highest_token": max(grant.token for grant in self.history.grants),
            "repeated": dict(Client.repeated),
            "longest_request_ms": round(Client.longest * 1000),
            "events": {name: {"count": of[0], "longest_without_a_grant_ms": of[1]} for name, of in self.events.items()},
            "first": self.sizes[0],
            "most": {name: max(size[name] for size in self.sizes) for name in self.sizes[0]},
            "last": self.sizes[-1],
        }

    def report(self) -> None:
        summary = self.summary()
        if self.quiet:
            print(json.dumps(summary, indent=2))
            return
        for name, of in sorted(summary.pop("events").items()):
            print(f"{name}: {of['count']} times, no grant for {of['longest_without_a_grant_ms']} ms at the longest")
        for key, value in summary.items():
            shown = {name: round(number, 1) for name, number in value.items()} if isinstance(value, dict) else value
            print(f"{key.replace('_', ' ')}: {shown}")
        print("tokens rise, none was given twice, no grant was lost or early; each damage to this history was found")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="PROGRAM", help="the program of the three nodes")
    parser.add_argument("--next", metavar="PROGRAM", help="the one that a node changes to [default: the same]")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long [default: 60]")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the order of events")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    arguments = parser.parse_args()
    following = arguments.next or arguments.program
    for program in (arguments.program, following):
        if not os.access(program, os.X_OK):
            parser.error(f"{program} is no program; `cargo build --release -p palisade` makes one")
    random.seed(arguments.seed)
    print(f"seed {arguments.seed}", file=sys.stderr)
    try:
        self_test()
        with tempfile.TemporaryDirectory(prefix="palisade-soak-") as place:
            soak = Soak(arguments.program, following, pathlib.Path(place), arguments.json)
            try:
                soak.run(arguments.minutes)
                soak.report()
            except (Wrong, subprocess.TimeoutExpired):
                soak.cluster.tell()
                raise
            finally:
                soak.cluster.end()
        must(soak.events != {}, "nothing happened in this time; give it more minutes")
    except (Wrong, subprocess.TimeoutExpired) as wrong:
        print(f"soak: {wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
