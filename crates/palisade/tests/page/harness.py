"""Real servers and clusters, a browser, and the page in it."""

import ctypes
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

# A question of the page may take 20 s, and the pause after it 10 s: one that is lost on a busy machine is asked again in time.
PATIENCE = 70.0
FLAGS = """--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --disable-dev-shm-usage""".split()
TTL = 300_000
WIDTHS = (1280, 390)
# The thread that orders requests.
ORDERING = "palisade-order"
LANES = 32


def until(what, holds, patience=PATIENCE, said=lambda: ""):
    """Waits until it holds; on failure, names the missing event and shows the text from `said`."""
    end = time.monotonic() + patience
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"in {patience} s: {what} {said()}")
        time.sleep(0.05)  # real time: asked again, up to a deadline


class Server:
    """One lock server in a folder of its own."""

    def __init__(self, palisade, *flags, listen="127.0.0.1:0", data=None, around=(), starts=True):
        self.palisade, self.flags, self.around = palisade, flags, around
        self.folder = tempfile.TemporaryDirectory()
        self.listen, self.data = listen, data or f"{self.folder.name}/data"
        self.begin()
        if starts:
            self.started()

    def begin(self):
        command = [self.palisade, "serve", "--json", "--listen", self.listen, "--data", self.data]
        self.process = subprocess.Popen([*self.around, *command, *self.flags], stdout=subprocess.PIPE)

    def started(self):
        self.url = json.loads(self.process.stdout.readline())["url"]
        self.listen = self.url.split("://")[1]

    def start(self):
        self.begin()
        self.started()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def end(self):
        if self.process.poll() is None:
            self.kill()
        self.folder.cleanup()

    def call(self, path, body=None, token=None, patience=PATIENCE):
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data=data, headers=headers)
        # The certificate is the test's own.
        trusting = ssl._create_unverified_context()
        with urllib.request.urlopen(request, timeout=patience, context=trusting) as answer:
            return json.load(answer)

    def acquire(self, lock, client="tester", token=None, patience=PATIENCE, **more):
        body = {"client_id": client, "lease_duration_ms": TTL, **more}
        return self.call(f"v1/locks/{quote(lock, safe='')}/acquire", body, token, patience)

    def release(self, lock, grant):
        body = {name: grant[name] for name in ("lock_token", "fencing_token")}
        return self.call(f"v1/locks/{quote(lock, safe='')}/release", body)

    def queue(self, lock, client, wait_ms=TTL):
        """A request that waits, in the background."""

        def wait():
            try:
                self.acquire(lock, client, patience=PATIENCE + wait_ms / 1_000, wait_ms=wait_ms)
            except OSError:
                pass  # The server was killed, which some scenarios do.

        before = self.call(f"v1/locks/{quote(lock, safe='')}")["waiters"]
        threading.Thread(target=wait, daemon=True).start()
        until(f"{client} waits", lambda: self.call(f"v1/locks/{quote(lock, safe='')}")["waiters"] > before)

    def fill(self, count):
        """Acquires many locks. A connection is answered in order, so there are many connections."""
        workers = [threading.Thread(target=self.fill_part, args=(range(at, count, LANES),)) for at in range(LANES)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        until("all are held", lambda: self.call("v1/status")["locks"] == count)

    def fill_part(self, numbers):
        host, port = self.listen.split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
            answers = connection.makefile("rb")
            for first in range(0, len(numbers), 100):
                batch = b""
                for at in numbers[first : first + 100]:
                    body = json.dumps({"client_id": f"c{at}", "lease_duration_ms": TTL}).encode()
                    batch += (
                        f"POST /v1/locks/lock-{at}/acquire HTTP/1.1\r\nHost: {self.listen}\r\n"
                        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                    ).encode() + body
                connection.sendall(batch)
                for _ in numbers[first : first + 100]:
                    status, length = answers.readline(), 0
                    while (line := answers.readline()) != b"\r\n":
                        name, _, value = line.partition(b":")
                        if name.lower() == b"content-length":
                            length = int(value)
                    answer = answers.read(length)
                    assert b" 200 " in status, answer


@contextmanager
def browser():
    with sync_playwright() as playwright:
        program = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield chromium
        finally:
            chromium.close()


class Page:
    """One tab. `plant` replaces a piece of the script, for a control."""

    def __init__(self, chromium, server, plant=None, scheme="light", size=(1280, 900)):
        self.server, self.problems, self.requests = server, [], []
        self.context = chromium.new_context(
            color_scheme=scheme,
            viewport={"width": size[0], "height": size[1]},
            reduced_motion="reduce",
            ignore_https_errors=True,
        )
        self.context.set_default_timeout(1000 * PATIENCE)
        self.tab = self.context.new_page()
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("dialog", lambda dialog: self.problems.append(f"dialog {dialog.message}"))
        self.tab.on(
            "console",
            # The browser itself logs each answer that is not a success.
            lambda said: (
                said.type == "error" and "Failed to load resource" not in said.text and self.problems.append(said.text)
            ),
        )
        self.plant, self.planted = plant, 0
        folder = os.environ.get("PALISADE_PAGE")
        if plant or folder:
            files = re.compile(r"/(page\.css|\w+\.js)?$" if folder else r"/\w+\.js$")
            self.tab.route(files, lambda route: self.file(route, folder))

    def file(self, route, folder):
        name = route.request.url.rsplit("/", 1)[1] or "page.html"
        if folder:
            # The program may not have the file yet; the policy is that of its script.
            headers = dict(route.fetch(url=f"{self.server.url}/page.js").headers)
            headers["content-type"] = f"text/{name.rsplit('.', 1)[1].replace('js', 'javascript')}; charset=utf-8"
            text = (Path(folder) / name).read_text()
        else:
            answer = route.fetch()
            headers, text = answer.headers, answer.text()
        if self.plant and name.endswith(".js"):
            old, new = self.plant
            self.planted += text.count(old)
            text = text.replace(old, new)
        headers.pop("content-length", None)
        route.fulfill(status=200, headers=headers, body=text)

    def open(self, view="#/"):
        self.tab.goto(f"{self.server.url}/{view}")
        assert not self.plant or self.planted == 1, f"the mistake does not fit the scripts: {self.plant[0]}"
        return self

    def figure(self, name):
        shown = self.tab.locator(".figures div", has=self.tab.locator("dt", has_text=re.compile(f"^{name}$")))
        text = shown.locator("dd").all_text_contents()
        return text[0].replace("\u2009", "") if text else None

    def rows(self, table):
        """The cells of a table's rows, even while the page redraws it."""
        read = """name => [...document.querySelectorAll(`table[aria-label="${name}"] tbody tr`)]
            .map(row => [...row.cells].map(cell => cell.textContent))"""
        return self.tab.evaluate(read, table)

    def cut(self, table, heading):
        """How the text of a column is cut off or squeezed: out of its cell, out of the part of the table in sight, narrow."""
        read = """([name, heading]) => {
            const table = document.querySelector(`table[aria-label="${name}"]`), sight = table.closest(".scroll");
            const at = [...table.tHead.rows[0].cells].findIndex(cell => cell.textContent === heading);
            const found = sight.scrollWidth > sight.clientWidth ? ["the table is wider than its place"] : [];
            for (const row of table.tBodies[0].rows) {
                const cell = row.cells[at], box = cell.getBoundingClientRect(), text = document.createRange();
                text.selectNodeContents(cell);
                const inside = one => one.left >= box.left - 1 && one.right <= box.right + 1 && one.bottom <= box.bottom + 1;
                if (![...text.getClientRects()].every(inside)) found.push(`outside its cell: ${cell.textContent}`);
                if (box.width < table.offsetWidth / 3) found.push(`only ${box.width} of ${table.offsetWidth}`);
            }
            return found;
        }"""
        return self.tab.evaluate(read, [table, heading])

    def alarms(self):
        """The notices at the top: the bold text of each, and its kind."""
        read = """() => [...document.querySelectorAll("#alarms .alarm")]
            .map(one => [one.querySelector("strong").textContent, one.classList.contains("bad") ? "bad" : "warn", one.textContent])"""
        return self.tab.evaluate(read)

    def alarm(self, title, kind="bad"):
        """All of the notice that begins so, or nothing."""
        return next((text for bold, is_a, text in self.alarms() if bold.startswith(title) and is_a == kind), "")

    def red(self):
        """The titles of the notices in red. A busy machine may cause another one: that the authority was away."""
        return [title for title, kind, _ in self.alarms() if kind == "bad"]

    def old(self):
        """The names of the parts that are greyed, each with its age."""
        read = "() => [...document.querySelectorAll('.old')].map(one => [one.dataset.part, one.querySelector('.age').textContent])"
        return dict(self.tab.evaluate(read))

    def pictures(self, folder, name):
        """Judges the page in light and dark, wide and narrow, and takes a picture of each."""
        for width in WIDTHS:
            self.tab.set_viewport_size({"width": width, "height": 900})
            for scheme in ("light", "dark"):
                self.tab.emulate_media(color_scheme=scheme)
                if folder:
                    self.tab.screenshot(path=f"{folder}/{name}-{scheme}-{width}.png", full_page=True)
                judged(self, f"{name}, {scheme}, {width}")
            sideways = self.tab.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert sideways <= 0, f"{name} at {width}: {sideways} pixels stand out"

    def connection(self):
        return self.tab.locator("#connection").get_attribute("class")

    def until_agrees(self, when):
        until(f"the page agrees {when}", self.agrees, said=self.text)

    def text(self):
        """The page's whole text, and its errors."""
        return f"{self.tab.locator('body').inner_text()}\n{self.problems}\n{self.server.call('v1/locks?limit=100')}"

    def agrees(self):
        """Whether the page agrees with the interface."""
        status, locks = self.server.call("v1/status"), self.server.call("v1/locks?limit=100")["locks"]
        expected = {lock["resource_id"]: (str(lock["holder"]["fencing_token"]), str(lock["waiters"])) for lock in locks}
        shown = {row[0]: (row[1].replace("\u2009", ""), row[-1]) for row in self.rows("All locks")}
        figures = [self.figure("locks"), self.figure("requests waiting"), self.figure("next token")]
        return figures == [str(status[name]) for name in ("locks", "waiters", "next_token")] and shown == expected

    def close(self, tolerate=False):
        strangers = [url for url in self.requests if not url.startswith((self.server.url, "data:"))]
        self.context.close()
        assert not strangers, f"requests to other hosts: {strangers}"
        assert tolerate or not self.problems, self.problems


class Cluster:
    """Three nodes on addresses of this machine."""

    def __init__(self, palisade):
        # The nodes tell one another their ports, so these are chosen before.
        hosts = [f"127.0.0.{at}" for at in (1, 2, 3)]
        clients, peers = [self.free(host) for host in hosts], [self.free(host) for host in hosts]
        flags = ["--cluster", ",".join(peers)]
        self.nodes = [
            Server(palisade, *flags, "--peer-listen", peer, listen=client, starts=False)
            for client, peer in zip(clients, peers)
        ]
        for node in self.nodes:
            node.started()
        until("a node leads", lambda: all(self.leader(node) for node in self.nodes))
        leader = self.leader(self.nodes[0])
        self.nodes.sort(key=lambda node: node.call("v1/cluster")["node"] != leader)

    @staticmethod
    def free(host):
        with socket.socket() as free:
            free.bind((host, 0))
            return f"{host}:{free.getsockname()[1]}"

    @staticmethod
    def leader(node):
        try:
            return node.call("v1/cluster")["leader"]
        except OSError:
            return None  # It starts.

    def end(self):
        for node in self.nodes:
            node.end()


class Paused:
    """One thread of a process does not run, as if its disk hung: SIGSTOP would stop them all."""

    SEIZE, INTERRUPT, DETACH, ALL = 0x4206, 0x4207, 17, 0x40000000

    def __init__(self, pid, name):
        task = Path(f"/proc/{pid}/task")
        names = {one.name: (one / "comm").read_text().strip() for one in task.iterdir()}
        self.threads = [int(thread) for thread, is_called in names.items() if is_called == name]
        assert self.threads, f"{name} is none of {names}"
        for thread in self.threads:
            self.trace(self.SEIZE, thread)
            self.trace(self.INTERRUPT, thread)
            os.waitpid(thread, self.ALL)

    def trace(self, request, thread):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        if libc.ptrace(request, thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace {request:#x} of thread {thread}")

    def go_on(self):
        for thread in self.threads:
            self.trace(self.DETACH, thread)


def withheld(route):
    answer = route.fetch()
    body = answer.json()
    body["counts"] = {name: count for name, count in body["counts"].items() if not name.startswith("rejections")}
    route.fulfill(response=answer, json=body)


def violations(page):
    # The policy of the page admits no script of others, so axe runs in a world of its own.
    found = Axe().run(page.tab).response["violations"]
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes']]}" for one in found]


def judged(page, where):
    found = violations(page)
    assert not found, f"{where}: {found}"
