"""Runs the recipes of docs/use/shells.md, as the page has them, with the real programs.

    recipes.py --palisade PATH [RECIPE …]

Each recipe is run in a network and a /srv of its own, so that the page's addresses and folders are free. Replaced are
the folder of programs in the unit and the cron line, the lock server's address in the deploys, and what is backed up
while it is frozen. Needed, besides what `clients/check` needs: the Debian packages restic, borgbackup, rsync and
systemd, and the registry of Maven for Flyway.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Optional

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("clients/holder-suite", "proof/fleet", "clients/howto")]

import psycopg
import yaml

from run import Block, read
from servers import Servers

PAGE = ROOT / "docs" / "use" / "shells.md"
FLYWAY = ROOT / "clients" / "howto" / "flyway"
SRV = pathlib.Path("/srv")
AUTHORITY = "http://127.0.0.1:7420"
#: A recipe is this short.
MOST_LINES = 9
#: Only a failing recipe waits so long.
SOON = 30


def until(what: str, holds: Callable[[], object]) -> None:
    end = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < end, f"timed out waiting for {what}"
        time.sleep(0.02)  # real time: other processes need it to do what is waited for


class Machine:
    """A machine with a lock server; every process that it started is gone after `close`."""

    def __init__(self, palisade: str) -> None:
        self.palisade = palisade
        self.started: list[subprocess.Popen[str]] = []
        for name in ("bin", "home", "data"):
            (SRV / name).mkdir()
        (SRV / "bin" / "palisade").symlink_to(palisade)
        (SRV / "password").write_text("a secret\n")
        (SRV / "data" / "orders").write_text("33 orders\n")
        self.env = {
            "HOME": "/srv/home",
            "LANG": "C.UTF-8",
            "PATH": f"/srv/bin:{os.environ['PATH']}",
            "PALISADE_AUTHORITY": AUTHORITY,
        }
        self.start(["palisade", "serve", "--data", "/srv/locks"])
        until("the lock server", lambda: self.run("palisade ls", check=False).returncode == 0)

    def close(self) -> None:
        for process in reversed(self.started):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self, command: list[str], env: Optional[dict[str, str]] = None) -> subprocess.Popen[str]:
        # Output goes to a file: processes that outlive the command would keep a pipe open.
        with open(SRV / f"said.{len(self.started)}", "w+") as said:
            process = subprocess.Popen(
                command,
                env=env or self.env,
                cwd=SRV,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                executable=found(command[0], env or self.env),
            )
        self.started.append(process)
        return process

    def said(self, process: subprocess.Popen[str]) -> str:
        return (SRV / f"said.{self.started.index(process)}").read_text()

    def run(self, text: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a block."""
        done = subprocess.run(
            ["bash", "-e", "-c", text],
            check=False,
            env=self.env,
            cwd=SRV,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert not check or done.returncode == 0, f"{text}ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done

    def program(self, path: str, text: str) -> None:
        pathlib.Path(path).write_text(f"#!/bin/sh\n{text}\n")
        os.chmod(path, 0o755)

    def show(self, lock: str) -> dict[str, Any]:
        return json.loads(self.run(f"palisade show {lock} --json").stdout)

    def waits_for_its_lock(self, block: Block, is_undone: Callable[[], bool]) -> None:
        """Runs a block while somebody else has the lock that it names: nothing is done before that ends."""
        named = re.search(r"palisade run (\S+)", block.text)
        assert named, block.text
        lock = named[1]
        holder = self.start(["palisade", "run", lock, "--", "sleep", "1000"])
        until("the holder", lambda: self.show(lock)["holder"])
        run = self.start(["bash", "-e", "-c", block.text])
        until("the recipe to wait", lambda: self.show(lock)["waiters"] == 1)
        assert is_undone(), "control: nothing is done without the lock"
        holder.send_signal(signal.SIGTERM)
        assert run.wait(SOON) == 0, self.said(run)
        assert not self.show(lock)["holder"], "the lock is free afterwards"


def found(program: str, env: dict[str, str]) -> str:
    """The file of a program on the path."""
    for folder in env["PATH"].split(":"):
        if os.access(f"{folder}/{program}", os.X_OK) or program.startswith("/"):
            return program if program.startswith("/") else f"{folder}/{program}"
    raise AssertionError(f"{program} is missing: see the head of clients/howto/recipes.py")


def only(blocks: list[Block], language: str) -> Block:
    found = [block for block in blocks if block.language == language]
    assert len(found) == 1, f"{len(found)} blocks of {language}"
    return found[0]


def systemd(blocks: list[Block], machine: Machine) -> None:
    unit = only(blocks, "ini").text.replace("/usr/bin/palisade", machine.palisade).replace("/usr/bin", "/srv/bin")
    machine.program("/srv/bin/worker", "echo $PALISADE_FENCING_TOKEN >> /srv/workers; exec sleep 1000")
    (SRV / "orders.service").write_text(unit)
    judged = machine.run("systemd-analyze verify /srv/orders.service")
    assert not judged.stdout + judged.stderr, judged
    wrong = unit.replace("KillMode=mixed", "KillMode=some")
    (SRV / "wrong.service").write_text(wrong)
    judged = machine.run("systemd-analyze verify /srv/wrong.service", check=False)
    assert "kill mode" in judged.stderr, "control: a mistake is found"
    # As a service manager starts and stops it, on two machines.
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    line, env = shlex.split(settings["ExecStart"]), dict([settings["Environment"].split("=", 1)])
    workers = SRV / "workers"
    first = machine.start(line, {**env, "PATH": "/usr/bin:/bin"})
    until("a worker", lambda: workers.exists() and workers.read_text() == "1\n")
    second = machine.start(line, {**env, "PATH": "/usr/bin:/bin"})
    until("the second machine to wait", lambda: machine.show("orders")["waiters"] == 1)
    assert workers.read_text() == "1\n"
    first.send_signal(signal.SIGTERM)
    first.wait(int(settings["TimeoutStopSec"]))
    until("the worker of the second machine", lambda: workers.read_text() == "1\n2\n")
    # The whole control group, as KillMode=mixed does when the time is up.
    os.killpg(second.pid, signal.SIGKILL)
    second.wait()


def cron(blocks: list[Block], machine: Machine) -> None:
    lines = only(blocks, "crontab").text.splitlines()
    env = dict(line.split("=", 1) for line in lines if re.match(r"[A-Z_]+=", line))
    (line,) = (line for line in lines if not re.match(r"[A-Z_]+=", line))
    command = line.split(None, 5)[5]
    assert re.fullmatch(r"(\S+\s+){5}", line[: -len(command)]), line
    machine.program("/srv/bin/report", "echo ran >> /srv/reports")
    command = command.replace("/usr/bin/report", "/srv/bin/report")
    reports = SRV / "reports"

    def tick(command: str) -> None:
        """Two machines at once, and one whose clock is late."""
        path = {"PATH": "/srv/bin:/usr/bin:/bin", **env}
        runs = [machine.start(["/bin/sh", "-c", command], path) for _ in range(2)]
        for run in runs:
            assert run.wait(SOON) == 0, machine.said(run)
        runs.append(machine.start(["/bin/sh", "-c", command], path))
        assert runs[-1].wait(SOON) == 0
        assert [machine.said(run) for run in runs] == [""] * 3, "nothing is printed"

    tick(command)
    assert reports.read_text() == "ran\n"
    tick(command.split(" -- ")[1])
    assert reports.read_text() == "ran\n" * 4, "control: each machine runs it without the lock"


def restic(blocks: list[Block], machine: Machine) -> None:
    block = only(blocks, "sh")
    settings = block.text.splitlines()[0] + "\n"
    machine.run(settings + "restic init")

    def snapshots() -> int:
        return len(json.loads(machine.run(settings + "restic snapshots --json").stdout))

    machine.waits_for_its_lock(block, lambda: snapshots() == 0)
    assert snapshots() == 1
    machine.run(settings + "restic restore latest --target /srv/again")
    assert (SRV / "again/srv/data/orders").read_text() == "33 orders\n"


def borg(blocks: list[Block], machine: Machine) -> None:
    block = only(blocks, "sh")
    settings = block.text.splitlines()[0] + "\n"
    machine.run(settings + "borg init --encryption repokey")

    def archives() -> list[str]:
        return machine.run(settings + "borg list --short").stdout.split()

    machine.waits_for_its_lock(block, lambda: not archives())
    (archive,) = archives()
    machine.run(settings + f"mkdir /srv/again && cd /srv/again && borg extract ::{archive}")
    assert (SRV / "again/srv/data/orders").read_text() == "33 orders\n"


def rsync(blocks: list[Block], machine: Machine) -> None:
    block = only(blocks, "sh")
    machine.waits_for_its_lock(block, lambda: not (SRV / "site").exists())
    assert (SRV / "site/orders").read_text() == "33 orders\n"
    (SRV / "data/orders").write_text("34 orders\n")
    before = os.readlink("/srv/site")
    machine.run(block.text)
    assert (SRV / "site/orders").read_text() == "34 orders\n"
    assert os.readlink("/srv/site") != before and pathlib.Path(before, "orders").read_text() == "33 orders\n"


def _deploys(machine: Machine, script: str, settings: dict[str, str]) -> None:
    """A runner: two pipelines at once; the first is cancelled."""
    machine.program("/srv/deploy.sh", "echo $PALISADE_FENCING_TOKEN >> /srv/deploys; [ -e /srv/go ] || exec sleep 1000")
    assert settings["PALISADE_AUTHORITY"].startswith("https://"), "a token is sent"
    env = {**settings, **machine.env}
    deploys = SRV / "deploys"
    first = machine.start(["bash", "-e", "-c", script], env)
    until("a deploy", lambda: deploys.exists() and deploys.read_text() == "1\n")
    second = machine.start(["bash", "-e", "-c", script], env)
    until("the second pipeline to wait", lambda: machine.show("deploy-prod")["waiters"] == 1)
    assert deploys.read_text() == "1\n"
    (SRV / "go").touch()
    os.killpg(first.pid, signal.SIGINT)
    assert first.wait(SOON) != 0, "it was cancelled"
    assert second.wait(SOON) == 0, machine.said(second)
    assert deploys.read_text() == "1\n2\n"


def github(blocks: list[Block], machine: Machine) -> None:
    workflow = yaml.safe_load(only(blocks, "yaml").text)
    (step,) = workflow["jobs"]["deploy"]["steps"]
    assert step["env"]["PALISADE_TOKEN"] == "${{ secrets.PALISADE_TOKEN }}"
    _deploys(machine, step["run"], {"PALISADE_AUTHORITY": step["env"]["PALISADE_AUTHORITY"]})


def gitlab(blocks: list[Block], machine: Machine) -> None:
    job = yaml.safe_load(only(blocks, "yaml").text)["deploy"]
    _deploys(machine, "\n".join(job["script"]), job["variables"])


def flyway(blocks: list[Block], machine: Machine) -> None:
    servers = Servers(machine.palisade)
    try:
        servers.start_postgres()
        _flyway(only(blocks, "sql").text, only(blocks, "sh").text, machine, servers.postgres)
    finally:
        servers.close()


def _flyway(callback: str, command: str, machine: Machine, url: str) -> None:
    machine.run(f"palisade fence install postgres {url}")
    migrations = SRV / "migrations"
    migrations.mkdir()
    machine.env |= {
        "FLYWAY_URL": url.replace("postgres://postgres@", "jdbc:postgresql://"),
        "FLYWAY_USER": "postgres",
        "FLYWAY_LOCATIONS": "filesystem:/srv/migrations",
    }
    machine.program(
        "/srv/bin/flyway",
        f"exec java -XX:TieredStopAtLevel=1 -cp '{libraries()}/*' org.flywaydb.commandline.Main \"$@\"",
    )
    with psycopg.connect(url, autocommit=True) as database:

        def tables() -> set[str]:
            found = database.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            return {name for (name,) in found} & {"orders", "items", "late"}

        def claim(token: int) -> None:
            database.execute("SELECT palisade_claim('schema', %s)", [token])

        (migrations / "beforeEachMigrate.sql").write_text(callback)
        (migrations / "V1__orders.sql").write_text("CREATE TABLE orders (total int);")
        first = {"FLYWAY_BASELINE_ON_MIGRATE": "true", "FLYWAY_BASELINE_VERSION": "0"}
        machine.env |= first
        machine.run(command)
        machine.env = {name: value for name, value in machine.env.items() if name not in first}
        assert tables() == {"orders"}
        # A migration that fails takes its claim back, so that the older token is still good: both are one transaction.
        (migrations / "V2__items.sql").write_text("CREATE TABLE items (id int); SELECT 1 / 0;")
        failed = machine.run(command, check=False)
        assert failed.returncode != 0 and "division by zero" in failed.stdout + failed.stderr, failed
        assert tables() == {"orders"}
        claim(1)
        # A later holder has claimed.
        claim(1_000)
        (migrations / "V2__items.sql").write_text("CREATE TABLE items (id int);")
        late = machine.run(command, check=False)
        assert late.returncode != 0 and "PF001" in late.stdout + late.stderr, late
        assert tables() == {"orders"}
        # Control: without the callback the late migration is applied.
        (migrations / "beforeEachMigrate.sql").unlink()
        machine.run(command)
        assert tables() == {"orders", "items"}


def libraries() -> pathlib.Path:
    """Flyway's jars, which must be those of libraries.sha256."""
    folder = ROOT / "target" / "clients" / "flyway"
    expected = dict(line.split()[::-1] for line in (FLYWAY / "libraries.sha256").read_text().splitlines())

    def present() -> dict[str, str]:
        jars = map(pathlib.Path, glob.glob(f"{folder}/*.jar"))
        return {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars}

    assert present() == expected, f"{folder} is not what libraries.sha256 names: remove it, and try again"
    return folder


def fetch_flyway() -> None:
    """Before the network is left."""
    folder = ROOT / "target" / "clients" / "flyway"
    if not folder.exists():
        copy = ["mvn", "-q", "-B", "--file", FLYWAY / "pom.xml", "dependency:copy-dependencies"]
        subprocess.run([*copy, f"-DoutputDirectory={folder}"], check=True)


def freeze(blocks: list[Block], machine: Machine) -> None:
    """The lock server stops for longer than the lease lasts, in the middle of a backup."""
    settings = "export RESTIC_REPOSITORY=/srv/restic RESTIC_PASSWORD_FILE=/srv/password\n"
    machine.run(settings + "restic init")
    command = only(blocks, "sh").text
    # A lease of the usual length would only take time, and restic reads a pipe until it is closed.
    changed = command.replace("run backup ", "run backup --ttl 4s ").replace("/srv/data", "--stdin < /srv/pipe")
    assert "--ttl 4s" in changed and "/srv/pipe" in changed
    server = machine.started[0]

    def status(text: str, word: str) -> int:
        """How the backup ends, if the server is away until it has said this."""
        os.mkfifo("/srv/pipe")
        run = machine.start(["bash", "-e", "-c", settings + text])
        with open("/srv/pipe", "w") as pipe:
            os.unlink("/srv/pipe")
            until("the lock", lambda: machine.show("backup")["holder"])
            server.send_signal(signal.SIGSTOP)
            until(word, lambda: word in machine.said(run))
            server.send_signal(signal.SIGCONT)
            if word == FROZEN:
                until("it to go on", lambda: "the command goes on" in machine.said(run))
                pipe.write("33 orders\n")
        return run.wait(SOON)

    assert status(changed, FROZEN) == 0
    control = status(changed.replace("--on-deadline freeze ", ""), "is lost")
    assert control == 123, "control: without the option it is killed"
    found = json.loads(machine.run(settings + "restic snapshots --json").stdout)
    assert len(found) == 1, found


def wrong(blocks: list[Block], machine: Machine) -> None:
    """Each row of the page's table: what is printed, and the exit status."""
    command = only(blocks, "sh").text
    assert "palisade run backup --wait 10m -- restic backup /srv/data; " in command
    table = PAGE.read_text().split("| printed on standard error |")[1]
    rows = {row.split(" | ")[0].strip("| "): row for row in table.splitlines() if row.startswith("| ")}
    guarded = "http://127.0.0.1:7421"
    access = SRV / "access.toml"
    own = 'rules = [{ principal = "ci", prefix = "own/", verbs = ["hold"] }]'
    access.write_text(f'[auth]\nprincipals = [{{ name = "ci" }}]\n{own}\n')
    token = json.loads(machine.run(f"palisade --json auth token new ci --access {access}").stdout)["token"]
    machine.start(
        ["palisade", "serve", "--listen", "127.0.0.1:7421", "--data", "/srv/guarded", "--access", str(access)]
    )
    until("the guarded server", lambda: "who is" in machine.run(f"palisade ls --authority {guarded}", False).stderr)

    def sees(row: str, run: str, **more: str) -> None:
        said = machine.run(" ".join(f"export {name}={value};" for name, value in more.items()) + run, check=False)
        words, status = rows.pop(row).split(" | ")[1:3]
        assert any(word in said.stderr for word in re.findall(r"`([^-`][^`]+)`", words)), said
        assert str(said.returncode) in re.findall(r"\d+", status), said

    def run(more: str = "--wait 1s", job: str = "true") -> str:
        return f"palisade run backup {more} -- {job}"

    sees("no server answers", run(), PALISADE_AUTHORITY="http://127.0.0.1:1")
    for given in ("", "pal_wrong_x"):
        known = rows["no token, or a wrong one"]
        sees("no token, or a wrong one", run(), PALISADE_AUTHORITY=guarded, PALISADE_TOKEN=given)
        rows["no token, or a wrong one"] = known
    sees("the token has no right to the lock", run(), PALISADE_AUTHORITY=guarded, PALISADE_TOKEN=token)
    holder = machine.start(["palisade", "run", "backup", "--ttl", "1s", "--", "sleep", "1000"])
    until("the holder", lambda: machine.show("backup")["holder"])
    sees("another holder has the lock", run())
    number = machine.show("backup")["holder"]["fencing_token"]
    machine.run(f"palisade break backup --token {number} --reason test")
    assert holder.wait(SOON) == 123 and "is lost" in rows["the lock is lost while the command runs"]
    assert "is lost" in machine.said(holder)
    sees("`--timeout` has passed", run("--timeout 100ms", "sleep 1000"))
    last = machine.start(["palisade", "run", "backup", "--", "sh", "-c", "touch /srv/began; cat /srv/pipe; exit 7"])
    os.mkfifo("/srv/pipe")
    until("the command", (SRV / "began").exists)
    machine.started[0].kill()
    machine.started[0].wait()
    (SRV / "pipe").write_text("go on\n")
    assert last.wait(SOON) == 7 and "could not be released" in machine.said(last)
    assert "could not be released" in rows["the lock server is away at the end"]


FROZEN = "The command is frozen"

RECIPES: dict[str, Callable[[list[Block], Machine], None]] = {
    "systemd": systemd,
    "cron": cron,
    "restic": restic,
    "borg": borg,
    "rsync": rsync,
    "GitHub Actions": github,
    "GitLab CI": gitlab,
    "Flyway": flyway,
    "Freeze instead of kill": freeze,
    "What you see when something is wrong": wrong,
}


def one(name: str, blocks: list[Block], palisade: str) -> None:
    """Runs a recipe on an empty /srv."""
    for block in blocks:
        lines = sum(1 for line in block.text.splitlines() if line.strip())
        assert lines <= MOST_LINES, f"{name}: {lines} lines are no recipe"
    subprocess.run(["mount", "-t", "tmpfs", "none", SRV], check=True)
    machine = Machine(palisade)
    try:
        RECIPES[name](blocks, machine)
    finally:
        machine.close()
        subprocess.run(["umount", "--lazy", SRV], check=True)


def main() -> int:
    arguments = argparse.ArgumentParser(description="Runs the recipes of docs/use/shells.md.")
    arguments.add_argument("recipes", nargs="*", help="headings of the page; all without it")
    arguments.add_argument("--palisade", required=True)
    arguments.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if not options.alone:
        if not options.recipes or "Flyway" in options.recipes:
            fetch_flyway()
        # A network without anybody, and mounts of its own.
        os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv, "--alone"])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    blocks = read(PAGE)
    sections = {block.section for block in blocks}
    assert sections == set(RECIPES), f"the page has {sections}"
    for name in options.recipes or RECIPES:
        began = time.monotonic()
        one(name, [block for block in blocks if block.section == name], os.path.realpath(options.palisade))
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
