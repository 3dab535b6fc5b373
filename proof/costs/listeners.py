"""The cost of holders that listen, at the server: bytes, descriptors and processor time.

    ulimit -n 25000; proof/costs/listeners.py --palisade target/release/palisade --listeners 10000

Each listener has a connection and a lock of its own. Measured are the server's memory and descriptors with idle
connections and with listening ones, its processor time while all ask again every 20 s, how long after a break its
listener hears of it, and its processor time while everybody reads one lock whose only waiter comes and goes as fast as
it can.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import tempfile
import time
from typing import Any

TICK = os.sysconf("SC_CLK_TCK")


class Caller:
    """One connection, and one request at a time."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def open(self) -> Caller:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)
        head_bytes = await self.reader.readuntil(b"\r\n\r\n")
        length = [line for line in head_bytes.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        answer = json.loads(await self.reader.readexactly(int(length[0].split(b":")[1])))
        if not head_bytes.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"{path}: {answer}")
        return answer


class Server:
    def __init__(self, program: str, data: pathlib.Path, connections: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        most = str(connections)
        self.process = subprocess.Popen(
            [
                program,
                "serve",
                "--data",
                str(data),
                "--listen",
                f"127.0.0.1:{self.port}",
                "--connections",
                most,
                "--connections-per-address",
                most,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def memory(self) -> int:
        """The bytes that are its own."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def seconds(self) -> float:
        """Its processor time."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK


async def listen(caller: Caller, lock: str, grant: dict[str, Any], heard: asyncio.Queue[float]) -> None:
    """Asks again and again, as a client does; says when the grant ended."""
    known = 0
    while True:
        named = {
            "resource_id": lock,
            "lock_token": grant["lock_token"],
            "fencing_token": grant.get("grant_id", grant["fencing_token"]),
            "waiters": known,
        }
        for notice in (await caller.post("/v1/listen", {"grants": [named], "wait_ms": 20_000}))["notices"]:
            if notice["event"] == "ended":
                return heard.put_nowait(time.monotonic())
            known = notice["waiters"]
            await asyncio.sleep(0.1)


async def come_and_go(port: int, lock: str) -> int:
    """A waiter that comes and leaves, as fast as it can, for ten seconds. Returns how often."""
    count, until = 0, time.monotonic() + 10
    while time.monotonic() < until:
        caller = await Caller(port).open()
        waiting = asyncio.create_task(
            caller.post(f"/v1/locks/{lock}/acquire", {"client_id": "w", "lease_duration_ms": 60_000, "wait_ms": 60_000})
        )
        await asyncio.sleep(0.001)
        waiting.cancel()
        caller.writer.close()
        count += 1
    return count


async def measure(program: str, listeners: int) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(program, pathlib.Path(folder) / "data", 2 * listeners + 100)
        try:
            await asyncio.sleep(2)
            operator = await Caller(server.port).open()
            take = {"client_id": "h", "lease_duration_ms": 86_400_000}
            grants = {f"l{at}": await operator.post(f"/v1/locks/l{at}/acquire", take) for at in range(listeners)}
            callers = []
            for _ in grants:
                # A connection without a request is closed after a while.
                callers.append(caller := await Caller(server.port).open())
                await caller.post(
                    "/v1/listen",
                    {"grants": [{"resource_id": "x", "lock_token": "0" * 32, "fencing_token": 1}], "wait_ms": 0},
                )
            await asyncio.sleep(1)
            idle, open_before = server.memory(), server.descriptors()
            heard: asyncio.Queue[float] = asyncio.Queue()
            tasks = [
                asyncio.create_task(listen(caller, lock, grant, heard))
                for caller, (lock, grant) in zip(callers, grants.items(), strict=True)
            ]
            await asyncio.sleep(10)
            rows.append(
                (
                    "memory of a listener, besides its idle connection",
                    f"{(server.memory() - idle) / listeners / 1024:.1f} KB",
                )
            )
            rows.append(("descriptors of a listener", f"{(server.descriptors() - 27) / listeners:.2f}"))
            rows.append(("more descriptors than idle connections have", str(server.descriptors() - open_before)))
            before, since = server.seconds(), time.monotonic()
            await asyncio.sleep(40)
            rows.append(
                (
                    "processor time while all ask again every 20 s",
                    f"{(server.seconds() - before) / (time.monotonic() - since) * 100:.1f} % of one core",
                )
            )
            took = []
            for lock in list(grants)[:50]:
                started = time.monotonic()
                await operator.post(
                    f"/v1/locks/{lock}/break", {"fencing_token": grants[lock]["fencing_token"], "reason": "x"}
                )
                took.append((await heard.get() - started) * 1000)
            rows.append(
                ("from a break to its listener", f"{statistics.median(took):.1f} ms, at most {max(took):.1f} ms")
            )
            for task in tasks:
                task.cancel()
            for caller in callers:
                caller.writer.close()
            await asyncio.sleep(3)
            shared = [
                await operator.post("/v1/locks/all/acquire", take | {"client_id": f"r{at}", "mode": "shared"})
                for at in range(listeners)
            ]
            tasks = [
                asyncio.create_task(listen(await Caller(server.port).open(), "all", grant, heard)) for grant in shared
            ]
            await asyncio.sleep(5)
            before = server.seconds()
            times = await come_and_go(server.port, "all")
            rows.append(
                (
                    f"processor time while one waiter of all readers comes and goes {times // 10} times a second",
                    f"{(server.seconds() - before) * 10:.0f} % of one core",
                )
            )
            for task in tasks:
                task.cancel()
        finally:
            server.process.kill()
            server.process.wait()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--palisade", required=True)
    parser.add_argument("--listeners", type=int, default=10_000)
    arguments = parser.parse_args()
    print(
        f"{arguments.listeners} listeners; {platform.system()} {platform.release()}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n"
    )
    print("| | measured |\n|---|---|")
    for what, measured in asyncio.run(measure(arguments.palisade, arguments.listeners)):
        print(f"| {what} | {measured} |", flush=True)


if __name__ == "__main__":
    main()
