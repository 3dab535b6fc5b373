"""The driver of the Python client for the holder suite: `driver.py` for asyncio, `driver.py --threads` for threads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from typing import Any, Awaitable, Callable, Union

from palisade import AsyncClient, AsyncGrant, Client, Grant, Notice, PalisadeError
from palisade._clock import now_ns

Command = dict[str, Any]
Answer = dict[str, Any]
_writing = threading.Lock()


def say(message: Answer) -> None:
    with _writing:
        print(json.dumps(message), flush=True)


def now_ms() -> float:
    return now_ns() / 1e6


def granted(grant: Union[Grant, AsyncGrant]) -> Answer:
    before = now_ms()
    left = {"before_ms": before, "remaining_ms": grant.remaining * 1e3, "waited_ms": grant.waited * 1e3}
    slots = {"slots": grant.slots, "slot_keys": grant.slot_keys}
    return {"token": grant.token, "grant_id": grant.grant_id, "authority": grant.authority, **slots, **left}


def local(command: Command, grants: dict[str, Any]) -> Answer:
    """Commands that need no waiting."""
    before = now_ms()
    if command["do"] == "clock":
        return {"now_ms": before}
    grant = grants[command["grant"]]
    if command["do"] == "checks":
        for _ in range(command["count"]):
            grant.check()
        return {"took_ms": now_ms() - before}
    if command["do"] == "wanted":
        return {"waiters": grant.wanted()}
    if command["do"] == "remaining":
        return {"before_ms": before, "remaining_ms": grant.remaining * 1e3}
    try:
        grant.check()
        return {"before_ms": before}
    except PalisadeError as lost:
        return {"ok": False, "code": lost.code, "before_ms": before}


def request(client: Any, command: Command) -> Any:
    common = {
        "ttl": command["ttl_ms"] / 1e3,
        "wait": command["wait_ms"] / 1e3,
        "client_id": command.get("client_id"),
    }
    if "also" in command:
        return client.locks(command["lock"], *command["also"], **common)
    return client.lock(command["lock"], **common, **options(command))


def options(command: Command) -> dict[str, Any]:
    return {
        "shared": command.get("mode") == "shared",
        "update": command.get("mode") == "update",
        "lock_delay": command.get("lock_delay_ms", 0) / 1e3,
        "at_least_for": command.get("at_least_for_ms", 0) / 1e3,
        "permits": (command["permits"]["count"], command["permits"]["of"]) if "permits" in command else None,
    }


def made(command: Command) -> dict[str, Any]:
    tls = command.get("tls")
    identity = {"verify": tls["ca"], "cert": (tls["cert"], tls["key"])} if tls else {}
    return {"patience": command["patience_ms"] / 1e3, "notices": command.get("notices", False), **identity}


def notify(name: str, grant: Union[Grant, AsyncGrant]) -> None:
    def told(notice: Notice) -> None:
        facts: Answer = {"event": "notice", "grant": name, "kind": notice.kind, "at_ms": now_ms()}
        if notice.remaining is not None:
            facts["remaining_ms"] = notice.remaining * 1e3
        say({**facts, "waiters": notice.waiters, "why": notice.why, "reason": notice.reason})

    grant.listen(told)


def lost(name: str, grant: Union[Grant, AsyncGrant]) -> None:
    try:
        grant.check()
    except PalisadeError as error:
        say({"event": "lost", "grant": name, "token": grant.token, "code": error.code, "at_ms": now_ms()})


def change(name: str, event: Any) -> None:
    say({"event": "change", "watch": name, "kind": event.kind, "revision": event.revision, "token": event.token})


CAN = ["addresses", "delays", "handover", "list", "notices", "permits", "sets", "shared", "tls", "update", "watch"]


class Threads:
    def __init__(self) -> None:
        self.grants: dict[str, Grant] = {}

    def carry_out(self, command: Command) -> Answer:
        do = command["do"]
        if do == "connect":
            self.client = Client(command["urls"], **made(command))
        elif do == "acquire":
            return self.taken(command, request(self.client, command).acquire())
        elif do == "downgrade":
            return self.taken(command, self.grants[command["grant"]].downgrade())
        elif do == "upgrade":
            return self.taken(command, self.grants[command["grant"]].upgrade(command["wait_ms"] / 1e3))
        elif do == "export":
            return {"text": self.grants[command["grant"]].export()}
        elif do == "adopt":
            return self.taken(command, self.client.adopt(command["text"]))
        elif do == "release":
            grant = self.grants[command["grant"]]
            return {"result": grant.release_part(command["lock"]) if "lock" in command else grant.release()}
        elif do == "pairs":
            before = now_ms()
            for _ in range(command["count"]):
                self.client.lock(command["lock"]).acquire().release()
            return {"took_ms": now_ms() - before}
        elif do == "show":
            shown = self.client.show(command["lock"])
            return {"token": shown.holder and shown.holder.token, "waiters": shown.waiters}
        elif do == "list":
            return {"locks": [info.lock for info in self.client.list(command["prefix"])]}
        elif do == "break":
            self.client.break_lock(command["lock"], command["token"], command["reason"])
        elif do == "watch":
            self.thread(lambda: self.watch(command))
        elif do == "fork":
            return self.fork(command)
        else:
            return local(command, self.grants)
        return {}

    def fork(self, command: Command) -> Answer:
        grant = self.grants[command["grant"]]
        read, write = os.pipe()
        if os.fork() == 0:
            told: Answer = {"code": None, "remaining_ms": grant.remaining * 1e3, "acquired": False}
            try:
                grant.check()
            except PalisadeError as error:
                told["code"] = error.code
            with contextlib.suppress(PalisadeError), grant, self.client.lock(command["lock"], wait=0):
                told["acquired"] = True
            os.write(write, json.dumps(told).encode())
            os._exit(0)
        os.close(write)
        with open(read, encoding="utf-8") as said:
            answer: Answer = json.loads(said.read())
        os.wait()
        return answer

    def taken(self, command: Command, grant: Grant) -> Answer:
        self.grants[command["as"]] = grant
        notify(command["as"], grant)
        self.thread(lambda: self.announce(command["as"], grant))
        return granted(grant)

    def announce(self, name: str, grant: Grant) -> None:
        grant.lost.wait()
        lost(name, grant)

    def watch(self, command: Command) -> None:
        for event in self.client.watch(command["prefix"], after=0):
            change(command["as"], event)

    def thread(self, run: Callable[[], object]) -> None:
        threading.Thread(target=run, daemon=True).start()

    def serve(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            self.thread(lambda command=command: self.answer(command))  # type: ignore[misc]

    def answer(self, command: Command) -> None:
        try:
            say({"id": command["id"], "ok": True, **self.carry_out(command)})
        except PalisadeError as error:
            say({"id": command["id"], "ok": False, "code": error.code, "message": str(error)})


class Tasks:
    def __init__(self) -> None:
        self.grants: dict[str, AsyncGrant] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def carry_out(self, command: Command) -> Answer:
        do = command["do"]
        if do == "connect":
            self.client = AsyncClient(command["urls"], **made(command))
        elif do == "acquire":
            return self.taken(command, await request(self.client, command).acquire())
        elif do == "downgrade":
            return self.taken(command, await self.grants[command["grant"]].downgrade())
        elif do == "upgrade":
            return self.taken(command, await self.grants[command["grant"]].upgrade(command["wait_ms"] / 1e3))
        elif do == "export":
            return {"text": self.grants[command["grant"]].export()}
        elif do == "adopt":
            return self.taken(command, await self.client.adopt(command["text"]))
        elif do == "release":
            grant = self.grants[command["grant"]]
            return {"result": await (grant.release_part(command["lock"]) if "lock" in command else grant.release())}
        elif do == "pairs":
            before = now_ms()
            for _ in range(command["count"]):
                await (await self.client.lock(command["lock"]).acquire()).release()
            return {"took_ms": now_ms() - before}
        elif do == "show":
            shown = await self.client.show(command["lock"])
            return {"token": shown.holder and shown.holder.token, "waiters": shown.waiters}
        elif do == "list":
            return {"locks": [info.lock async for info in self.client.list(command["prefix"])]}
        elif do == "break":
            await self.client.break_lock(command["lock"], command["token"], command["reason"])
        elif do == "watch":
            self.start(self.watch(command))
        elif do == "cancel":
            self.tasks[command["target"]].cancel()
        else:
            return local(command, self.grants)
        return {}

    def taken(self, command: Command, grant: AsyncGrant) -> Answer:
        self.grants[command["as"]] = grant
        notify(command["as"], grant)
        self.start(self.announce(command["as"], grant))
        return granted(grant)

    async def announce(self, name: str, grant: AsyncGrant) -> None:
        await grant.lost.wait()
        lost(name, grant)

    async def watch(self, command: Command) -> None:
        async for event in self.client.watch(command["prefix"], after=0):
            change(command["as"], event)

    def start(self, work: Awaitable[None], id: int = 0) -> None:
        task = asyncio.ensure_future(work)
        self.tasks[id or -len(self.tasks)] = task

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            command = json.loads(line)
            self.start(self.answer(command), command["id"])

    async def answer(self, command: Command) -> None:
        try:
            say({"id": command["id"], "ok": True, **await self.carry_out(command)})
        except PalisadeError as error:
            say({"id": command["id"], "ok": False, "code": error.code, "message": str(error)})
        except asyncio.CancelledError:
            say({"id": command["id"], "ok": False, "code": "cancelled"})


if __name__ == "__main__":
    threads = "--threads" in sys.argv
    say({"event": "hello", "client": "python", "wire": "http", "can": [*CAN, "fork" if threads else "cancel"]})
    if threads:
        Threads().serve()
    else:
        asyncio.run(Tasks().serve())
