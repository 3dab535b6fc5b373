#!/usr/bin/env python3
"""Checks the Kubernetes manifests, and runs the commands of their containers.

    check_kubernetes.py PROGRAM [--without STEP]

Called by `cargo xtask package kubernetes`, as root. There is no Kubernetes here: this program takes the schemas of its
interface from PyPI's kubernetes-validate, and is kubectl, scheduler, kubelet and name service itself, as far as the manifests
need them. Each container is a process in a network of its own, started as the manifest says, on a copy of this machine that
is gone when this ends. The commands at the head of each manifest run as they are written there.

`--without allowed-host` forgets the service's name, and `--without unready-names` gives a node a name only once it is ready.
Both must make this fail.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shlex
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import Any, Callable, Iterator, Optional

import kubernetes_validate
import yaml

from check_package import ROOT, SOON, Machine, Wrong, enter, must, step

#: The oldest one in which volumes for a single pod are stable.
INTERFACE = "1.29"
SERVICE = "palisade.palisade.svc"
#: For what the operator types on his own machine.
HOME = "/home/operator"
#: A volume as a file system makes it, for the group of the pod.
VOLUME_MODE = 0o2775

ACCESS = """
[auth]
[[auth.principals]]
name = "operator"
[[auth.rules]]
principal = "operator"
prefix = ""
verbs = ["hold", "observe", "admin"]
"""

#: Acts as `kubectl` for the commands of the manifests: makes a file for each key of a secret or config map.
KUBECTL = r"""
kubectl() {
  [ "$1" = -n ] && shift 2
  case "$1 $2" in
    "create namespace") ;;
    "get --raw") echo '{"keys":[]}' ;;
    "create secret" | "create configmap")
      [ "$2" = secret ] && { [ "$3" = generic ] || return 1; shift; }
      name=$3; shift 3
      for from; do
        from=${from#--from-file=}
        install -D -m 640 -g 65532 "${from#*=}" "/objects/$name/$(basename "${from%%=*}")"
      done ;;
    *) echo "kubectl $*: unknown here" >&2; return 1 ;;
  esac
}
"""


class Manifest:
    def __init__(self, name: str) -> None:
        self.text = (ROOT / "deploy/kubernetes" / name).read_text()
        self.documents: list[dict[str, Any]] = list(yaml.safe_load_all(self.text))
        for document in self.documents:
            try:
                kubernetes_validate.validate(document, INTERFACE, strict=True)
            except kubernetes_validate.ValidationError as error:
                where = ".".join(map(str, error.path))
                raise Wrong(f"{name}, {document.get('kind')}: {where}: {error.message}") from None
        (self.set,) = (one for one in self.documents if one["kind"] == "StatefulSet")
        self.pod: dict[str, Any] = self.set["spec"]["template"]["spec"]
        (self.container,) = self.pod["containers"]
        self.belongs_together()

    def belongs_together(self) -> None:
        """Checks rules that no schema has, and that Kubernetes would notice too late or never."""
        labels = self.set["spec"]["template"]["metadata"]["labels"]
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        must(self.set["spec"]["selector"]["matchLabels"].items() <= labels.items(), "the set does not select its pods")
        for service in self.services():
            must(service["spec"]["selector"].items() <= labels.items(), f"{service['metadata']} selects no pod")
            for port in service["spec"]["ports"]:
                must(ports.get(port["targetPort"]) == port["port"], f"the port {port} leads nowhere")
        must(self.set["spec"]["serviceName"] in self.names(), "the pods have no names")
        offered = {volume["name"] for volume in self.pod["volumes"]}
        offered |= {claim["metadata"]["name"] for claim in self.set["spec"]["volumeClaimTemplates"]}
        mounted = {mount["name"] for mount in self.container["volumeMounts"]}
        must(offered == mounted, f"volumes {offered}, mounts {mounted}")
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            must(self.container[probe]["httpGet"]["port"] in ports, f"{probe} asks an unknown port")

    def services(self) -> list[dict[str, Any]]:
        return [document for document in self.documents if document["kind"] == "Service"]

    def names(self) -> list[str]:
        return [service["metadata"]["name"] for service in self.services()]

    def commands(self) -> str:
        """Those of its head, as they are typed."""
        return "\n".join(re.findall(r"^#   (.+)$", self.text, re.MULTILINE))


class Pod:
    """One container, in a network of its own. It gets another address each time it starts."""

    addresses: Iterator[int] = iter(range(2, 250))

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster, self.name = cluster, f"palisade-{number}"
        self.network = f"pod{number}"
        self.volume = cluster.machine.path(f"volumes/{number}")
        self.volume.mkdir(parents=True)
        # A disk is made with this folder, and given to the pod's group.
        (self.volume / "lost+found").mkdir(mode=0o700)
        os.chown(self.volume, 0, cluster.manifest.pod["securityContext"]["fsGroup"])
        self.volume.chmod(VOLUME_MODE)
        self.log = cluster.machine.path(f"tmp/{self.name}.log")
        self.address: Optional[str] = None
        self.process: Optional[subprocess.Popen[bytes]] = None

    def start(self) -> None:
        number = next(self.addresses)
        self.address = f"10.77.0.{number}"
        for command in (
            f"ip netns add {self.network}",
            f"ip link add {self.network} master pods up type veth peer name eth0 netns {self.network}",
            f"ip -n {self.network} addr add {self.address}/24 dev eth0",
            f"ip -n {self.network} link set eth0 up",
            f"ip -n {self.network} link set lo up",
        ):
            subprocess.run(command.split(), check=True)
        user = self.cluster.manifest.pod["securityContext"]
        root = self.cluster.machine.root
        mounts = [f"mount --bind {shlex.quote(os.fspath(source))} {root}{at}" for source, at in self.mounts()]
        words = [word.replace("$(POD_NAME)", self.name) for word in self.cluster.words()]
        start = [
            *("exec", "chroot", f"--userspec={user['runAsUser']}:{user['runAsGroup']}"),
            *(f"--groups={user['fsGroup']}", os.fspath(root), "env", "-i", "/usr/bin/palisade"),
        ]
        script = "\n".join([*mounts, f"{shlex.join(start)} {shlex.join(words)}"])
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.network, "unshare", "--mount", "sh", "-euc", script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def mounts(self) -> Iterator[tuple[pathlib.Path, str]]:
        objects = self.cluster.machine.path("objects")
        kinds = {volume["name"]: volume for volume in self.cluster.manifest.pod["volumes"]}
        for mount in self.cluster.manifest.container["volumeMounts"]:
            volume, at = kinds.get(mount["name"]), mount["mountPath"]
            self.cluster.machine.path(at.lstrip("/")).mkdir(parents=True, exist_ok=True)
            if volume is None:
                yield self.volume, at
            else:
                name = volume["secret"]["secretName"] if "secret" in volume else volume["configMap"]["name"]
                yield objects / name, at

    def probe(self, kind: str) -> bool:
        """Asks as the kubelet does: by the address, without a check of the certificate."""
        get = self.cluster.manifest.container[kind]["httpGet"]
        (port,) = (
            port["containerPort"] for port in self.cluster.manifest.container["ports"] if port["name"] == get["port"]
        )
        url = f"{get['scheme'].lower()}://{self.address}:{port}{get['path']}"
        anyone = ssl.create_default_context()
        anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
        try:
            with urllib.request.urlopen(url, timeout=2, context=anyone) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def end(self, how: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        grace = self.cluster.manifest.pod["terminationGracePeriodSeconds"]
        ended = self.process.wait(grace)
        must(how == signal.SIGKILL or ended == 0, f"{self.name} ended with {ended}: {self.said()}")
        # The kernel takes its time to remove the content of a network.
        for command in (f"ip link delete {self.network}", f"ip netns delete {self.network}"):
            subprocess.run(command.split(), check=True)
        self.address = None

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


class Cluster:
    """The pods of one manifest and their names."""

    def __init__(self, machine: Machine, manifest: Manifest, without: Optional[str]) -> None:
        self.machine, self.manifest, self.without = machine, manifest, without
        self.pods = [Pod(self, number) for number in range(manifest.set["spec"]["replicas"])]
        #: Those that were ready when the names were published last.
        self.serving: list[Pod] = []

    def words(self) -> list[str]:
        words: list[str] = self.manifest.container["args"]
        if self.without == "allowed-host":
            words = [word for word in words if not word.startswith("--allow-host=")]
        return words

    def publish(self) -> None:
        """The names, as the services give them: the node's own, and that of all that are ready."""
        rows = ["127.0.0.1 localhost"]
        self.serving = [pod for pod in self.pods if pod.address and pod.probe("readinessProbe")]
        for service in self.manifest.services():
            early = service["spec"].get("publishNotReadyAddresses", False) and self.without != "unready-names"
            for pod in (pod for pod in self.pods if pod.address):
                if early or pod in self.serving:
                    of_its_own = f"{pod.name}." if service["spec"].get("clusterIP") == "None" else ""
                    rows.append(f"{pod.address} {of_its_own}{service['metadata']['name']}.palisade.svc")
        self.machine.path("etc/hosts").write_text("\n".join(rows) + "\n")

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + SOON
        while True:
            self.publish()
            for pod in self.pods:
                lives = pod.address is None or (pod.process is not None and pod.process.poll() is None)
                must(lives, f"{pod.name} has ended: {pod.said()}")
            if holds():
                return
            logs = "\n".join(f"{pod.name}: {pod.said()}" for pod in self.pods)
            must(time.monotonic() < end, f"{what}: not within {SOON:.0f} s\n{logs}")
            time.sleep(0.1)  # real time: asked again, up to a deadline

    def ready(self) -> None:
        self.until("all are ready", lambda: self.serving == [pod for pod in self.pods if pod.address])

    def operator(self, *command: str, fails: bool = False) -> str:
        environment = [f"PALISADE_AUTHORITY=https://{SERVICE}:7420", f"PALISADE_CA_FILE={HOME}/palisade-ca/ca.pem"]
        shown = f"--token-file={HOME}/operator.token"
        return self.machine.run("env", *environment, "palisade", *command, shown, fails=fails)

    def token(self, lock: str) -> int:
        said = self.operator("acquire", lock, "--ttl", "1h", "--json")
        return int(re.search(r'"fencing_token":\s*(\d+)', said)[1])  # type: ignore[index]

    def leader(self) -> Pod:
        url = json.loads(self.operator("cluster", "status", "--json"))["leader_url"]
        (leader,) = (pod for pod in self.pods if f"//{pod.name}." in url)
        return leader


def network() -> None:
    """One in which the pods and the operator reach each other."""
    for command in (
        "mount -t tmpfs tmpfs /run",
        "ip link add pods type bridge",
        "ip addr add 10.77.0.1/24 dev pods",
        "ip link set pods up",
    ):
        subprocess.run(command.split(), check=True)


def prepared(machine: Machine, manifest: Manifest) -> None:
    """Types the commands in the head of the manifest."""
    for folder in ("objects", HOME.lstrip("/")):
        machine.path(folder).mkdir(parents=True)
    machine.path(f"{HOME[1:]}/access.toml").write_text(ACCESS)
    token = "palisade auth token new operator --access access.toml > operator.token"
    script = f"set -eu\ncd {HOME}\n{KUBECTL}\n{token}\n{manifest.commands()}"
    machine.run("bash", "-c", script)


def one(machine: Machine, without: Optional[str]) -> None:
    manifest = Manifest("one.yaml")
    step("one node: the commands of its head")
    prepared(machine, manifest)
    cluster = Cluster(machine, manifest, without)
    (pod,) = cluster.pods
    step("one node: start")
    pod.start()
    cluster.ready()
    must(pod.probe("startupProbe") and pod.probe("livenessProbe"), "a ready server does not live")
    first = cluster.token("orders")
    step("one node: another pod, with its volume")
    pod.end(signal.SIGTERM)
    pod.start()
    cluster.ready()
    must("orders is held" in cluster.operator("show", "orders"), "the lock is gone")
    must(cluster.token("reports") > first, "tokens do not rise")
    pod.end(signal.SIGTERM)


def three(machine: Machine, without: Optional[str]) -> None:
    manifest = Manifest("three.yaml")
    step("three nodes: the commands of their head")
    prepared(machine, manifest)
    cluster = Cluster(machine, manifest, without)
    step("three nodes: the first one is alone")
    alone, *others = cluster.pods
    alone.start()
    cluster.until("a node without the others lives", lambda: alone.probe("startupProbe"))
    must(alone.probe("livenessProbe") and not alone.probe("readinessProbe"), "it grants alone")
    step("three nodes: all of them")
    for pod in others:
        pod.start()
    cluster.ready()
    first = cluster.token("orders")
    step("three nodes: the leader's machine is gone; its pod starts elsewhere")
    leader = cluster.leader()
    leader.end(signal.SIGKILL)
    cluster.ready()
    second = cluster.token("reports")
    must(second > first, "tokens do not rise")
    leader.start()
    cluster.ready()
    cluster.until("all are connected", lambda: "NOT CONNECTED" not in cluster.operator("cluster", "status"))
    step("three nodes: a rolling update, the last one first")
    for pod in reversed(cluster.pods):
        pod.end(signal.SIGTERM)
        cluster.ready()
        pod.start()
        cluster.ready()
    must("orders is held" in cluster.operator("show", "orders"), "the lock is gone")
    must(cluster.token("sales") > second, "tokens do not rise")
    for pod in cluster.pods:
        pod.end(signal.SIGTERM)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--without", choices=["allowed-host", "unready-names"])
    arguments = parser.parse_args()
    if not enter("Kubernetes manifests"):
        return 0
    network()
    try:
        for story in (one, three):
            with tempfile.TemporaryDirectory(prefix="palisade-kubernetes-") as place:
                try:
                    machine = Machine(pathlib.Path(place))
                    machine.path("usr/bin/palisade").write_bytes(arguments.program.read_bytes())
                    machine.path("usr/bin/palisade").chmod(0o755)
                    machine.path("etc/resolv.conf").write_text("")
                    story(machine, arguments.without)
                finally:
                    subprocess.run(["umount", "--recursive", "--lazy", place], check=False)
    except Wrong as wrong:
        print(f"check_kubernetes: {wrong}", file=sys.stderr)
        return 1
    step("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
