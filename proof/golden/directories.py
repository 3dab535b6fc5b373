"""Directories of a single server, a restored one, a cluster and a store, and a backup, each with what is in it.

Each kind of lock, option, command and end is in them at least once; the tests `golden::kinds` compare them with
the kinds that the program knows.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import io
import json
import os
import pathlib
import signal
import subprocess
import tarfile
import tempfile
import threading
import time
from typing import Any, Callable, Optional

Answer = dict[str, Any]

DAY = 86_400_000
# What a later start changes; the rest of an answer is owed.
VOLATILE = {"remaining_ms", "delayed_ms", "extensions", "waited_ms", "waiters", "revision", "queue", "trace_id"}
# The peers' addresses are in the log. Nobody else chooses ports at these.
HOSTS = ("127.54.1.1", "127.54.1.2", "127.54.1.3")
FOURTH = "127.54.1.4"
CLIENTS, PEERS = 7420, 7421
# The fields of all acquires.
OPTIONS: set[str] = {"wait_ms"}


class Server:
    """A `palisade serve` or `store` that is ended with SIGKILL."""

    def __init__(
        self, program: str, data: pathlib.Path, *flags: str, listen: str = "127.0.0.1:0", kind: str = "serve"
    ) -> None:
        command = [program, kind, "--json", "--listen", listen, "--data", str(data), *flags]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.address = listen
        if listen.endswith(":0"):
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(f"{command} ended: {self.said()}")
            self.address = json.loads(line)["url"].removeprefix("http://")

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read().decode()[-3000:]

    def ask(self, method: str, path: str, body: Optional[Answer] = None, token: str = "", **headers: str) -> Answer:
        host, port = self.address.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            read = answer.read()
            return {**(json.loads(read) if read.startswith(b"{") else {"text": read.decode()}), "status": answer.status}
        finally:
            connection.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Authority:
    """Requests to a server, and what it answered: the facts that later versions owe."""

    def __init__(self, server: Server, token: str = "") -> None:
        self.server, self.token = server, token
        self.grants: dict[str, Answer] = {}
        self.ids = 0
        self.waits: list[threading.Thread] = []

    def post(self, lock: str, verb: str, body: Answer, token: str = "") -> Answer:
        return self.server.ask("POST", f"/v1/locks/{lock}/{verb}", body, token or self.token)

    def request_id(self) -> str:
        self.ids += 1
        return f"{self.ids:032x}"

    def acquire(self, lock: str, client: str = "worker-a", name: str = "", token: str = "", **more: Any) -> Answer:
        """A grant, which is held from now on."""
        body = {"client_id": client, "request_id": self.request_id(), **more}
        if "lock_token" not in more:
            body.setdefault("lease_duration_ms", DAY)
        OPTIONS.update(body)
        answer = self.post(lock, "acquire", body, token)
        assert answer["status"] == 200, (lock, answer)
        grant = {
            "lock": lock,
            "lock_token": answer["lock_token"],
            "number": answer.get("grant_id", answer["fencing_token"]),
        }
        self.grants[name or lock] = {**grant, "is": "held", **({"bearer": token} if token else {})}
        return answer

    def end(self, name: str, code: str) -> Answer:
        grant = self.grants[name]
        grant["is"] = code
        return grant

    def of(self, name: str) -> Answer:
        grant = self.grants[name]
        return {"lock_token": grant["lock_token"], "fencing_token": grant["number"]}

    def release(self, name: str) -> None:
        grant = self.end(name, "not_held")
        self.done(grant["lock"], "release", **self.of(name))

    def done(self, lock: str, verb: str, **body: Any) -> Answer:
        answer = self.post(lock, verb, body)
        assert answer["status"] == 200, (lock, verb, answer)
        return answer

    def wait(self, lock: str, client: str, **more: Any) -> Answer:
        """A request that waits until the server ends."""
        before = self.waiters(lock)
        body = {"client_id": client, "request_id": self.request_id(), "wait_ms": DAY, **more}
        if "lock_token" not in more:
            body.setdefault("lease_duration_ms", DAY)

        def ask() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                answer.update(self.post(lock, "acquire", body))

        answer: Answer = {}
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        self.waits.append(thread)
        until(lambda: answer or self.waiters(lock) > before)
        assert not answer, (body, answer)
        return body

    def show(self, lock: str) -> Answer:
        return self.server.ask("GET", f"/v1/locks/{lock}", token=self.token)

    def waiters(self, lock: str) -> int:
        return int(self.show(lock)["waiters"])

    def facts(self) -> Answer:
        """What is held, and what was: as answers say it, without what a restart changes."""
        names = sorted({grant["lock"] for grant in self.grants.values()} | {"set-b", "set-c"})
        status = self.server.ask("GET", "/v1/status", token=self.token)
        for grant in self.grants.values():
            shown = {"lock_token": grant["lock_token"], "fencing_token": grant["number"]}
            answer = self.post(grant["lock"], "renew", shown, grant.get("bearer", ""))
            assert grant["is"] == (answer["error"]["code"] if "error" in answer else "held"), (grant, answer)
        history = self.server.ask("GET", "/v1/history?limit=1000", token=self.token).get("grants", [])
        return {
            "bearer": self.token,
            "authority": status["authority"],
            "next_token": status["next_token"],
            "locks": {name: lasting(self.show(name)) for name in names},
            "grants": [dict(grant) for grant in self.grants.values()],
            "history": [lasting(row) for row in history],
        }


def lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: lasting(item) for key, item in value.items() if key not in VOLATILE | {"status"}}
    return [lasting(item) for item in value] if isinstance(value, list) else value


def until(holds: Callable[[], Any], limit_s: float = 60.0) -> Any:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if found := holds():
                return found
        time.sleep(0.02)
    raise TimeoutError


def pack(data: pathlib.Path, to: pathlib.Path) -> None:
    """The files of a directory, without the next segment: it is nothing but zeros, and every start removes it."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(data.iterdir()):
            if path.name != "next.seg":
                entry = tarfile.TarInfo(path.name)
                entry.size, entry.mode = path.stat().st_size, 0o600
                tar.addfile(entry, io.BytesIO(path.read_bytes()))
    to.write_bytes(gzip.compress(raw.getvalue(), 9, mtime=0))


def run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr}")
    return done.stdout


def fill(at: Authority, other: str) -> None:
    """Each kind of lock, option, end and request that waits."""
    hold(at, other)
    end(at)
    queue(at)


def hold(at: Authority, other: str) -> None:
    # Exclusive, with everything a request may say; the second and third grant are under the first one's lease.
    first = at.acquire("plain", metadata="nightly run")
    at.acquire("under", lock_token=first["lock_token"])
    at.acquire("under-ttl", lock_token=first["lock_token"], lease_duration_ms=DAY)
    at.done("plain", "renew", **at.of("plain"))
    at.done("plain", "renew", **at.of("plain"), lease_duration_ms=DAY)
    at.acquire("by-another", "worker-b", token=other)
    # Readers, a reader that may become the writer, and one that became it.
    at.acquire("read", "reader-1", "reader-1", mode="shared")
    at.acquire("read", "reader-2", "reader-2", mode="shared", metadata="second")
    at.acquire("update", "reader-3", "reader-3", mode="update")
    at.acquire("update", "reader-4", "reader-4", mode="shared")
    upgraded = at.acquire("upgraded", "reader-5", "update", mode="update")
    at.acquire("upgraded", "reader-5", mode="upgrade", lock_token=upgraded["lock_token"])
    at.end("update", "superseded")
    downgraded = at.acquire("downgraded", "writer", "writer")
    at.acquire("downgraded", "writer", mode="shared", lock_token=downgraded["lock_token"])
    at.end("writer", "superseded")
    # Semaphores, sets, and locks that stay closed.
    at.acquire("permits", "slots-1", "slots-1", permits={"count": 2, "of": 4})
    at.acquire("permits", "slots-2", "slots-2", permits={"count": 1, "of": 4})
    at.done("permits", "permits", of=5)
    at.acquire("set-a", also=["set-b", "set-c"])
    at.acquire("delay", lock_delay_ms=60_000, metadata="delay")
    at.acquire("least", at_least_for_ms=DAY)
    at.acquire("both", lock_delay_ms=1, at_least_for_ms=1)
    at.acquire("closed", at_least_for_ms=DAY)
    at.release("closed")
    at.acquire("opened", at_least_for_ms=DAY)
    at.release("opened")
    at.done("opened", "open", reason="the job failed")


def end(at: Authority) -> None:
    # An election, and each end.
    at.acquire("elected", metadata="10.0.0.1")
    at.done("elected", "proclaim", lock_token=at.of("elected")["lock_token"], value="10.0.0.2")
    at.acquire("released")
    at.release("released")
    at.acquire("revoked")
    at.done("revoked", "break", fencing_token=at.of("revoked")["fencing_token"], reason="it hangs")
    at.end("revoked", "revoked")
    at.acquire("expired", lease_duration_ms=500)
    until(lambda: not at.show("expired")["holder"])
    at.end("expired", "expired")
    at.acquire("superseded", "worker-c", "before")
    at.acquire("superseded", "worker-c")
    at.end("before", "superseded")
    at.acquire("abandoned")
    at.server.ask("POST", f"/v1/requests/{at.ids:032x}/abandon", token=at.token)
    at.end("abandoned", "not_held")
    # A late write that a fence reported.
    late = {"fencing_token": at.of("released")["fencing_token"], "highest": at.of("plain")["fencing_token"] + 40}
    at.done("released", "rejections", **late, resource="orders", operation="put total")


def queue(at: Authority) -> None:
    # One request that is abandoned, one whose connection breaks, and one of each kind that waits.
    leaves = at.wait("plain", "gone")
    at.server.ask("POST", f"/v1/requests/{leaves['request_id']}/abandon", token=at.token)
    program = str(at.server.process.args[0])  # type: ignore[index]
    environment = {**os.environ, "PALISADE_AUTHORITY": f"http://{at.server.address}"}
    environment.update({"PALISADE_TOKEN": at.token} if at.token else {})
    cut = subprocess.Popen([program, "acquire", "plain", "--client-id", "cut", "--wait", "1h"], env=environment)
    until(lambda: at.waiters("plain"))
    cut.kill()
    cut.wait()
    until(lambda: not at.waiters("plain"))
    # Over HTTP, a request whose connection breaks keeps its place for two seconds.
    host, port = at.server.address.split(":")
    body = json.dumps({"client_id": "cut", "lease_duration_ms": DAY, "wait_ms": DAY, "request_id": at.request_id()})
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {at.token}"} if at.token else {})}
    connection = http.client.HTTPConnection(host, int(port))
    connection.request("POST", "/v1/locks/plain/acquire", body, headers)
    until(lambda: at.waiters("plain"))
    connection.close()
    until(lambda: not at.waiters("plain"))
    at.wait("plain", "waits-1", metadata="waits")
    holds = at.acquire("of-waits-2", "waits-2")
    at.wait("plain", "waits-2", lock_token=holds["lock_token"])
    at.wait("plain", "waits-2", lock_token=holds["lock_token"], lease_duration_ms=DAY, also=["set-b"])
    at.wait("read", "waits-3")
    at.wait("read", "waits-4", mode="shared")
    at.wait("permits", "waits-5", permits={"count": 4, "of": 5})
    at.wait("update", "reader-3", mode="upgrade", lock_token=at.of("reader-3")["lock_token"])
    at.wait("set-a", "waits-6", also=["plain"])
    at.wait("delay", "waits-7", lock_delay_ms=1000)


def make(program: str, folder: pathlib.Path) -> Answer:
    facts: Answer = {}
    with tempfile.TemporaryDirectory() as scratch:
        place = pathlib.Path(scratch)
        single(program, place, folder, facts)
        cluster(program, place, folder, facts)
        store(program, place, folder, facts)
    return {**facts, "options": sorted(OPTIONS)}


def single(program: str, place: pathlib.Path, folder: pathlib.Path, facts: Answer) -> None:
    # Its tokens are used nowhere else.
    access = folder / "access.toml"
    access.write_text(ACCESS)
    owner, other = (
        run(program, "auth", "token", "new", name, "--access", str(access)).strip().splitlines()[-1]
        for name in ("owner", "other")
    )
    data = place / "single"
    server = Server(program, data, "--access", str(access))
    at = Authority(server, owner)
    fill(at, other)
    # A stall, a restart that nobody announced, one with other limits, and one that was announced.
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(1.2)
    server.process.send_signal(signal.SIGCONT)
    at.acquire("after-stall")
    run(program, "backup", str(place / "backup"), "--data", str(data))
    facts["backup"] = at.facts()
    for flags in ((), ("--min-ttl", "200ms"), ()):
        server.kill()
        if flags:
            # As after the machine itself was started anew.
            (data / "clock").unlink(missing_ok=True)
        server = at.server = Server(program, data, "--access", str(access), *flags)
    server.process.terminate()
    server.process.wait()
    server = at.server = Server(program, data, "--access", str(access))
    at.acquire("after-restart")
    facts["single"] = at.facts()
    time.sleep(1)
    server.kill()
    pack(data, folder / "single.tar.gz")
    pack(place / "backup", folder / "backup.tar.gz")

    # A snapshot with a leap, and a log behind it.
    data = place / "restored"
    run(program, "restore", str(place / "backup"), "--data", str(data))
    (data / "lock_token.key").write_bytes((place / "single/lock_token.key").read_bytes())
    server = at.server = Server(program, data, "--access", str(access))
    at.grants.pop("after-restart")
    at.acquire("after-restore")
    facts["restored"] = at.facts()
    server.kill()
    pack(data, folder / "restored.tar.gz")


def cluster(program: str, place: pathlib.Path, folder: pathlib.Path, facts: Answer) -> None:
    key = folder / "cluster.key"
    key.write_text("the key of the golden cluster, used nowhere else\n")
    peers = ",".join(f"{host}:{PEERS}" for host in HOSTS)

    def start(host: str) -> Server:
        flags = ("--cluster", peers, "--peer-listen", f"{host}:{PEERS}", "--cluster-key-file", str(key))
        return Server(program, place / f"node-{host[-1]}", *flags, listen=f"{host}:{CLIENTS}")

    nodes = {host: start(host) for host in HOSTS}

    def leader() -> Optional[str]:
        ready = all(node.ask("GET", "/readyz")["status"] == 200 for node in nodes.values())
        return next((host for host, node in nodes.items() if ready and leads(node)), None)

    at = Authority(nodes[until(leader)])
    fill(at, "")
    # Members: a fourth node comes and goes.
    join = (f"http://{at.server.address}", "--peer-listen", f"{FOURTH}:{PEERS}", "--cluster-key-file", str(key))
    fourth = Server(program, place / "node-4", "--join", *join, listen=f"{FOURTH}:{CLIENTS}")
    assert fourth.process.stdout is not None
    node = json.loads(fourth.process.stdout.readline())["node"]
    for verb in (("add", node, f"{FOURTH}:{PEERS}"), ("remove", node)):
        run(program, "cluster", *verb, "--authority", f"http://{at.server.address}")
    fourth.kill()
    # Another leader: everything that waited is an orphan in its log.
    first = until(leader)
    nodes.pop(first).kill()
    at.server = nodes[until(leader)]
    nodes[first] = start(first)
    at.server = nodes[until(leader)]
    at.acquire("after-election")
    waiting = at.wait("after-election", "waits", metadata="in a queue")
    facts["cluster"] = {**at.facts(), "hosts": list(HOSTS), "waiting": waiting}
    # Everything is committed and applied everywhere before the end.
    until(lambda: len({node.ask("GET", "/v1/cluster")["applied"] for node in nodes.values()}) == 1)
    time.sleep(0.5)
    for node in nodes.values():
        node.kill()
    for host in HOSTS:
        pack(place / f"node-{host[-1]}", folder / f"node-{host[-1]}.tar.gz")


def leads(node: Server) -> bool:
    return node.ask("GET", "/v1/cluster")["role"] == "leader"


def store(program: str, place: pathlib.Path, folder: pathlib.Path, facts: Answer) -> None:
    """A fenced store with each kind of write."""
    data = place / "store"
    server = Server(program, data, kind="store")

    def ask(verb: str, token: int, **body: Any) -> None:
        body = {"resource_id": "orders", "authority": "golden", "fencing_token": token, **body}
        answer = server.ask("POST", f"/v1/storage/{verb}", body)
        assert answer["status"] == 200, answer

    def write(sequence: int, kind: str, path: str, **more: str) -> None:
        ask("write", 34, sequence=sequence, write_payload={"file_path": path, "mutation_type": kind, **more})

    ask("claim", 33)
    write(1, "PUT", "/total", bytes="NDE=")
    write(2, "APPEND", "/log", bytes="b25lLA==")
    write(3, "APPEND", "/log", bytes="dHdv")
    write(4, "PUT", "/gone", bytes="eA==")
    write(5, "DELETE", "/gone")
    files = {name: server.ask("GET", f"/v1/storage/orders/files/{name}")["text"] for name in ("total", "log")}
    facts["store"] = {"resource": lasting(server.ask("GET", "/v1/storage/orders")), "files": files}
    server.kill()
    pack(data, folder / "store.tar.gz")


ACCESS = """[auth]

[[auth.principals]]
name = "owner"

[[auth.principals]]
name = "other"

[[auth.rules]]
principal = "owner"
prefix = ""
verbs = ["hold", "observe", "break", "admin"]

[[auth.rules]]
principal = "other"
prefix = ""
verbs = ["hold", "observe"]
"""
