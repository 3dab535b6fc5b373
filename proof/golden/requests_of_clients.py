"""What each client sends for the usual operations, byte for byte, and what the server answers.

The drivers of the holder suite carry out one list of commands through a relay that writes everything down. The server's
clock stands still, so that nothing depends on how fast the two are.
"""

from __future__ import annotations

import base64
import json
import pathlib
import shlex
import socket
import threading
import time
from typing import Any

from suite.driver import Driver
from suite.servers import Palisade

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = ROOT / "target"
# As in proof/fleet/fleet.py.
DRIVERS = {
    "rust": f"{TARGET}/debug/examples/holder-driver",
    "python": f"{TARGET}/clients/python/bin/python {ROOT}/clients/python/tests/driver.py",
    "go": f"{TARGET}/clients/go/driver",
    "typescript": f"{TARGET}/clients/typescript/driver",
    "java": f"{TARGET}/clients/java/driver",
}
TTL = 60_000
CLIENT, SERVER = "client", "server"


class Recorder:
    """A relay that notes what it forwards: the number of the connection, the sender, and the bytes."""

    def __init__(self, port: int) -> None:
        self.server = ("127.0.0.1", port)
        self.noted: list[tuple[int, str, bytes]] = []
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(self.server)
            for source, sink, way in ((near, far, CLIENT), (far, near, SERVER)):
                threading.Thread(target=self._pump, args=(number, source, sink, way), daemon=True).start()
            number += 1

    def _pump(self, number: int, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(65536):
                with self.lock:
                    self.noted.append((number, way, data))
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def events(self) -> list[list[Any]]:
        """What was noted, with what one side sent in several pieces in one."""
        joined: list[tuple[int, str, bytes]] = []
        for number, way, data in self.noted:
            goes_on = bool(joined) and joined[-1][:2] == (number, way)
            joined.append((number, way, (joined.pop()[2] if goes_on else b"") + data))
        return [[number, way, spoken(data)] for number, way, data in joined]


def spoken(data: bytes) -> Any:
    """Text as text, and other bytes in base64."""
    text = data.decode("latin-1")
    if all(" " <= letter <= "~" or letter in "\r\n" for letter in text):
        return text
    return {"base64": base64.b64encode(data).decode()}


class Holder:
    """A client, as its driver carries it out. Each call ends as expected, or the recording ends."""

    def __init__(self, driver: Driver, url: str) -> None:
        self.driver, self.url, self.can = driver, url, set(driver.hello["can"])

    def call(self, do: str, code: str = "", **command: Any) -> dict[str, Any]:
        answer = self.driver.call(do, **command)
        assert (answer["ok"] and not code) or answer.get("code") == code, (do, command, answer)
        return answer

    def acquire(self, name: str, lock: str, code: str = "", **more: Any) -> dict[str, Any]:
        return self.call("acquire", code, **{"as": name, "lock": lock, "ttl_ms": TTL, "wait_ms": 0, **more})

    def wait_for(self, name: str, lock: str) -> Any:
        return self.driver.start("acquire", **{"as": name, "lock": lock, "ttl_ms": TTL, "wait_ms": 30_000})

    def connect(self, notices: bool) -> None:
        self.call("connect", urls=[self.url], patience_ms=10_000, notices=notices)


def carry_out(driver: Driver, url: str) -> None:
    holder = Holder(driver, url)
    holder.connect(notices=False)
    # A short lease is renewed a few times while this waits.
    holder.acquire("short", "short", ttl_ms=3000)
    time.sleep(1.5)
    holder.call("release", grant="short")
    holder.acquire("plain", "jobs/50% of it", client_id="worker-a")
    holder.acquire("denied", "jobs/50% of it", "held", client_id="worker-b")
    holder.call("show", lock="jobs/50% of it")
    if "list" in holder.can:
        holder.call("list", prefix="jobs/")
    each_kind(holder)
    queue(holder)
    if "handover" in holder.can:
        holder.acquire("handed", "handed")
        holder.call("adopt", text=holder.call("export", grant="handed")["text"], **{"as": "taken"})
        holder.call("release", grant="taken")
    news(holder)


def each_kind(holder: Holder) -> None:
    if "shared" in holder.can:
        holder.acquire("reader", "read", mode="shared")
        holder.acquire("reader-2", "read", mode="shared")
        holder.call("release", grant="reader")
        holder.acquire("writer", "write")
        holder.call("downgrade", grant="writer", **{"as": "was-writer"})
    if "update" in holder.can:
        holder.acquire("update", "update", mode="update")
        holder.call("upgrade", grant="update", wait_ms=0, **{"as": "upgraded"})
    if "permits" in holder.can:
        holder.acquire("slots", "semaphore", permits={"count": 2, "of": 3})
    if "sets" in holder.can:
        holder.acquire("set", "set-a", also=["set-b"])
    if "delays" in holder.can:
        holder.acquire("delays", "delays", lock_delay_ms=1000, at_least_for_ms=1000)
        holder.call("release", grant="delays")


def queue(holder: Holder) -> None:
    """A request that waits is granted, and one is given up."""
    lock = "jobs/50% of it"
    waits = holder.wait_for("waits", lock)
    time.sleep(0.3)
    holder.call("release", grant="plain")
    assert holder.driver.answer(waits)["ok"]
    if "cancel" in holder.can:
        gives_up = holder.wait_for("never", lock)
        time.sleep(0.3)
        holder.call("cancel", target=gives_up)
        time.sleep(0.3)
    holder.call("break", lock=lock, token=holder.call("show", lock=lock)["token"], reason="it hangs")
    holder.call("release", grant="waits")


def news(holder: Holder) -> None:
    driver = holder.driver
    # A listen waits until there is news: first that a request waits, then that the grant is over.
    if "notices" in holder.can:
        holder.connect(notices=True)
        heard = holder.acquire("heard", "heard")
        time.sleep(0.5)
        wants = holder.wait_for("wants", "heard")
        noticed(driver, "wanted")
        # It listens again by then, and hears the reason too.
        time.sleep(0.5)
        holder.call("break", lock="heard", token=heard["token"], reason="it hangs")
        noticed(driver, "lost")
        assert driver.answer(wants)["ok"]
        holder.call("release", grant="wants")
    # The watch of a session is a stream of gRPC, which is not recorded.
    if "watch" in holder.can and driver.hello["wire"] == "http":
        holder.call("watch", prefix="watched", **{"as": "watch"})
        time.sleep(0.5)
        holder.acquire("watched", "watched", lock_delay_ms=1000)
        noticed(driver, "granted", "change")
        holder.call("release", grant="watched")
        noticed(driver, "released", "change")


def noticed(driver: Driver, kind: str, what: str = "notice") -> None:
    """Waits until the driver says that it has heard this."""
    end = time.monotonic() + 30
    while not any(event.get("kind") == kind for event in driver.events if event["event"] == what):
        assert time.monotonic() < end, (kind, driver.events)
        time.sleep(0.05)


def make(program: str, folder: pathlib.Path) -> dict[str, Any]:
    made = {}
    for name, command in DRIVERS.items():
        server = Palisade(program, manual_clock=True)
        recorder = Recorder(server.port)
        driver = Driver(shlex.split(command))
        try:
            carry_out(driver, recorder.url)
        finally:
            driver.end()
            server.process.kill()
            server.process.wait()
        time.sleep(0.2)
        events = recorder.events()
        lines = ",\n".join(json.dumps(event) for event in events)
        head = json.dumps({"client": name, "wire": driver.hello["wire"]})[1:-1]
        (folder / f"{name}.json").write_text(f'{{{head}, "events": [\n{lines}\n]}}\n')
        made[name] = {"events": len(events), "wire": driver.hello["wire"]}
    return made
