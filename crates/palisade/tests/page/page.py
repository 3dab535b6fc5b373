"""Shows the page of a real server in a real browser.

    python page.py PALISADE SCENARIO [FOLDER]

The scenarios are the functions whose names begin with `shows_`. Screenshots are written to FOLDER. Each scenario has a
control: the same page with one mistake planted into its script must be found out. The packages playwright and
axe-playwright-python come from PyPI, the browser from Debian's package chromium (or CHROMIUM).
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Error, sync_playwright

# A question of the page may take 20 s, and the pause after it 10 s: one that is lost on a busy machine is asked again in time.
PATIENCE = 70.0
FLAGS = """--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --disable-dev-shm-usage""".split()
TTL = 300_000
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

    def __init__(self, palisade, *flags):
        self.palisade, self.flags = palisade, flags
        self.folder = tempfile.TemporaryDirectory()
        self.listen = "127.0.0.1:0"
        self.start()

    def start(self):
        command = [self.palisade, "serve", "--json", "--listen", self.listen, "--data", f"{self.folder.name}/data"]
        self.process = subprocess.Popen([*command, *self.flags], stdout=subprocess.PIPE)
        self.url = json.loads(self.process.stdout.readline())["url"]
        self.listen = self.url.removeprefix("http://")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def end(self):
        if self.process.poll() is None:
            self.kill()
        self.folder.cleanup()

    def call(self, path, body=None, token=None):
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def acquire(self, lock, client="tester", token=None, **more):
        body = {"client_id": client, "lease_duration_ms": TTL, **more}
        return self.call(f"v1/locks/{quote(lock, safe='')}/acquire", body, token)

    def release(self, lock, grant):
        body = {name: grant[name] for name in ("lock_token", "fencing_token")}
        return self.call(f"v1/locks/{quote(lock, safe='')}/release", body)

    def queue(self, lock, client, wait_ms=TTL):
        """A request that waits, in the background."""

        def wait():
            try:
                self.acquire(lock, client, wait_ms=wait_ms)
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
            color_scheme=scheme, viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce"
        )
        self.context.set_default_timeout(1000 * PATIENCE)
        self.tab = self.context.new_page()
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("dialog", lambda dialog: self.problems.append(f"dialog {dialog.message}"))
        self.tab.on(
            "console",
            # The browser itself logs each answer that is not a success.
            lambda said: said.type == "error" and "Failed to load resource" not in said.text
            and self.problems.append(said.text),
        )
        if plant:
            old, new = plant
            self.tab.route("**/page.js", lambda route: self.planted(route, old, new))

    @staticmethod
    def planted(route, old, new):
        answer = route.fetch()
        script = answer.text()
        assert script.count(old) == 1, f"the mistake does not fit the script: {old}"
        route.fulfill(response=answer, body=script.replace(old, new))

    def open(self, view="#/"):
        self.tab.goto(f"{self.server.url}/{view}")
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


def shows_what_the_interface_says(palisade, folder):
    """Under changes, with queues, and after the server was killed."""
    server = Server(palisade)
    with browser() as chromium:
        page = Page(chromium, server).open()
        # The control does not follow changes again after they broke off.
        deaf = Page(chromium, server, plant=("for (let wait = 250; !signal", "for (let wait = 250; wait === 250 && !signal"))
        deaf.open()
        stop = threading.Event()

        def load(at):
            while not stop.is_set():
                server.release(f"busy/{at}", server.acquire(f"busy/{at}", f"loop {at}"))

        loops = [threading.Thread(target=load, args=(at,)) for at in range(4)]
        for loop in loops:
            loop.start()
        server.acquire("report", "reader 1", mode="shared")
        server.acquire("report", "reader 2", mode="shared")
        server.acquire("orders/7", "the holder")
        server.queue("orders/7", "the next")
        until("changes are shown while locks change", lambda: any("busy/" in row[2] for row in page.rows("Changes")))
        time.sleep(1)  # real time: the page shows changes for a while
        stop.set()
        for loop in loops:
            loop.join()
        page.until_agrees("after the changes")
        until("the queue is ranked", lambda: [row[:2] for row in page.rows("Longest queues")] == [["orders/7", "1"]])
        until("the oldest is first", lambda: len(page.rows("Held longest")) == 2)
        oldest = server.call("v1/ranking")["oldest"]
        assert [lock["resource_id"] for lock in oldest] == [row[0] for row in page.rows("Held longest")], oldest
        until("readers are counted", lambda: "2 readers" in [row[2] for row in page.rows("All locks")])

        server.kill()
        until("the page says that nobody answers", lambda: page.connection() == "lost")
        assert "what you see is from" in page.tab.locator("#connection").text_content()
        assert page.rows("All locks"), "what was seen last stays"
        server.start()
        until("the page is back", lambda: page.connection() == "live")
        page.until_agrees("after a kill")
        after = server.acquire("after/kill", "a new client")["fencing_token"]
        shown = lambda tab: ["after/kill", str(after)] in [row[2:4] for row in tab.rows("Changes")]  # noqa: E731
        until("changes go on", lambda: shown(page))
        until("the control still polls", deaf.agrees)
        assert not shown(deaf), "the control: a page that does not follow again shows no change"
        page.close()
        deaf.close()
    server.end()


def goes_on_after_a_refusal(palisade, folder):
    """A server that cannot answer once, and then can."""
    server = Server(palisade)
    server.acquire("orders/7", "the holder")
    once = "list = listing(\"\", bottom, signal);"
    with browser() as chromium:
        page = Page(chromium, server).open()
        # The control keeps the list that the refusal took away.
        kept = Page(chromium, server, plant=(once, once.replace("=", "??=", 1))).open()
        found = Page(chromium, server).open("#/find/orders")
        names = lambda: [row[0] for row in found.rows("Locks that begin with orders")]  # noqa: E731
        until("the locks of a prefix", lambda: names() == ["orders/7"])
        tabs = (page, kept, found)
        for one in tabs[:2]:
            one.until_agrees("at first")
        refusal = {"error": {"code": "unavailable", "message": "not now"}}
        for one in tabs:
            one.tab.route("**/v1/locks?*", lambda route: route.fulfill(status=503, json=refusal))
        for one in tabs:
            until("it says why", lambda one=one: "not now" in one.text())
        for one in tabs:
            one.tab.unroute("**/v1/locks?*")
        server.acquire("orders/8", "another holder")
        page.until_agrees("after a refusal")
        until("the locks of a prefix again", lambda: names() == ["orders/7", "orders/8"], said=found.text)
        until("the control asks again", lambda: "not now" not in kept.text() and kept.figure("locks") == "2")
        assert not kept.agrees(), "the control: a list that was taken away shows nothing"
        for one in tabs:
            one.close()
    server.end()


def shows_one_lock(palisade, folder):
    """Its holder, queue and grants; breaking it needs the token."""
    server = Server(palisade)
    first = server.acquire("orders/7", "alpha", metadata="on host 1")
    server.queue("orders/7", "beta")
    server.queue("orders/7", "gamma")
    with browser() as chromium:
        page = Page(chromium, server).open("#/lock/orders%2F7")
        tab = page.tab
        until("the holder", lambda: [row[0] for row in page.rows("Holder")] == ["alpha"])
        assert page.rows("Holder")[0][3] == "on host 1"
        assert [row[-1] for row in page.rows("Queue")] == ["beta", "gamma"]
        tab.get_by_role("button", name="Take the lock from alpha").click()
        send = tab.get_by_role("button", name="Break the lock")
        reason = tab.get_by_label("Reason, which watchers see")
        reason.fill("the host is gone")
        for wrong in ("", "0", str(first["fencing_token"]) + "1", "alpha"):
            tab.get_by_label("Type the token").fill(wrong)
            assert not send.is_enabled(), wrong
        assert server.call("v1/locks/orders%2F7")["holder"]["client_id"] == "alpha", "nothing happened yet"
        tab.get_by_label("Type the token").fill(str(first["fencing_token"]))
        send.click()
        until("the next holder", lambda: [row[0] for row in page.rows("Holder")] == ["beta"])
        holder = server.call("v1/locks/orders%2F7")["holder"]
        assert holder["client_id"] == "beta" and holder["fencing_token"] > first["fencing_token"]
        grants = lambda: {row[1]: row[-1] for row in page.rows("Grants")}  # noqa: E731
        until("the end of the first grant", lambda: "the host is gone" in grants().get("alpha", ""))
        assert grants()["beta"] == "holds it now"
        assert tab.locator(".timeline rect").count() >= 1
        # A search by prefix, with the keyboard alone.
        tab.locator("#query").focus()
        tab.keyboard.type("orders/")
        tab.keyboard.press("Enter")
        until("it is found", lambda: [row[0] for row in page.rows("Locks that begin with orders/")] == ["orders/7"])
        tab.keyboard.press("Tab")
        page.close()

        # A stale token: somebody else was faster.
        page = Page(chromium, server).open("#/lock/orders%2F7")
        until("the holder", lambda: page.rows("Holder"))
        page.tab.get_by_role("button", name="Take the lock from beta").click()
        token = server.call("v1/locks/orders%2F7")["holder"]["fencing_token"]
        server.call("v1/locks/orders%2F7/break", {"fencing_token": token, "reason": "faster"})
        page.tab.get_by_label("Reason, which watchers see").fill("late")
        page.tab.get_by_label("Type the token").fill(str(token))
        page.tab.get_by_role("button", name="Break the lock").click()
        until("it says so", lambda: "another token" in (page.tab.locator("dialog [role=status]").text_content() or "")
              or "held" in (page.tab.locator("dialog [role=status]").text_content() or ""))
        assert server.call("v1/locks/orders%2F7")["holder"]["client_id"] == "gamma"
        page.close()
    server.end()


def shows_a_closed_lock(palisade, folder):
    """It is listed among the others; an operator opens it with a reason."""
    server = Server(palisade)
    server.acquire("orders/7", "the holder")
    server.release("nightly", server.acquire("nightly", "the job", at_least_for_ms=86_400_000))
    with browser() as chromium:
        page = Page(chromium, server).open()
        # The control reads the token of a holder that is not there.
        token = "lock.holder ? number(lock.holder.fencing_token) : \"\"];"
        blind = Page(chromium, server, plant=(token, "number(lock.holder.fencing_token)];")).open()
        rows = lambda one: {row[0]: row[2] for row in one.rows("All locks")}  # noqa: E731
        listed = {"nightly": "closed after its last grant", "orders/7": "the holder"}
        until("both are listed", lambda: rows(page) == listed, said=page.text)
        until("what is held is ranked", lambda: [row[0] for row in page.rows("Held longest")] == ["orders/7"], said=page.text)
        assert server.call("v1/ranking")["held"] == 1
        until("the control says that it failed", lambda: "this page failed" in blind.text())
        assert rows(blind) != listed, "the control shows no list"
        blind.close(tolerate=True)
        page.tab.get_by_role("link", name="nightly").first.click()
        until("it is closed", lambda: page.figure("state") == "closed")
        assert page.figure("opens in").startswith("23 h 59 min"), page.text()
        page.tab.get_by_role("button", name="Open …").click()
        send = page.tab.get_by_role("button", name="Open the lock")
        assert not send.is_enabled(), "without a reason"
        page.tab.get_by_label("Reason, which watchers see").fill("the job failed")
        send.click()
        until("it is free", lambda: page.figure("state") == "free")
        page.close()
    assert server.acquire("nightly", "the next")["lock_acquired"]
    server.end()


def shows_text_as_text(palisade, folder):
    """Markup in names and metadata stays text; nothing is asked of another host."""
    server = Server(palisade)
    evil = "<img src=//198.51.100.1/x onerror=alert(1)>"
    server.acquire(evil, f"c{evil}", metadata=f"m{evil}")
    with browser() as chromium:
        for view in ("#/", f"#/lock/{quote(evil, safe='')}", f"#/find/{quote('<img', safe='')}"):
            page = Page(chromium, server).open(view)
            until("the name is shown", lambda: evil in page.tab.locator("main").text_content())
            assert page.tab.locator("main img").count() == 0
            page.close()
        # The control puts names in as markup.
        planted = ("made.append(...children.flat().filter((child) => child !== null && child !== undefined));",
                   "for (const child of children.flat()) if (child instanceof Node) made.append(child);"
                   " else if (child !== null && child !== undefined) made.innerHTML += child;")
        page = Page(chromium, server, plant=planted).open()
        until("the control is found out", lambda: page.tab.locator("main img").count() > 0)
        try:
            page.close(tolerate=False)
            raise SystemExit("the control was not found out")
        except AssertionError as found:
            assert "198.51.100.1" in str(found), found
    server.end()


def shows_itself_to_everybody(palisade, folder):
    """No violation that axe knows, light and dark, wide and narrow; with screenshots."""
    server = Server(palisade)
    for at in range(12):
        server.acquire(f"job/{at}", f"worker-{at}.example-7f3a0b52c1", metadata=f"pod worker-{at}")
    server.queue("job/3", "worker-20")
    server.queue("job/3", "worker-21")
    server.acquire("report", "reader-1", mode="shared")
    server.release("nightly", server.acquire("nightly", "job", at_least_for_ms=TTL))
    views = {"overview": "#/", "lock": "#/lock/job%2F3", "found": "#/find/job", "free": "#/lock/nobody", "closed": "#/lock/nightly"}
    asks = {"lock": ("Take the lock", "break"), "closed": ("Open …", "open")}
    with browser() as chromium:
        for scheme in ("light", "dark"):
            for width in (1280, 400):
                for name, view in views.items():
                    page = Page(chromium, server, scheme=scheme, size=(width, 900)).open(view)
                    until("it is there", lambda: page.connection() == "live" and page.tab.locator("h2").count() > 0)
                    server.release("job/x", server.acquire("job/x", "short"))
                    if name == "overview":
                        until("a change", lambda: page.rows("Changes"))
                    if folder:
                        page.tab.screenshot(path=f"{folder}/{name}-{scheme}-{width}.png", full_page=True)
                    judged(page, f"{name}, {scheme}, {width}")
                    sideways = page.tab.evaluate("document.documentElement.scrollWidth - innerWidth")
                    assert sideways <= 0, f"{name} at {width}: {sideways} pixels stand out"
                    if name in asks:
                        button, verb = asks[name]
                        page.tab.get_by_role("button", name=button).click()
                        judged(page, f"{verb}, {scheme}, {width}")
                        if folder:
                            page.tab.screenshot(path=f"{folder}/{verb}-{scheme}-{width}.png")
                    page.close()
        planted = ('el("h1", {}, title)', 'el("img", {src: "data:,"})')
        page = Page(chromium, server, plant=planted).open()
        until("the control", lambda: page.connection() == "live")
        assert violations(page), "the control: a picture without words"
        page.close()
    server.end()


def violations(page):
    # The policy of the page admits no script of others, so axe runs in a world of its own.
    found = Axe().run(page.tab).response["violations"]
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes']]}" for one in found]


def judged(page, where):
    found = violations(page)
    assert not found, f"{where}: {found}"


def shows_what_the_rules_grant(palisade, folder):
    """The page asks for a token, and shows a message for everything that is not granted."""
    with tempfile.TemporaryDirectory() as rules:
        access = Path(rules) / "access.toml"
        access.write_text(
            '[auth]\n[[auth.principals]]\nname = "viewer"\n[[auth.principals]]\nname = "part"\n'
            '[[auth.rules]]\nprincipal = "viewer"\nprefix = ""\nverbs = ["observe", "hold"]\n'
            '[[auth.rules]]\nprincipal = "part"\nprefix = "a/"\nverbs = ["observe"]\n'
        )

        def token(principal):
            command = [palisade, "auth", "token", "new", principal, "--json", "--access", str(access)]
            return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["token"]

        viewer, part = token("viewer"), token("part")
        server = Server(palisade, "--access", str(access))
        server.acquire("a/1", "one", token=viewer)
        server.acquire("b/1", "two", token=viewer)
        with browser() as chromium:
            page = Page(chromium, server).open()
            tab = page.tab
            tab.get_by_role("heading", name="Who is asking?").wait_for()
            judged(page, "sign in")
            for wrong, said in (("pal_x", "not a token"), (viewer[:-1] + ("0" if viewer[-1] != "0" else "1"), "unknown")):
                tab.get_by_label("Token").fill(wrong)
                tab.get_by_role("button", name="Sign in").click()
                until(said, lambda: said in (tab.locator("[role=alert]").text_content() or ""))
            tab.get_by_label("Token").fill(viewer)
            tab.get_by_role("button", name="Sign in").click()
            until("all locks", lambda: {row[0] for row in page.rows("All locks")} == {"a/1", "b/1"})
            assert viewer not in tab.url and not tab.evaluate("document.cookie")
            tab.goto(f"{server.url}/#/lock/a%2F1")
            tab.get_by_role("button", name="Take the lock from one").click()
            tab.get_by_label("Type the token").fill("1")
            tab.get_by_label("Reason, which watchers see").fill("mine")
            tab.get_by_role("button", name="Break the lock").click()
            until("it is forbidden", lambda: "may not break" in (tab.locator("dialog [role=status]").text_content() or ""))
            page.close()

            page = Page(chromium, server).open()
            page.tab.get_by_label("Token").fill(part)
            page.tab.get_by_role("button", name="Sign in").click()
            until("a part", lambda: [row[0] for row in page.rows("All locks")] == ["a/1"])
            assert "b/1" not in page.tab.locator("body").text_content()
            until("why", lambda: "may not observe all locks" in page.tab.locator("main").text_content())
            page.close()
        server.end()


def keeps_what_was_asked_for(palisade, folder):
    """A further page is asked for while the first one is read again, or before that; while a button is down nothing moves."""
    server = Server(palisade)
    for at in range(150):
        server.acquire(f"lock-{at:03}")
    with browser() as chromium:
        # The control takes the answers in the order in which they come.
        for plant, rows in ((None, 150), (("|| question !== asked", ""), 100)):
            page = Page(chromium, server, plant).open()
            until("the first page", lambda: len(page.rows("All locks")) == 100)
            held = []
            page.tab.route(re.compile(r"/v1/locks\?(?!.*cursor=)"), lambda route: held.append(route))
            until("it is read again", lambda: page.tab.wait_for_timeout(50) or held)
            page.tab.get_by_role("button", name="Show more").click()
            until("both pages", lambda: len(page.rows("All locks")) == 150)
            with page.tab.expect_request("**/v1/status"):
                with page.tab.expect_response(re.compile(r"/v1/locks\?(?!.*cursor=)")):
                    held.pop().continue_()
            assert len(page.rows("All locks")) == rows
            page.tab.unroute_all(behavior="ignoreErrors")
            page.close()

        # A further page is on its way when the first one is due again. The control reads it, and forgets the further one.
        further = re.compile(r"/v1/locks\?.*cursor=")
        for plant, rows in ((None, 150), (("|| asking > 0 ?", "?"), 100)):
            page = Page(chromium, server, plant).open()
            until("the first page", lambda: len(page.rows("All locks")) == 100)
            held = []
            page.tab.route(further, lambda route: held.append(route))
            page.tab.get_by_role("button", name="Show more").click()
            until("it is asked for", lambda: page.tab.wait_for_timeout(50) or held)
            for _ in range(2):
                with page.tab.expect_request("**/v1/ranking"):
                    pass
            with page.tab.expect_request("**/v1/ranking"):
                with page.tab.expect_response(further):
                    held.pop().continue_()
            assert len(page.rows("All locks")) == rows
            page.tab.unroute_all(behavior="ignoreErrors")
            page.close()

        # The control draws whatever is down.
        for plant, stays in ((None, True), (("|| (pressed && place.contains(pressed))", ""), False)):
            page = Page(chromium, server, plant).open()
            until("the first page", lambda: len(page.rows("All locks")) == 100)
            button = page.tab.get_by_role("button", name="Show more")
            button.hover()
            page.tab.mouse.down()
            button = button.element_handle()
            for _ in range(2):
                with page.tab.expect_request("**/v1/ranking"):
                    pass
            assert button.is_visible() == stays
            page.tab.mouse.up()
            until("what a press asked for", lambda: len(page.rows("All locks")) == (150 if stays else 100))
            page.close()
    server.end()


# The most that the page may load for its first view, besides itself.
FIRST_VIEW_BYTES = 256 * 1024


def shows_many_locks(palisade, folder):
    """PALISADE_PAGE_LOCKS of them; 20,000 unless it says more."""
    count = int(os.environ.get("PALISADE_PAGE_LOCKS", "20000"))
    server = Server(palisade)
    began = time.monotonic()
    server.fill(count)
    filled = time.monotonic() - began
    server.queue("lock-77", "waits")
    with browser() as chromium:
        Page(chromium, server).open().close(tolerate=True)
        page = Page(chromium, server)
        # From the navigation to the first rows, by the browser's clock.
        page.tab.add_init_script(
            """new MutationObserver((_, observer) => {
                if (!document.querySelector('table[aria-label="All locks"] tbody tr')) return;
                window.firstView = performance.now();
                observer.disconnect();
            }).observe(document, { childList: true, subtree: true });"""
        )
        page.open()
        until("rows", lambda: page.tab.evaluate("window.firstView ?? 0"), 120)
        first = page.tab.evaluate("window.firstView")
        # The first view costs the same with any number of locks: one page of the listing, and rankings of a fixed length.
        assert len(page.rows("All locks")) == 100, len(page.rows("All locks"))
        loaded = page.tab.evaluate(
            "performance.getEntriesByType('resource').map(one => [one.name, one.decodedBodySize, one.startTime])"
        )
        listings = [size for name, size, start in loaded if "v1/locks?" in name and start <= first]
        assert len(listings) == 1 and listings[0] > 0, loaded
        # On a busy machine the page has been refreshed since.
        view = sum({name: size for name, size, _ in loaded}.values())
        assert view < FIRST_VIEW_BYTES, loaded
        # Control: all locks would not fit in the bound.
        assert listings[0] * count / 100 > FIRST_VIEW_BYTES, listings
        until("the figure", lambda: page.figure("locks") == str(count))
        until("the ranking", lambda: [row[0] for row in page.rows("Longest queues")] == ["lock-77"], 120)
        until("the oldest", lambda: len(page.rows("Held longest")) == 10)
        ranked = server.call("v1/ranking")
        tokens = [lock["holder"]["fencing_token"] for lock in ranked["oldest"]]
        assert tokens == list(range(1, 51)), tokens
        assert [row[0] for row in page.rows("Held longest")] == [lock["resource_id"] for lock in ranked["oldest"][:10]]
        page.tab.get_by_role("button", name="Show more").click()
        until("a second page", lambda: len(page.rows("All locks")) == 200)
        page.tab.locator("#query").fill(f"lock-{count - 1}")
        page.tab.keyboard.press("Enter")
        until("one of many", lambda: [row[0] for row in page.rows(f"Locks that begin with lock-{count - 1}")]
              == [f"lock-{count - 1}"])
        memory = page.tab.evaluate("performance.memory?.usedJSHeapSize ?? 0") / 1e6
        page.close()
    print(f"{count} locks, acquired in {filled:.1f} s: first view after {first:.0f} ms and {view / 1e3:.0f} kB, {memory:.0f} MB in the tab")
    server.end()


def run(palisade, scenario, folder=None):
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
    try:
        globals()[scenario](palisade, folder)
    except Error as error:
        raise SystemExit(f"the browser: {error}") from error


if __name__ == "__main__":
    run(*sys.argv[1:])
