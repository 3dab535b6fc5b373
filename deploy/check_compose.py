#!/usr/bin/env python3
"""Runs the commands of the compose files.

    check_compose.py PROGRAM [--without STEP]

Called by `cargo xtask package kubernetes`, as root. There is no Docker here: this program gives each service of
deploy/compose a network of its own, the names of the others, its volume and its secret, as compose does. It starts the
command with the environment and the user of deploy/Dockerfile, on a copy of this machine that is gone when this ends, and
runs the health check of the service.

`--without names` takes the options `--advertise` and `--allow-host` away, and must make this fail.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any

import yaml

from check_kubernetes import network
from check_package import ROOT, SOON, Machine, Wrong, enter, must, step

DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
USER = re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)[-1]
ENVIRONMENT = re.findall(r"^ENV (.+)$", DOCKERFILE, re.MULTILINE)
SECRET = "0123456789abcdef0123456789abcdef\n"


class Service:
    def __init__(self, machine: Machine, name: str, said: dict[str, Any], number: int, without: str) -> None:
        self.machine, self.name, self.said = machine, name, said
        self.network, self.address = f"c{number}", f"10.77.0.{number + 2}"
        ((self.volume, self.at),) = (volume.split(":") for volume in said["volumes"])
        place = machine.path(f"volumes/{self.volume}")
        place.mkdir(parents=True)
        user, group = map(int, USER.split(":"))
        os.chown(place, user, group)
        place.chmod(0o700)
        self.words = [
            word for word in said["command"] if not (without and word.startswith(("--advertise", "--allow-host")))
        ]
        for command in (
            f"ip netns add {self.network}",
            f"ip link add {self.network} master pods up type veth peer name eth0 netns {self.network}",
            f"ip -n {self.network} addr add {self.address}/24 dev eth0",
            f"ip -n {self.network} link set eth0 up",
            f"ip -n {self.network} link set lo up",
        ):
            subprocess.run(command.split(), check=True)
        self.log = machine.path(f"tmp/{name}.log")
        self.start()

    def inside(self, *words: str) -> list[str]:
        """Runs a command of the service, as its user."""
        root = self.machine.root
        self.machine.path(self.at.lstrip("/")).mkdir(parents=True, exist_ok=True)
        mount = (
            f"mount --bind {shlex.quote(os.fspath(root / 'volumes' / self.volume))} {shlex.quote(f'{root}{self.at}')}"
        )
        start = [
            "exec",
            "chroot",
            f"--userspec={USER}",
            "--groups=",
            os.fspath(root),
            "env",
            "-i",
            *ENVIRONMENT,
            *words,
        ]
        script = f"{mount}\n{shlex.join(start)}"
        return ["ip", "netns", "exec", self.network, "unshare", "--mount", "sh", "-euc", script]

    def start(self) -> None:
        with self.log.open("a") as log:
            command = self.inside("/usr/bin/palisade", *self.words)
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.inside(*words), capture_output=True, text=True, timeout=SOON, check=False)

    def is_healthy(self) -> bool:
        must(self.process.poll() is None, f"{self.name} has ended: {self.log.read_text()}")
        kind, *words = self.said["healthcheck"]["test"]
        assert kind == "CMD"
        return self.run(*words).returncode == 0

    def answers(self) -> bool:
        """Whether it answers a neighbour that knows it by its name."""
        request = urllib.request.Request(f"http://{self.address}:7420/v1/status", headers={"Host": f"{self.name}:7420"})
        try:
            with urllib.request.urlopen(request, timeout=SOON) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError:
            return False

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        ended = self.process.wait(SOON)
        must(how == signal.SIGKILL or ended == 0, f"{self.name} ended with {ended}: {self.log.read_text()}")


def token(service: Service, lock: str, authority: str) -> int:
    """The token of a grant that a neighbour of the service asks for, by name."""
    asked = service.run("/usr/bin/palisade", "acquire", lock, "--ttl", "1h", "--json", "--authority", authority)
    must(asked.returncode == 0, f"{service.name}, {lock}: {asked.stderr}{service.log.read_text()}")
    return int(re.findall(r'"fencing_token":\s*(\d+)', asked.stdout)[0])


def healthy(services: list[Service]) -> None:
    end = time.monotonic() + SOON
    while not all(service.is_healthy() for service in services):
        logs = "\n".join(f"{service.name}: {service.log.read_text()}" for service in services)
        must(time.monotonic() < end, f"not healthy within {SOON:.0f} s\n{logs}")
        time.sleep(0.1)  # real time: asked again, up to a deadline


def check(name: str, machine: Machine, without: str) -> None:
    file = yaml.safe_load((ROOT / "deploy/compose" / name).read_text())
    services, volumes = file["services"], set(file["volumes"])
    must(
        {v.split(":")[0] for one in services.values() for v in one["volumes"]} == volumes, f"{name}: volumes {volumes}"
    )
    secrets = machine.path("run/secrets")
    secrets.mkdir(parents=True)
    for secret in file.get("secrets", {}):
        (secrets / secret).write_text(SECRET)
    rows = [f"10.77.0.{number + 2} {service}" for number, service in enumerate(services)]
    machine.path("etc/hosts").write_text("\n".join(["127.0.0.1 localhost", *rows]) + "\n")
    step(f"{name}: start")
    ones = [Service(machine, service, services[service], number, without) for number, service in enumerate(services)]
    healthy(ones)
    authority = ",".join(f"http://{one.name}:7420" for one in ones)
    first = token(ones[-1], "orders", authority)
    step(f"{name}: kill one, and start it again")
    ones[0].end(signal.SIGKILL)
    if len(ones) > 1:
        healthy(ones[1:])
        second = token(ones[1], "reports", authority)
        must(second > first, "tokens do not rise")
    ones[0].start()
    healthy(ones)
    must("orders is held" in ones[0].run("/usr/bin/palisade", "show", "orders").stdout, "the lock is gone")
    # Each by its own name alone, as a neighbour asks it: over gRPC, and over HTTP.
    for number, one in enumerate(ones):
        must(token(ones[-1], f"own-{number}", f"http://{one.name}:7420") > first, "tokens do not rise")
        must(one.answers(), f"{one.name} refuses its own name over HTTP")
    for one in ones:
        one.end(signal.SIGTERM)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--without", choices=["names"], default="")
    arguments = parser.parse_args()
    if not enter("compose files"):
        return 0
    network()
    try:
        for number, name in enumerate(("one.yaml", "three.yaml")):
            with tempfile.TemporaryDirectory(prefix="palisade-compose-") as place:
                try:
                    machine = Machine(pathlib.Path(place))
                    machine.path("usr/bin/palisade").write_bytes(arguments.program.read_bytes())
                    machine.path("usr/bin/palisade").chmod(0o755)
                    machine.path("etc/resolv.conf").write_text("")
                    check(name, machine, arguments.without)
                finally:
                    subprocess.run(["umount", "--recursive", "--lazy", place], check=False)
                    if number == 0:
                        subprocess.run(["ip", "netns", "delete", "c0"], check=False)
    except Wrong as wrong:
        print(f"check_compose: {wrong}", file=sys.stderr)
        return 1
    step("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
