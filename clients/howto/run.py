"""Runs the code blocks of docs/use/howto/*.md, in order, against real servers in temporary folders.

    run.py --palisade PATH [PAGE …]      the pages
    run.py --palisade PATH --control     each page with a changed block must fail
    run.py --palisade PATH --show        prints what each block prints

A block is run as the page has it: `sh` in one folder per page, `python` as it is, `js`, `go` and `java` inside what the
page says the reader has (languages.py). A block of `text` is what the block before it prints; `…` stands for any text.
After `sh refused` the command must fail. Each program under "Write" must raise the number by 1, and nothing else may
change it, until the fence is uninstalled. The lines between the installation and the fenced write are counted, and must
be those that the page names.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Optional

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("clients/holder-suite", "proof/fleet", "clients/howto")]

import languages
import resources
from servers import Servers
from suite.servers import Palisade

PAGES = ROOT / "docs" / "use" / "howto"
FIRST_PAGE = ROOT / "README.md"
NAMES = {"python": "Python", "js": "TypeScript", "go": "Go", "java": "Java"}
#: From the installation to a fenced write, in a transaction of the reader's own and elsewhere.
MOST_LINES = {"postgresql": 9, "mysql": 9}
MOST_LINES_ELSEWHERE = 12


@dataclass(frozen=True)
class Block:
    section: str
    language: str
    text: str
    refused: bool = False
    #: Its output, where the page shows it.
    expected: Optional[str] = None

    @property
    def writes(self) -> bool:
        return self.section == "Write" and self.language in NAMES


class Wrong(Exception):
    """At this block, the page is wrong."""

    def __init__(self, why: str, block: Optional[Block] = None) -> None:
        super().__init__(why)
        self.block = block


def read(page: pathlib.Path) -> list[Block]:
    blocks: list[Block] = []
    section, parts = "", re.split(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for prose, words, text in zip(parts[0::3], parts[1::3], parts[2::3], strict=False):
        section = (re.findall(r"^## (.*)$", prose, re.MULTILINE) or [section])[-1]
        if words == "text":
            blocks[-1] = replace(blocks[-1], expected=text)
        else:
            language, _, more = words.partition(" ")
            blocks.append(Block(section, language, text, more == "refused"))
    return blocks


def counted(blocks: list[Block]) -> dict[str, int]:
    """For each language: the lines of `## Install`, of its own installation, and of its block."""

    def lines(block: Block) -> int:
        return sum(1 for line in block.text.splitlines() if line.strip())

    at_the_resource = sum(lines(block) for block in blocks if block.section == "Install")
    found, own = {}, 0
    for block in blocks:
        if block.writes:
            found[NAMES[block.language]] = at_the_resource + own + lines(block)
            own = 0
        elif block.section == "Write":
            own += lines(block)
    return found


def check_count(page: pathlib.Path, blocks: list[Block]) -> None:
    found = counted(blocks)
    says = ", ".join(f"{name} {number}" for name, number in found.items())
    if f"\nLines from the installation to a fenced write: {says}.\n" not in page.read_text():
        raise Wrong(f"the page must say: Lines from the installation to a fenced write: {says}.")
    most = MOST_LINES.get(page.stem, MOST_LINES_ELSEWHERE)
    if max(found.values()) > most:
        raise Wrong(f"at most {most} lines: {says}")


def matches(expected: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


class Reader:
    """A reader who follows a page."""

    def __init__(self, page: str, palisade: str, show: bool) -> None:
        self.page, self.show = page, show
        self.place = tempfile.TemporaryDirectory(prefix="palisade-howto-")
        self.folder = pathlib.Path(self.place.name, "app")
        self.folder.mkdir()
        self.servers, self.palisade = Servers(palisade), Palisade(palisade)
        self.started: list[int] = []
        self.env = {**languages.environment(), "PALISADE_URL": self.palisade.url, "NODE_NO_WARNINGS": "1"}
        programs = [os.path.dirname(palisade), os.path.dirname(sys.executable)]
        self.env["PATH"] = os.pathsep.join([*programs, self.env["PATH"]])
        languages.prepare(self.folder)

    def close(self) -> None:
        for group in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
        self.servers.close()
        self.palisade.stop()
        self.place.cleanup()

    def follow(self, blocks: list[Block]) -> None:
        found, total = resources.start(self.page, self.servers, self.folder)
        self.env |= found
        before = total()
        for block in blocks:
            printed = self.run(block)
            if self.show:
                print(f"--- {self.page}, {block.section}, {block.language}\n{printed}")
            if block.expected is not None and not matches(block.expected, printed):
                raise Wrong(f"{block.text}printed\n{printed}\nand the page says\n{block.expected}", block)
            before += int(block.writes)
            if block.section != "Uninstall" and total() != before:
                raise Wrong(f"the number is {total()}, not {before}, after\n{block.text}", block)

    def run(self, block: Block) -> str:
        text = block.text
        if block.language == "sh":
            text = "".join(line + "\n" for line in text.splitlines() if not languages.installs(line))
        command = languages.command(self.page, block.language, text, self.folder)
        # Output goes to a file: processes that outlive the block would keep a pipe open.
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            self.started.append(process.pid)
            status = process.wait(120)
            output.seek(0)
            printed = output.read()
        if (status != 0) != block.refused:
            raise Wrong(f"{block.text}ended with {status}:\n{printed}", block)
        if "&\n" in text and "--listen" in text:
            self.until_it_listens(shlex.split(text)[shlex.split(text).index("--listen") + 1])
        return printed

    def until_it_listens(self, variable: str) -> None:
        host, port = self.env[variable.strip("$")].split(":")
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection((host, int(port))).close()
                return
            except ConnectionRefusedError:
                if time.monotonic() > end:
                    raise Wrong(f"nothing listens at {variable}") from None
                time.sleep(0.05)  # real time: asked again, up to a deadline


def follow(page: pathlib.Path, blocks: list[Block], palisade: str, show: bool = False) -> None:
    reader = Reader(page.stem, palisade, show)
    try:
        reader.follow(blocks)
    finally:
        reader.close()


def changed(blocks: list[Block]) -> list[list[Block]]:
    """The page up to a block that is changed: the first program adds another number; the zombie has the newest token,
    or nobody claims before its write."""
    first = next(number for number, block in enumerate(blocks) if block.writes)
    other = replace(blocks[first], text=blocks[first].text.replace("+ 1", "+ 2"))
    at = next(number for number, block in enumerate(blocks) if block.section.startswith("Watch"))
    before, zombie = blocks[:at], blocks[at].text
    if blocks[at].language == "python":
        mended = re.sub(r"^.*claim\(.*\bgrant\b.*\n", "", zombie, flags=re.MULTILINE)
        mended = re.sub(r"(as grant:\n)(?! {8})", r"\1        pass\n", mended)
        # It makes its own holders: those of other languages would only take time.
        before = [block for block in before if block.section == "Install"]
    else:
        mended = zombie.replace("'orders', 1,", "'orders', 9,")
    assert mended != zombie, zombie
    return [[*blocks[:first], other], [*before, replace(blocks[at], text=mended)]]


def one(page: pathlib.Path, options: argparse.Namespace) -> list[str]:
    """The faults of a page."""
    blocks, palisade = read(page), os.path.realpath(options.palisade)
    if not options.control:
        try:
            check_count(page, blocks)
            follow(page, blocks, palisade, options.show)
        except Wrong as error:
            return [f"{page.name}: {error}"]
        return []
    wrong = []
    for other in changed(blocks):
        try:
            follow(page, other, palisade)
            wrong.append(f"{page.name}: it does what it says, though this block was changed:\n{other[-1].text}")
        except Wrong as error:
            if error.block is not other[-1]:
                wrong.append(f"{page.name}: {error}")
    return wrong


def of_languages(text: str) -> dict[str, str]:
    """The first block of each language."""
    found: dict[str, str] = {}
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language in NAMES:
            found.setdefault(language, block)
    return found


def first_page(text: str) -> list[str]:
    """The faults of README.md's examples. They must equal those of postgresql.md, which are run, and have at most ten
    lines. The Rust example runs in examples/seat-booking."""
    shown, run = of_languages(text), of_languages((PAGES / "postgresql.md").read_text())
    wrong = [f"README.md: {name} is not the block of postgresql.md" for name in NAMES if shown.get(name) != run[name]]
    return wrong + [
        f"README.md: {name} has more than ten lines" for name, block in shown.items() if block.count("\n") > 10
    ]


def main() -> int:
    arguments = argparse.ArgumentParser(description="Runs the blocks of docs/use/howto.")
    arguments.add_argument("pages", nargs="*", help="names of pages, such as redis; all without it")
    arguments.add_argument("--palisade", required=True)
    arguments.add_argument("--control", action="store_true", help="pages with a changed block: each must fail")
    arguments.add_argument("--show", action="store_true", help="print what each block prints")
    arguments.add_argument("--jobs", type=int, default=3, help="pages at a time (default 3)")
    options = arguments.parse_args()
    pages = [PAGES / f"{name}.md" for name in options.pages] or sorted(PAGES.glob("*.md"))
    began, readme = time.monotonic(), FIRST_PAGE.read_text()
    wrong = first_page(readme)
    if options.control and len(first_page(readme.replace("total + 1", "total + 2"))) != len(NAMES):
        wrong.append("README.md: changed examples are not found")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for page, found in zip(pages, pool.map(lambda page: one(page, options), pages), strict=True):
            print(f"{page.stem}: {'wrong' if found else 'refused' if options.control else 'as it says'}", flush=True)
            wrong += found
    print("\n".join([*wrong, f"{time.monotonic() - began:.0f} s"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
