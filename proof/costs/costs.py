"""The cost of a client: an acquire with its release, a renewal and a check, in each language and beside others.

    costs.py --palisade target/debug/palisade --quick                 what clients/check runs
    PALISADE_DRIVER=target/release/examples/holder-driver \\
        costs.py --palisade target/release/palisade --peers PYTHON --markdown costs.md

The drivers of the holder suite do the work. Rounds of all clients take turns, and the medians are compared with the
Rust client's of the same run. CPU time is the client's own, as the system counts it.

A check must send nothing: a relay between client and server counts what passes. With --quick this is all that is
asserted, and that the rest works.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Optional

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("clients/holder-suite", "proof/fleet")]

from fleet import LANGUAGES, PYTHON
from servers import free_port
from suite.clock import now_ms
from suite.driver import Driver
from suite.relay import FORTH, Relay
from suite.servers import Palisade

TICK_MS = 1_000 / os.sysconf("SC_CLK_TCK")
#: How long the leases last that are renewed.
TTL_MS = 900


@dataclass
class Cost:
    """Medians over the rounds."""

    pair_us: list[float] = field(default_factory=list)
    pair_cpu_us: list[float] = field(default_factory=list)
    renewal_cpu_us: list[float] = field(default_factory=list)
    check_ns: list[float] = field(default_factory=list)

    def median(self, name: str) -> Optional[float]:
        found = getattr(self, name)
        return statistics.median(found) if found else None


def cpu_ms(process: int) -> float:
    with open(f"/proc/{process}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_MS


def ask(driver: Driver, do: str, **command: Any) -> dict[str, Any]:
    answer = driver.call(do, timeout_s=300, **command)
    if not answer["ok"]:
        raise SystemExit(f"{driver.hello['client']}: {do} failed: {answer}")
    return answer


def check_sends_nothing(name: str, command: str, palisade: Palisade, count: int) -> float:
    """The time of one check, in nanoseconds."""
    relay, driver = Relay((palisade.host, palisade.port)), Driver(shlex.split(command))
    try:
        ask(driver, "connect", urls=[relay.url], patience_ms=5_000)
        ask(driver, "acquire", lock=f"check-{name}", ttl_ms=3_600_000, wait_ms=0, **{"as": "g"})
        before = len(relay.times[FORTH])
        took = ask(driver, "checks", grant="g", count=count)["took_ms"]
        # This request uses the same connection, or a later one: packets of the checks would have
        # passed before it.
        after = len(relay.times[FORTH])
        ask(driver, "show", lock="other")
        with_one = len(relay.times[FORTH])
        if after != before:
            raise SystemExit(f"{name}: {count} checks sent {after - before} packets")
        if with_one == after:
            raise SystemExit(f"{name}: the relay did not count a request, so it shows nothing")
        ask(driver, "release", grant="g")
        return 1e6 * took / count
    finally:
        driver.end()
        relay.close()


def pairs(driver: Driver, process: int, count: int, cost: Cost) -> None:
    cpu = cpu_ms(process)
    took = ask(driver, "pairs", lock="pairs", count=count)["took_ms"]
    cost.pair_us.append(1e3 * took / count)
    cost.pair_cpu_us.append(1e3 * (cpu_ms(process) - cpu) / count)


def renewed(palisade: Palisade) -> int:
    """How many renewals the server has acknowledged."""
    with urllib.request.urlopen(f"{palisade.url}/metrics", timeout=30) as answer:
        found = re.search(r"^palisade_renewed_total (\d+)", answer.read().decode(), re.MULTILINE)
    assert found, "the server has no palisade_renewed_total"
    return int(found[1])


def renewals(driver: Driver, palisade: Palisade, options: argparse.Namespace, cost: Cost) -> None:
    for number in range(options.leases):
        ask(driver, "acquire", lock=f"renewal-{number}", ttl_ms=TTL_MS, wait_ms=5_000, **{"as": f"r{number}"})
    process = driver.process.pid
    cpu, before, began = cpu_ms(process), renewed(palisade), now_ms()
    while now_ms() < began + 1e3 * options.seconds:
        time.sleep(0.1)
    count = renewed(palisade) - before
    if count == 0:
        raise SystemExit(f"{driver.hello['client']}: no lease was renewed")
    cost.renewal_cpu_us.append(1e3 * (cpu_ms(process) - cpu) / count)
    for number in range(options.leases):
        ask(driver, "release", grant=f"r{number}")


class Peers:
    """Redis and etcd, which sync as Palisade does, and their clients: those in Python, and others of Redis."""

    def __init__(self, python: str, redis_clients: list[str]) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="palisade-costs-")
        redis, etcd, between = free_port(), free_port(), free_port()
        where = ["--port", str(redis), "--bind", "127.0.0.1", "--dir", self.folder.name, "--save", ""]
        etcd_urls = [f"http://127.0.0.1:{port}" for port in (etcd, between)]
        etcd_at = ["--listen-client-urls", etcd_urls[0], "--advertise-client-urls", etcd_urls[0]]
        etcd_at += ["--listen-peer-urls", etcd_urls[1], "--initial-advertise-peer-urls", etcd_urls[1]]
        commands = [
            ["redis-server", *where, "--appendonly", "yes", "--appendfsync", "always"],
            [
                "etcd",
                "--data-dir",
                f"{self.folder.name}/etcd",
                *etcd_at,
                "--initial-cluster",
                f"default={etcd_urls[1]}",
            ],
        ]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.servers = [subprocess.Popen(command, **quiet) for command in commands]
        program = str(pathlib.Path(__file__).with_name("peer.py"))
        os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
        self.drivers = {
            "redis-py, Lock": Driver([python, program, "redis", str(redis)]),
            "etcd3 (PyPI), Lock": Driver([python, program, "etcd", str(etcd)]),
        }
        for named in redis_clients:
            name, command = named.split("=", 1)
            self.drivers[name] = Driver([*shlex.split(command), str(redis)])

    def close(self) -> None:
        for driver in self.drivers.values():
            driver.end()
        for server in self.servers:
            server.terminate()
            server.wait()
        self.folder.cleanup()


def measure(options: argparse.Namespace, commands: dict[str, str], palisade: Palisade) -> dict[str, Cost]:
    costs = {name: Cost() for name in commands}
    for name, command in commands.items():
        costs[name].check_ns.append(check_sends_nothing(name, command, palisade, options.checks))
        print(f"{name}: {options.checks} checks sent nothing", flush=True)
    with contextlib.ExitStack() as stack:
        drivers = {name: Driver(shlex.split(command)) for name, command in commands.items()}
        for driver in drivers.values():
            stack.callback(driver.end)
            ask(driver, "connect", urls=[palisade.url], patience_ms=5_000)
        peers: dict[str, Driver] = {}
        if options.peers:
            others = Peers(options.peers, options.redis_client)
            stack.callback(others.close)
            peers = others.drivers
            costs |= {name: Cost() for name in peers}
        # The first round warms up, and is not counted.
        for number in range(options.rounds + 1):
            for name, driver in {**drivers, **peers}.items():
                pairs(driver, driver.process.pid, options.pairs, costs[name] if number else Cost())
        for _ in range(options.rounds):
            for name, driver in drivers.items():
                renewals(driver, palisade, options, costs[name])
            for name, driver in peers.items():
                if not driver.hello.get("renews"):
                    continue
                cpu = cpu_ms(driver.process.pid)
                ask(driver, "renewals", lock="renewal", count=options.pairs)
                costs[name].renewal_cpu_us.append(1e3 * (cpu_ms(driver.process.pid) - cpu) / options.pairs)
    return costs


def markdown(costs: dict[str, Cost], head: str) -> str:
    """Rates as ratios to the Rust client's; a smaller number is cheaper."""
    names = ("pair_us", "pair_cpu_us", "renewal_cpu_us", "check_ns")
    base = {name: costs["rust"].median(name) if "rust" in costs else None for name in names}
    lines = [
        head,
        "",
        "| client | pair, µs | × Rust | CPU a pair, µs | × Rust | CPU a renewal, µs | × Rust | check, ns |",
    ]
    lines.append("|---|" + "---:|" * 7)

    def cells(cost: Cost, name: str) -> list[str]:
        value, by = cost.median(name), base[name]
        ratio = f"{value / by:.1f}" if value is not None and by else "–"
        return ["–" if value is None else f"{value:.0f}", ratio]

    for who, cost in costs.items():
        row = [cell for name in names for cell in cells(cost, name)][:-1]
        lines.append("| " + " | ".join([who, *row]) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    arguments = argparse.ArgumentParser(description="What a client costs.")
    arguments.add_argument("--palisade", required=True)
    arguments.add_argument("--language", action="append", choices=LANGUAGES, help="only this one; may be repeated")
    arguments.add_argument("--peers", help="an interpreter that has redis and etcd3, for a comparison with them")
    arguments.add_argument(
        "--redis-client",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="with --peers: one of peers/, which gets the port of that Redis; may be repeated",
    )
    arguments.add_argument("--quick", action="store_true", help="few of each: asserts that a check sends nothing")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--pairs", type=int, default=1_000, help="in each round (default 1000)")
    arguments.add_argument("--checks", type=int, default=100_000)
    arguments.add_argument("--leases", type=int, default=100, help="that are renewed at the same time (default 100)")
    arguments.add_argument("--seconds", type=float, default=6, help="of renewals in each round (default 6)")
    arguments.add_argument("--markdown", help="write the table to this file")
    options = arguments.parse_args()
    if options.redis_client and not options.peers:
        arguments.error("--redis-client needs --peers, which starts the Redis")
    if any("=" not in named for named in options.redis_client):
        arguments.error("--redis-client is NAME=COMMAND")
    if options.quick:
        options.rounds, options.pairs, options.checks, options.leases, options.seconds = 1, 10, 1_000, 5, 0.6
    commands = {name: LANGUAGES[name].driver for name in options.language or LANGUAGES}
    if "python" in commands:
        commands["python, asyncio"] = f"{PYTHON} {ROOT}/clients/python/tests/driver.py"
    head = f"{platform.platform()}, {os.cpu_count()} cores; {options.rounds} rounds of {options.pairs} pairs."
    palisade = Palisade(os.path.realpath(options.palisade))
    try:
        costs = measure(options, commands, palisade)
    finally:
        palisade.stop()
    table = markdown(costs, head)
    print(table)
    if options.markdown:
        pathlib.Path(options.markdown).write_text(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
