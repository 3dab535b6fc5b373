"""A mixed fleet: holders in every language add to one number, and are stopped at random with SIGSTOP.

    PYTHON=target/clients/python/bin/python
    $PYTHON proof/fleet/fleet.py --palisade target/debug/palisade --adds 5000 --report fleet.json --markdown fleet.md
    $PYTHON proof/fleet/fleet.py --palisade target/debug/palisade --quick      what clients/check runs

`clients/check` builds what it needs. Each holder is two programs that are stopped together: the driver of the holder
suite, which has the lock, and an adder, which reads and writes the number. Where a language's adder does not know a
store, the adder is Python's, or Rust's. Three arms:

    unfenced    acquire, read, write
    textbook    acquire, read, check that the lease has not expired, write
    claim       the same, and every read and write passes the fence, which is claimed first

Every second or so a holder is stopped for longer than its lease lasts: half of the time the one that wrote last, else
any. With --quick it stops between its check and its write instead, until others have written.

An add is acknowledged when its write was answered. The loss is the difference between all acknowledged adds and the
number in the end. The claim arm must lose nothing; the others must lose something, or the run proves nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "clients" / "holder-suite")]

from servers import Servers
from suite.driver import Driver
from suite.servers import Palisade

ARMS = ("unfenced", "textbook", "claim")
STORES = ("postgres", "mysql", "mariadb", "redis", "s3", "dynamodb", "files", "http")
TTL_MS = 500
#: How long a holder is stopped, and what lies between two stops, in seconds.
STOPPED, BETWEEN = (0.6, 1.2), (0.02, 0.2)
#: How long a holder works between its read and its check, and between its check and its write, at most, in seconds.
THINKS, PREPARES = 0.001, 0.006
ADDS_PER_GRANT = 20
#: With --quick: how many zombies there must be, and how often a holder becomes one.
ZOMBIES, BECOMES_ONE = 3, 0.2


@dataclass(frozen=True)
class Language:
    """To add a language: its driver, and for each store that it has a fence for, its adder."""

    driver: str
    adder: str
    stores: frozenset[str]


TARGET, PYTHON = ROOT / "target", shlex.quote(sys.executable)
LANGUAGES = {
    "rust": Language(
        os.environ.get("PALISADE_DRIVER") or f"{TARGET}/debug/examples/holder-driver",
        os.environ.get("PALISADE_ADDER") or f"{TARGET}/debug/examples/adder",
        # Not Redis: its connection gives an answer up after half a second, so a stopped adder cannot report its
        # write.
        frozenset({"postgres", "mysql", "mariadb", "files"}),
    ),
    "python": Language(
        f"{PYTHON} {ROOT}/clients/python/tests/driver.py --threads",
        f"{PYTHON} {ROOT}/proof/fleet/adder.py",
        frozenset({"postgres", "redis", "s3", "dynamodb", "files", "http"}),
    ),
    "go": Language(f"{TARGET}/clients/go/driver", f"{TARGET}/clients/go/adder", frozenset({"postgres", "http"})),
    "typescript": Language(
        f"{TARGET}/clients/typescript/driver",
        f"{TARGET}/clients/typescript/adder",
        frozenset({"postgres", "redis", "s3", "http"}),
    ),
    "java": Language(f"{TARGET}/clients/java/driver", f"{TARGET}/clients/java/adder", frozenset({"postgres", "http"})),
}


class Adder:
    """The other half of a holder."""

    def __init__(self, language: Language, store: str, url: str, name: str, fenced: bool) -> None:
        command = [*shlex.split(language.adder), store, url, name, "fenced" if fenced else "unfenced"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise SystemExit(f"{self.process.args!r} ended at {line!r}")
        return answer

    def close(self) -> None:
        self.process.communicate(timeout=30)


@dataclass
class Run:
    """One arm at one store."""

    store: str
    arm: str
    quick: bool = False
    acknowledged: int = 0
    rejected: int = 0
    stops: int = 0
    left: int = 0
    seconds: float = 0.0
    by_language: dict[str, int] = field(default_factory=dict)
    wrote_last: str = ""
    guard: threading.Lock = field(default_factory=threading.Lock)
    zombie: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def lost(self) -> int:
        return self.acknowledged - self.left

    def count(self, language: str, answer: str) -> bool:
        with self.guard:
            if answer == "written":
                self.acknowledged += 1
                self.wrote_last = language
                self.by_language[language] = self.by_language.get(language, 0) + 1
                return True
            if not answer.startswith("rejected"):
                raise SystemExit(f"{language} answered {answer!r}")
            self.rejected += 1
            return False

    def result(self) -> dict[str, Any]:
        names = ("store", "arm", "acknowledged", "lost", "rejected", "stops", "by_language")
        return {**{name: getattr(self, name) for name in names}, "seconds": round(self.seconds, 1)}


class Holder:
    def __init__(self, language: str, driver: Driver, adder: Adder) -> None:
        self.language, self.driver, self.adder = language, driver, adder

    def signal(self, number: signal.Signals) -> None:
        for process in (self.driver.process, self.adder.process):
            os.killpg(process.pid, number)

    def work(self, run: Run, lock: str) -> None:
        chance = random.Random()
        while not run.over.is_set():
            wish = {"as": "g", "lock": lock, "ttl_ms": TTL_MS, "wait_ms": 2_000}
            granted = self.driver.call("acquire", timeout_s=60, **wish)
            if not granted["ok"]:
                continue
            for _ in range(ADDS_PER_GRANT):
                if run.over.is_set() or not self.add(run, granted["token"], chance):
                    break
            self.driver.call("release", timeout_s=60, grant="g")

    def add(self, run: Run, token: int, chance: random.Random) -> bool:
        """Whether the number was written."""
        found = self.adder.ask(f"read {token}")
        if found.startswith("rejected"):
            return run.count(self.language, found)
        time.sleep(chance.random() * THINKS)
        if run.arm != "unfenced" and not self.driver.call("check", timeout_s=60, grant="g")["ok"]:
            return False
        time.sleep(chance.random() * PREPARES)
        if run.quick and run.stops < ZOMBIES and chance.random() < BECOMES_ONE and run.zombie.acquire(blocking=False):
            # One at a time: it waits for the others.
            self.stop_until_others_wrote(run)
            run.zombie.release()
        return run.count(self.language, self.adder.ask(f"write {token} {int(found) + 1}"))

    def stop_until_others_wrote(self, run: Run) -> None:
        def others() -> int:
            return sum(number for name, number in run.by_language.items() if name != self.language)

        before = others()
        self.signal(signal.SIGSTOP)
        while others() < before + 3 and not run.over.wait(0.01):
            pass
        self.signal(signal.SIGCONT)
        run.stops += 1


def stop_at_random(run: Run, holders: list[Holder], seed: int) -> None:
    chance = random.Random(seed)
    while not run.over.wait(chance.uniform(*BETWEEN)):
        last = [holder for holder in holders if holder.language == run.wrote_last]
        holder = chance.choice(last if last and chance.random() < 0.5 else holders)
        holder.signal(signal.SIGSTOP)
        run.stops += 1
        run.over.wait(chance.uniform(*STOPPED))
        holder.signal(signal.SIGCONT)


class Fleet:
    def __init__(self, palisade: str, languages: list[str], seed: int) -> None:
        self.servers, self.palisade, self.seed = Servers(palisade), Palisade(palisade), seed
        self.drivers = {name: Driver(shlex.split(LANGUAGES[name].driver)) for name in languages}
        for driver in self.drivers.values():
            assert driver.call("connect", timeout_s=60, urls=[self.palisade.url], patience_ms=5_000)["ok"]

    def close(self) -> None:
        for driver in self.drivers.values():
            driver.end()
        self.palisade.stop()
        self.servers.close()

    def adder(self, language: str, store: str, name: str, arm: str) -> Adder:
        with_fence, without = self.servers.open(store, name) if name not in self.opened else self.opened[name]
        self.opened[name] = (with_fence, without)
        others = [LANGUAGES["python"], LANGUAGES["rust"]]
        own = next(one for one in [LANGUAGES[language], *others] if store in one.stores)
        return Adder(own, store, with_fence if arm == "claim" else without, name, arm == "claim")

    def run(self, store: str, arm: str, adds: int, seconds: float, quick: bool) -> Run:
        """Until there are so many acknowledged adds, or that time is over."""
        self.opened: dict[str, tuple[str, str]] = {}
        name, run = f"{store}-{arm}", Run(store, arm, quick)
        holders = [Holder(one, driver, self.adder(one, store, name, arm)) for one, driver in self.drivers.items()]
        threads = [threading.Thread(target=holder.work, args=(run, name)) for holder in holders]
        if not quick:
            threads.append(threading.Thread(target=stop_at_random, args=(run, holders, self.seed)))
        began = time.monotonic()
        for thread in threads:
            thread.start()
        while time.monotonic() < began + seconds and all(map(threading.Thread.is_alive, threads)):
            if run.acknowledged >= adds and (not quick or run.stops >= ZOMBIES):
                break
            time.sleep(0.05)
        run.over.set()
        for thread in threads:
            thread.join(120)
        run.seconds = time.monotonic() - began
        last = self.palisade.lock(name, "acquire", client_id="fleet", lease_duration_ms=60_000, wait_ms=30_000)
        run.left = int(holders[0].adder.ask(f"read {last['fencing_token']}"))
        for holder in holders:
            holder.adder.close()
        if not all(one in run.by_language for one in self.drivers):
            print(f"{name}: only {sorted(run.by_language)} wrote")
        return run


def verdict(results: list[dict[str, Any]], adds: int) -> list[str]:
    """The reasons why the fleet does not show the expected result."""
    wrong = []
    for one in results:
        what = f"{one['store']}, {one['arm']}"
        if one["arm"] == "claim" and one["lost"]:
            wrong.append(f"{what}: {one['lost']} acknowledged adds are lost")
        if one["arm"] == "claim" and one["acknowledged"] < adds:
            wrong.append(f"{what}: {one['acknowledged']} acknowledged adds, not {adds}")
        if one["arm"] != "claim" and one["lost"] <= 0:
            wrong.append(f"{what}: nothing was lost, so this run shows nothing")
    return wrong


def markdown(results: list[dict[str, Any]], head: str) -> str:
    lines = [
        head,
        "",
        "| store | arm | acknowledged | lost | rejected | stops | s | adds by language |",
        "|---|---|" + "---:|" * 5 + "---|",
    ]
    for one in results:
        share = f"{100 * one['lost'] / max(one['acknowledged'], 1):.1f} %" if one["lost"] else "0"
        who = ", ".join(f"{name} {number}" for name, number in sorted(one["by_language"].items()))
        lost = f"{one['lost']} ({share})" if one["lost"] else "0"
        row = (one["store"], one["arm"], one["acknowledged"], lost, one["rejected"], one["stops"], one["seconds"], who)
        lines.append("| " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    arguments = argparse.ArgumentParser(description="Holders in every language, stopped at random.")
    arguments.add_argument("--palisade", required=True)
    arguments.add_argument("--store", action="append", choices=STORES, help="only this one; may be repeated")
    arguments.add_argument("--arm", action="append", choices=ARMS, help="only this one; may be repeated")
    arguments.add_argument("--language", action="append", choices=LANGUAGES, help="only this one; may be repeated")
    arguments.add_argument("--adds", type=int, default=5_000, help="acknowledged adds in each claim arm (default 5000)")
    arguments.add_argument("--seconds", type=float, default=1_800, help="at most, for each claim arm (default 1800)")
    arguments.add_argument("--losing-seconds", type=float, default=30, help="for each of the other arms (default 30)")
    arguments.add_argument("--quick", action="store_true", help="PostgreSQL and the gateway, few adds, zombies made")
    arguments.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the stops; printed")
    arguments.add_argument("--report", help="write the results to this file, as JSON")
    arguments.add_argument("--markdown", help="write the results to this file, as a table")
    options = arguments.parse_args()
    if options.quick:
        options.store, options.adds, options.losing_seconds = options.store or ["postgres", "http"], 100, 120
        options.seconds = 120
    languages = options.language or list(LANGUAGES)
    missing = [name for name in languages if not os.path.exists(shlex.split(LANGUAGES[name].driver)[0])]
    if missing:
        raise SystemExit(f"{LANGUAGES[missing[0]].driver} is missing: run clients/check, which builds it")
    head = (
        f"Seed {options.seed}; {', '.join(languages)}; {platform.platform()}, {os.cpu_count()} cores; TTL {TTL_MS} ms."
    )
    print(head, flush=True)
    fleet, results = Fleet(os.path.realpath(options.palisade), languages, options.seed), []
    try:
        for store in options.store or STORES:
            for arm in options.arm or ARMS:
                limit = options.seconds if arm == "claim" else options.losing_seconds
                adds = options.adds if arm == "claim" else 0 if options.quick else 2**62
                run = fleet.run(store, arm, adds, limit, options.quick)
                results.append(run.result())
                print(json.dumps(results[-1]), flush=True)
    finally:
        fleet.close()
    wrong = verdict(results, options.adds)
    if options.report:
        whole = {"head": head, "wrong": wrong, "results": results}
        pathlib.Path(options.report).write_text(json.dumps(whole, indent=1) + "\n")
    if options.markdown:
        pathlib.Path(options.markdown).write_text(markdown(results, head))
    print("\n".join(wrong) or "as it must be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
