"""Runs every example of docs/reference/protocol.md against a real server and compares the answers.

    python3 protocol_examples.py --palisade PATH

A block ```http has a request line, perhaps a body, an empty line, a status, and the answer. A comment
`<!-- run: METHOD PATH BODY -->` is sent before the block, `<!-- while it waits: … -->` once the block's request is in
the queue. Values that differ from run to run (secrets, ids, wall clock, version) are compared by their form; a secret
of the page stands for the real one in the requests after it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import pathlib
import re
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from suite.servers import Palisade

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "reference" / "protocol.md"
INSTANT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
FORMS = {
    "lock_token": r"[0-9a-f]{32}",
    "authority": r"[0-9a-f]{32}",
    "incarnation": r"[0-9a-f]{32}",
    "acquired_at": INSTANT,
    "version": r"\d+\.\d+\.\d+.*",
}
STEP = re.compile(r"<!-- (run|while it waits): (\w+) (\S+)(?: (.*?))? -->")


@dataclass
class Example:
    line: int
    method: str
    path: str
    body: str
    status: int
    answer: str
    before: list[tuple[str, str, str]] = field(default_factory=list)
    meanwhile: list[tuple[str, str, str]] = field(default_factory=list)


def examples(page: str) -> list[Example]:
    found: list[Example] = []
    before: list[tuple[str, str, str]] = []
    meanwhile: list[tuple[str, str, str]] = []
    lines = page.splitlines()
    at = 0
    while at < len(lines):
        step = STEP.fullmatch(lines[at].strip())
        if step:
            target = before if step[1] == "run" else meanwhile
            target.append((step[2], step[3], step[4] or ""))
        elif lines[at] == "```http":
            end = lines.index("```", at + 1)
            request, _, answer = "\n".join(lines[at + 1 : end]).partition("\n\n")
            head, _, body = request.partition("\n")
            status, _, answer = answer.partition("\n")
            method, path = head.split()
            found.append(Example(at + 1, method, path, body, int(status), answer, before, meanwhile))
            before, meanwhile = [], []
            at = end
        at += 1
    if before or meanwhile:
        raise SystemExit("a step of the page belongs to no example")
    return found


class Runner:
    def __init__(self, server: Palisade) -> None:
        self.server = server
        self.secrets: dict[str, str] = {}

    def send(self, method: str, path: str, body: str) -> tuple[int, str]:
        for shown, real in self.secrets.items():
            body = body.replace(shown, real)
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=20)
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, body.encode() or None, headers)
        answer = connection.getresponse()
        if path.startswith("/v1/watch"):
            text = b""
            while text.count(b"\n\n") < 2:
                text += answer.read1()
            return answer.status, text.decode()
        return answer.status, answer.read().decode()

    def waiters(self, path: str) -> int:
        _, text = self.send("GET", path.rsplit("/", 1)[0], "")
        return int(json.loads(text)["waiters"])

    def run(self, example: Example) -> tuple[int, str]:
        for step in example.before:
            self.step(step)
        if not example.meanwhile:
            return self.send(example.method, example.path, example.body)
        answers: list[tuple[int, str]] = []
        sender = threading.Thread(target=lambda: answers.append(self.send(example.method, example.path, example.body)))
        sender.start()
        while sender.is_alive() and self.waiters(example.path) == 0:
            pass
        for step in example.meanwhile:
            self.step(step)
        sender.join()
        return answers[0]

    def step(self, step: tuple[str, str, str]) -> None:
        status, text = self.send(*step)
        if status != 200:
            raise SystemExit(f"the step {step} was answered {status} {text}")

    def compare(self, example: Example, status: int, text: str) -> list[str]:
        if status != example.status:
            return [f"status {status}, the page has {example.status}: {text}"]
        if example.path.startswith("/v1/watch"):
            # Of an event only its instant differs from run to run.
            shown, real = (re.sub(f'"time":"{INSTANT}"', '"time"', each.strip()) for each in (example.answer, text))
            return [] if shown == real else [f"the server sent\n{real}"]
        return list(self.differences("", json.loads(example.answer), json.loads(text)))

    def differences(self, at: str, shown: Any, real: Any) -> Any:
        name = at.rsplit(".", 1)[-1]
        if isinstance(shown, dict) and isinstance(real, dict):
            for key in sorted(shown.keys() | real.keys()):
                if key not in shown or key not in real:
                    yield f"{at}.{key} is only in the {'page' if key in shown else 'answer'}"
                else:
                    yield from self.differences(f"{at}.{key}", shown[key], real[key])
        elif isinstance(shown, list) and isinstance(real, list) and len(shown) == len(real):
            for number, (one, other) in enumerate(zip(shown, real)):
                yield from self.differences(f"{at}[{number}]", one, other)
        elif name in FORMS:
            if not all(re.fullmatch(FORMS[name], str(value)) for value in (shown, real)):
                yield f"{at} is {real!r}, the page has {shown!r}"
            if name == "lock_token":
                self.secrets[shown] = real
        elif shown != real:
            yield f"{at} is {real!r}, the page has {shown!r}"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--palisade", required=True, help="the palisade binary")
    options = arguments.parse_args()
    wrong = 0
    page = examples(PAGE.read_text())
    with Palisade(options.palisade, manual_clock=True) as server:
        runner = Runner(server)
        for example in page:
            for difference in runner.compare(example, *runner.run(example)):
                wrong += 1
                print(f"docs/reference/protocol.md:{example.line}: {example.method} {example.path}: {difference}")
    print(f"{len(page)} examples of docs/reference/protocol.md, {wrong} differences")
    return 1 if wrong or not page else 0


if __name__ == "__main__":
    sys.exit(main())
