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


def carry_out(driver: Driver, url: str) -> None:
    can = set(driver.hello["can"])

    def call(do: str, code: str = "", **command: Any) -> dict[str, Any]:
        answer = driver.call(do, **command)
        assert (answer["ok"] and not code) or answer.get("code") == code, (do, command, answer)
        return answer

    def acquire(name: str, lock: str, code: str = "", **more: Any) -> dict[str, Any]:
        return call("acquire", code, **{"as": name, "lock": lock, "ttl_ms": TTL, "wait_ms": 0, **more})

    call("connect", urls=[url], patience_ms=10_000, notices=False)
    # A short lease is renewed a few times while this waits.
    acquire("short", "short", ttl_ms=3000)
    time.sleep(1.5)
    call("release", grant="short")
    holder = acquire("plain", "jobs/50% of it", client_id="worker-a")
    acquire("denied", "jobs/50% of it", "held", client_id="worker-b")
    call("show", lock="jobs/50% of it")
    if "list" in can:
        call("list", prefix="jobs/")
    if "shared" in can:
        acquire("reader", "read", mode="shared")
        acquire("reader-2", "read", mode="shared")
        call("release", grant="reader")
        acquire("writer", "write")
        call("downgrade", grant="writer", **{"as": "was-writer"})
    if "update" in can:
        acquire("update", "update", mode="update")
        call("upgrade", grant="update", wait_ms=0, **{"as": "upgraded"})
    if "permits" in can:
        acquire("slots", "semaphore", permits={"count": 2, "of": 3})
    if "sets" in can:
        acquire("set", "set-a", also=["set-b"])
    if "delays" in can:
        acquire("delays", "delays", lock_delay_ms=1000, at_least_for_ms=1000)
        call("release", grant="delays")
    # A request that waits is granted, and one is given up.
    waits = driver.start("acquire", **{"as": "waits", "lock": "jobs/50% of it", "ttl_ms": TTL, "wait_ms": 30_000})
    time.sleep(0.3)
    call("release", grant="plain")
    assert driver.answer(waits)["ok"]
    if "cancel" in can:
        gives_up = driver.start(
            "acquire", **{"as": "never", "lock": "jobs/50% of it", "ttl_ms": TTL, "wait_ms": 30_000}
        )
        time.sleep(0.3)
        call("cancel", target=gives_up)
        time.sleep(0.3)
    call("break", lock="jobs/50% of it", token=call("show", lock="jobs/50% of it")["token"], reason="it hangs")
    call("release", grant="waits")
    assert holder["token"]
    if "handover" in can:
        acquire("handed", "handed")
        call("adopt", text=call("export", grant="handed")["text"], **{"as": "taken"})
        call("release", grant="taken")
    # A listen waits until there is news: first that a request waits, then that the grant is over.
    if "notices" in can:
        call("connect", urls=[url], patience_ms=10_000, notices=True)
        heard = acquire("heard", "heard")
        time.sleep(0.5)
        wants = driver.start("acquire", **{"as": "wants", "lock": "heard", "ttl_ms": TTL, "wait_ms": 30_000})
        noticed(driver, "wanted")
        # It listens again by then, and hears the reason too.
        time.sleep(0.5)
        call("break", lock="heard", token=heard["token"], reason="it hangs")
        noticed(driver, "lost")
        assert driver.answer(wants)["ok"]
        call("release", grant="wants")
    # The watch of a session is a stream of gRPC, which is not recorded.
    if "watch" in can and driver.hello["wire"] == "http":
        call("watch", prefix="watched", **{"as": "watch"})
        time.sleep(0.5)
        acquire("watched", "watched", lock_delay_ms=1000)
        noticed(driver, "granted", "change")
        call("release", grant="watched")
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
