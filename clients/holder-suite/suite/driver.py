"""A driver: one program of the language under test, commanded by lines of JSON."""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import subprocess
import threading
from typing import Any, Optional

from .clock import now_ms, until

Answer = dict[str, Any]


class DriverFailed(Exception):
    """The driver ended, or did not answer."""


class Driver:
    """Starts the program. Answers are matched by id, and events are stored in the order of their
    arrival."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self.answers: dict[int, queue.Queue[Answer]] = {}
        self.events: list[Answer] = []
        self.said: list[str] = []
        self.ids = itertools.count(1)
        self.changed = threading.Condition()
        for stream, take in ((self.process.stdout, self._take), (self.process.stderr, self.said.append)):
            threading.Thread(target=self._read, args=(stream, take), daemon=True).start()
        self.hello = self.event("hello", timeout_s=60)

    def _read(self, stream: Any, take: Any) -> None:
        for line in stream:
            take(line)

    def _take(self, line: str) -> None:
        self.said.append(line)
        try:
            message = json.loads(line)
        except ValueError:
            return
        message["read_ms"] = now_ms()
        with self.changed:
            if "event" in message:
                self.events.append(message)
            elif message.get("id") in self.answers:
                self.answers[message["id"]].put(message)
            self.changed.notify_all()

    def start(self, do: str, **command: Any) -> int:
        """Sends a command and returns its id, without waiting for the answer."""
        # A scripted answer may ask the driver, too, from a thread of its own.
        id = next(self.ids)
        self.answers[id] = queue.Queue()
        line = json.dumps({"id": id, "do": do, **command})
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError as gone:
            raise DriverFailed(f"the driver is gone: {gone}; it said {self.last_words()}") from gone
        return id

    def answer(self, command: int, timeout_s: float = 20.0) -> Answer:
        try:
            return self.answers[command].get(timeout=timeout_s)
        except queue.Empty:
            raise DriverFailed(
                f"no answer to command {command} in {timeout_s:.0f} s; the driver said {self.last_words()}"
            ) from None

    def has_answered(self, command: int) -> bool:
        return not self.answers[command].empty()

    def call(self, do: str, timeout_s: float = 20.0, **command: Any) -> Answer:
        return self.answer(self.start(do, **command), timeout_s)

    def find(self, kind: str, /, **fields: Any) -> Optional[Answer]:
        for event in list(self.events):
            if event["event"] == kind and all(event.get(key) == value for key, value in fields.items()):
                return event
        return None

    def event(self, kind: str, /, timeout_s: float = 10.0, **fields: Any) -> Answer:
        found = until(lambda: self.find(kind, **fields) or self.process.poll() is not None, timeout_s)
        found = self.find(kind, **fields)
        if found is None:
            raise DriverFailed(f"no event {kind!r} in {timeout_s:.0f} s; the driver said {self.last_words()}")
        return found

    def last_words(self) -> str:
        return "".join(self.said[-8:]).strip() or "nothing"

    def stop(self) -> None:
        """SIGSTOP to the driver and all of its processes; returns when it is stopped."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        until(lambda: self._state() == "T")

    def go_on(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def _state(self) -> str:
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]

    def end(self) -> None:
        for signal_number in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, signal_number)
            except ProcessLookupError:
                pass
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass
