#!/usr/bin/env python3
"""Installs, starts, upgrades, removes and purges the Debian package on a copy of this machine.

    check_package.py OLD.deb NEW.deb [--without STEP]

Called by `cargo xtask package test`, as root. The copy is an overlay in memory with its own network and its own process
ids: dpkg, adduser and the maintainer scripts are the real ones, and everything is gone when this ends. This program is
systemd's part: it starts what the installed unit says, as the unit's user, and reads the messages of sd_notify.

`--without rising-tokens` empties the data directory between the upgrade's two servers; `--without ownership` sets its
owner again, as a careless postinst does; `--without fence` shows the newcomer a resource that checks nothing. Each must
make this fail.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import queue
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Iterator, Optional

#: For one answer of a process, on a loaded machine.
SOON = 30.0
DATA = "var/lib/palisade"
ROOT = pathlib.Path(__file__).resolve().parents[1]
#: In words, for a slow reader of a technical text.
FIVE_MINUTES = 1000
INSIDE = "PALISADE_INSIDE"


class Wrong(Exception):
    """The package breaks a requirement."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise Wrong(what)


class Machine:
    """A copy of this machine, in which everything may be changed."""

    def __init__(self, place: pathlib.Path) -> None:
        self.root = place / "root"
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", place], check=True)
        layers = {name: place / name for name in ("changes", "work")}
        for folder in (*layers.values(), self.root):
            folder.mkdir()
        options = f"lowerdir=/,upperdir={layers['changes']},workdir={layers['work']}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, self.root], check=True)
        subprocess.run(["mount", "-t", "proc", "proc", self.root / "proc"], check=True)
        subprocess.run(["mount", "--rbind", "/dev", self.root / "dev"], check=True)
        # A service manager's folder would make the scripts talk to it.
        for name in ("run", "tmp"):
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", self.root / name], check=True)
        (self.root / "tmp").chmod(0o1777)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

    def run(self, *command: str, fails: bool = False) -> str:
        """Returns the output of the command, which must succeed, or fail with `fails`."""
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
        }
        ended = subprocess.run(
            ["chroot", self.root, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        must((ended.returncode != 0) == fails, f"{shlex.join(command)} ended with {ended.returncode}: {ended.stdout}")
        return ended.stdout

    def copy(self, file: str) -> str:
        """Brings a file in; its name there."""
        name = f"/tmp/{pathlib.Path(file).name}"
        (self.root / name[1:]).write_bytes(pathlib.Path(file).read_bytes())
        return name

    def path(self, name: str) -> pathlib.Path:
        return self.root / name


class Unit:
    """The installed unit, as systemd reads it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        text = machine.path("usr/lib/systemd/system/palisade.service").read_text()
        self.lines = dict(re.findall(r"^(\w+)=(.+)$", text, re.MULTILINE))

    def environment(self) -> dict[str, str]:
        file = self.machine.path(self.lines["EnvironmentFile"].lstrip("-").lstrip("/"))
        lines = file.read_text().splitlines() if file.exists() else []
        return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))

    @contextlib.contextmanager
    def started(self) -> Iterator[Service]:
        service = Service(self)
        try:
            service.wait_for("READY=1")
            yield service
        finally:
            service.end()


class Service:
    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        machine, lines = unit.machine, unit.lines
        name = machine.path("run/notify")
        name.unlink(missing_ok=True)
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(os.fspath(name))
        name.chmod(0o666)
        # Read at once, as systemd does: a full socket would block the server.
        self.messages: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self.listen, daemon=True).start()
        variables = unit.environment()
        words = [variables.get(word[1:], "") if word.startswith("$") else word for word in lines["ExecStart"].split()]
        # The thread is asked twice in this time.
        variables |= {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "200000"}
        user = f"--userspec={lines['User']}:{lines['Group']}"
        umask = int(lines["UMask"], 8)
        self.log = machine.path("tmp/log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    "chroot",
                    user,
                    machine.root,
                    "env",
                    "-i",
                    *(f"{key}={value}" for key, value in variables.items()),
                    *filter(None, words),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=umask,
            )

    def listen(self) -> None:
        while True:
            for message in self.manager.recv(4096).decode().splitlines():
                self.messages.put(message)

    def wait_for(self, wanted: str, times: int = 1) -> None:
        """Until the message came so often from now on."""
        while not self.messages.empty():
            if self.messages.get() == wanted and wanted != "WATCHDOG=1":
                return
        until = time.monotonic() + SOON
        seen: list[str] = []
        while seen.count(wanted) < times:
            try:
                seen.append(self.messages.get(timeout=max(until - time.monotonic(), 0.01)))
            except queue.Empty:
                raise Wrong(f"no {wanted}, only {seen}; it says: {self.log.read_text()}") from None

    def says(self, wanted: str) -> None:
        until = time.monotonic() + SOON
        while wanted not in self.log.read_text():
            must(time.monotonic() < until, f"the log has no “{wanted}”: {self.log.read_text()}")
            time.sleep(0.05)  # real time: asked again, up to a deadline

    def reload(self) -> None:
        command = self.unit.lines["ExecReload"].replace("$MAINPID", str(self.process.pid))
        subprocess.run(command.split(), check=True)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.wait_for("STOPPING=1")
        must(self.process.wait(SOON) == 0, f"it ended with {self.process.returncode}: {self.log.read_text()}")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def token(machine: Machine, lock: str) -> int:
    said = machine.run("palisade", "acquire", lock, "--ttl", "1h", "--json")
    found = re.search(r'"fencing_token":\s*(\d+)', said)
    if found is None:
        raise Wrong(f"no token of {lock}: {said}")
    return int(found[1])


def install(machine: Machine, package: str) -> None:
    step("install")
    machine.run("dpkg", "-i", machine.copy(package))
    data = machine.path(DATA)
    user = int(machine.run("id", "-u", "palisade"))
    must(0 < user < 1000, f"palisade is no system user: {user}")
    must(data.stat().st_mode & 0o777 == 0o700 and data.stat().st_uid == user, "/var/lib/palisade is open to others")
    must(
        "/etc/palisade/palisade.toml" in machine.run("dpkg-query", "-W", "-f", "${Conffiles}", "palisade"),
        "no conffile",
    )
    must(machine.path("usr/share/man/man1/palisade.1.gz").exists(), "no man page")
    must("complete" in machine.path("usr/share/bash-completion/completions/palisade").read_text(), "no completions")
    must(b"\0.symtab\0" not in machine.path("usr/bin/palisade").read_bytes(), "the program is not stripped")
    machine.run("dpkg", "--verify", "palisade")
    machine.run("palisade", "config", "check", "--config", "/etc/palisade/palisade.toml")


def check(machine: Machine, old: str, new: str, without: Optional[str]) -> None:
    install(machine, old)
    data = machine.path(DATA)
    step("start, watchdog, reload, stop")
    unit = Unit(machine)
    with unit.started() as service:
        service.wait_for("WATCHDOG=1", times=3)
        first = token(machine, "orders")
        # A setting that the administrator changes. The reload says so, and dpkg keeps it.
        settings = machine.path("etc/palisade/palisade.toml")
        settings.write_text(settings.read_text().replace("[serve]", '[serve]\nmin-ttl = "2s"', 1))
        service.reload()
        service.says("settings have changed")
        service.wait_for("WATCHDOG=1")

        step("upgrade while it runs")
        machine.run("dpkg", "-i", "--force-confold", machine.copy(new))
        must('min-ttl = "2s"' in settings.read_text(), "the upgrade took the administrator's settings")
        must(token(machine, "while-upgraded") > first, "the old server does not serve during the upgrade")
        service.stop()

    if without == "rising-tokens":
        for entry in data.iterdir():
            entry.unlink()
    if without == "ownership":
        machine.run("sh", "-c", f"cp -a /{DATA} /{DATA}.new && rm -r /{DATA} && mv /{DATA}.new /{DATA}")
    with Unit(machine).started() as service:
        must("orders is held" in machine.run("palisade", "show", "orders"), "the upgrade lost a lock")
        must(token(machine, "after-upgrade") > first + 1, "tokens do not rise over the upgrade")
        step("a newcomer: the first refused zombie")
        newcomer(machine, fenced=without != "fence")
        service.stop()

    step("remove")
    machine.run("dpkg", "--remove", "palisade")
    must(not machine.path("usr/bin/palisade").exists(), "the program is left")
    must(any(data.iterdir()) and machine.path("etc/palisade/palisade.toml").exists(), "removing took the data")
    step("install again over what is left")
    machine.run("dpkg", "-i", "--force-confold", machine.copy(new))
    with Unit(machine).started() as service:
        must("orders is held" in machine.run("palisade", "show", "orders"), "removing lost a lock")
        service.stop()

    step("purge")
    machine.run("dpkg", "--purge", "palisade")
    left = [name for name in (DATA, "etc/palisade", "etc/default/palisade") if machine.path(name).exists()]
    must(not left, f"purging left {left}")
    must("palisade" not in machine.run("dpkg-query", "-W", "-f", "${Package} ${Status}\n"), "dpkg still knows it")


def newcomer(machine: Machine, fenced: bool) -> None:
    """One command after the installation, and in a clone the one that the README shows first after the server's."""
    readme = (ROOT / "README.md").read_text()
    arguments = re.search(r"^cargo run --release -- (demo.*)$", readme, re.MULTILINE)
    if arguments is None:
        raise Wrong("the README does not show the demo")
    words = len(readme[: arguments.start()].split())
    must(words <= FIVE_MINUTES, f"{words} words before the first command are more than five minutes of reading")
    command = ("palisade", *shlex.split(arguments[1], comments=True), "--out", "/tmp/demo")
    command += () if fenced else ("--act", "unfenced")
    said = machine.run(*command)
    print(f"{words} words of the README, git clone, cd, cargo run --release -- {arguments[1]}; or with the package:")
    print(f"$ {shlex.join(command)}")
    print("\n".join(line for line in said.splitlines() if "rejected" in line))
    must(re.search(r"A writes .*, rejected: 1 < 2", said) is not None, f"no zombie was refused: {said}")


def step(name: str) -> None:
    print(f"== {name} ({time.monotonic() - BEGAN:.0f} s)", flush=True)


BEGAN = time.monotonic()

#: A short form of `Machine`.
PROBE = """
mount -t tmpfs tmpfs /mnt
mkdir /mnt/changes /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/changes,workdir=/mnt/work /mnt/root
mount -t proc proc /mnt/root/proc
"""


def enter(what: str) -> bool:
    """Starts this program again where processes, mounts and the network end with it; there, returns true."""
    if INSIDE in os.environ:
        return True
    spaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    tried = subprocess.run(["unshare", *spaces, "sh", "-euc", PROBE], stderr=subprocess.PIPE, text=True, check=False)
    if tried.returncode == 0:
        os.execvpe("unshare", ["unshare", *spaces, sys.executable, *sys.argv], os.environ | {INSIDE: "1"})
    # A container may allow neither, and neither may a user who is not root.
    print(f"NOT RUN: the test of the {what} needs root, namespaces and overlays: {tried.stderr.strip()}")
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--without", choices=["rising-tokens", "ownership", "fence"])
    arguments = parser.parse_args()
    if not enter("package"):
        return 0
    try:
        with tempfile.TemporaryDirectory(prefix="palisade-package-") as place:
            try:
                check(Machine(pathlib.Path(place)), arguments.old, arguments.new, arguments.without)
            finally:
                subprocess.run(["umount", "--recursive", "--lazy", place], check=False)
    except Wrong as wrong:
        print(f"check_package: {wrong}", file=sys.stderr)
        return 1
    step("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
