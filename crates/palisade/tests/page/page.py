"""Shows the page of a real server in a real browser.

    python page.py PALISADE SCENARIO [FOLDER]

The scenarios are the functions whose names begin with `shows_`. Screenshots are written to FOLDER. Each scenario has a
control: the same page with one mistake planted into its script must be found out. The packages playwright and
axe-playwright-python come from PyPI, the browser from Debian's package chromium (or CHROMIUM).

While the page is being written, PALISADE_PAGE=crates/palisade-server/src/net/http/page shows the files of that folder
instead of those that the program was built with.
"""

import faulthandler
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import uuid
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Error

from harness import ORDERING, TTL, WIDTHS, Cluster, Page, Paused, Server, browser, judged, until, violations, withheld


def shows_what_the_interface_says(palisade, folder):
    """Under changes, with queues, and after the server was killed."""
    server = Server(palisade)
    with browser() as chromium:
        page = Page(chromium, server).open()
        # The control does not follow changes again after they broke off.
        deaf = Page(
            chromium, server, plant=("for (let wait = 250; !signal", "for (let wait = 250; wait === 250 && !signal")
        )
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
        shown_from = lambda: "what you see is from" in page.tab.locator("#connection").text_content()  # noqa: E731
        until("the page says that nobody answers", lambda: page.connection() == "lost" and shown_from())
        until("it says so in red", lambda: page.alarm("This server does not answer"))
        assert {"figures", "list", "ranking"} <= page.old().keys(), page.old()
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
    with browser() as chromium:
        page = Page(chromium, server).open()
        # The control shows the refusal in place of the list.
        forgets = Page(chromium, server, plant=("if (!this.answer) return", "if (true) return")).open()
        found = Page(chromium, server).open("#/find/orders")
        names = lambda: [row[0] for row in found.rows("Locks that begin with orders")]  # noqa: E731
        until("the locks of a prefix", lambda: names() == ["orders/7"])
        tabs = (page, forgets, found)
        for one in tabs[:2]:
            one.until_agrees("at first")
        refusal = {"error": {"code": "unavailable", "message": "not now"}}
        for one in tabs:
            one.tab.route("**/v1/locks?*", lambda route: route.fulfill(status=503, json=refusal))
        for one in tabs:
            until("it says why", lambda one=one: "not now" in one.text())
            until("it is not green", lambda one=one: one.connection() == "lost")
        assert "as of" in page.old().get("list", ""), page.old()
        assert [row[0] for row in page.rows("All locks")] == ["orders/7"] and names() == ["orders/7"], (
            "what was seen last stays"
        )
        assert page.alarm("The server cannot answer now"), page.alarms()
        assert not forgets.rows("All locks"), "the control: a list that is gone"
        for one in tabs:
            one.tab.unroute("**/v1/locks?*")
        server.acquire("orders/8", "another holder")
        page.until_agrees("after a refusal")
        until("the locks of a prefix again", lambda: names() == ["orders/7", "orders/8"], said=found.text)
        until(
            "nothing is old", lambda: not page.old() and not page.red() and page.connection() == "live", said=page.text
        )
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
        until("the second grant", lambda: grants().get("beta") == "holds it now")
        assert tab.locator(".timeline rect").count() >= 1
        # A late write stands with its grant. The control reads no reports.
        mute = Page(chromium, server, plant=("rejections: grant.rejections,", "rejections: [],")).open(
            "#/lock/orders%2F7"
        )
        report = {"resource": "the database", "operation": "UPDATE", "highest": holder["fencing_token"]}
        report |= {"fencing_token": first["fencing_token"]}
        assert server.call("v1/locks/orders%2F7/rejections", report)["recorded"]
        until(
            "the late write", lambda: "UPDATE at the database was refused as late" in grants()["alpha"], said=page.text
        )
        assert grants()["beta"] == "holds it now"
        until("the control has the grants", lambda: any("the host is gone" in row[-1] for row in mute.rows("Grants")))
        assert "refused" not in mute.tab.locator("main").text_content(), "the control"
        mute.close()
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
        until(
            "it says so",
            lambda: (
                "another token" in (page.tab.locator("dialog [role=status]").text_content() or "")
                or "held" in (page.tab.locator("dialog [role=status]").text_content() or "")
            ),
        )
        assert server.call("v1/locks/orders%2F7")["holder"]["client_id"] == "gamma"
        page.close()

        page = Page(chromium, server).open("#/lock/orders%2F7")
        until("the late write", lambda: any("refused as late" in row[-1] for row in page.rows("Grants")))
        page.pictures(folder, "history")
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
        token = 'lock.holder ? number(lock.holder.fencing_token) : ""];'
        blind = Page(chromium, server, plant=(token, "number(lock.holder.fencing_token)];")).open()
        rows = lambda one: {row[0]: row[2] for row in one.rows("All locks")}  # noqa: E731
        listed = {"nightly": "closed after its last grant", "orders/7": "the holder"}
        until("both are listed", lambda: rows(page) == listed, said=page.text)
        until(
            "what is held is ranked",
            lambda: [row[0] for row in page.rows("Held longest")] == ["orders/7"],
            said=page.text,
        )
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
        planted = (
            "made.append(...children.flat().filter((child) => child !== null && child !== undefined));",
            "for (const child of children.flat()) if (child instanceof Node) made.append(child);"
            " else if (child !== null && child !== undefined) made.innerHTML += child;",
        )
        page = Page(chromium, server, plant=planted).open(f"#/lock/{quote(evil, safe='')}")
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
    views = {
        "overview": "#/",
        "lock": "#/lock/job%2F3",
        "found": "#/find/job",
        "free": "#/lock/nobody",
        "closed": "#/lock/nightly",
    }
    asks = {"lock": ("Take the lock", "break"), "closed": ("Open …", "open")}
    with browser() as chromium:
        for scheme in ("light", "dark"):
            for width in WIDTHS:
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
        planted = ('el("h1", { class: title.length > 60 ? "long" : null }, title)', 'el("img", {src: "data:,"})')
        page = Page(chromium, server, plant=planted).open()
        until("the control", lambda: page.connection() == "live")
        assert violations(page), "the control: a picture without words"
        page.close()
    server.end()


def shows_a_cluster_without_majority(palisade, folder):
    """First one node is missing, then two: what was seen last stays, and the page names the missing ones."""
    cluster = Cluster(palisade)
    leader, follower, third = cluster.nodes
    names = [node.call("v1/cluster")["node"][:8] for node in cluster.nodes]

    def held(lock):
        try:
            return leader.acquire(
                lock, f"worker-{lock[-1]}.example", request_id=str(uuid.uuid5(uuid.NAMESPACE_URL, lock))
            )
        except OSError:
            return None  # On a busy machine another node may be elected just now.

    for at in range(4):
        until("it is held", lambda at=at: held(f"job/{at}"))
    follower.queue("job/1", "the next")
    with browser() as chromium:
        page = Page(chromium, follower).open()
        # The controls: one forgets what it saw, one does not count the votes, one does not look whether nodes are there.
        forgets = Page(chromium, follower, plant=("if (!this.answer) return", "if (true) return")).open()
        blind = Page(chromium, follower, plant=("nodes.leader === null && spare < 0", "false")).open()
        deaf = Page(chromium, follower, plant=("} else if (gone.length > 0) {", "} else if (false) {")).open()
        tabs = (page, forgets, blind, deaf)
        locks = lambda one: [row[0] for row in one.rows("All locks")]  # noqa: E731
        for one in tabs:
            until("four locks", lambda one=one: len(locks(one)) == 4, said=one.text)
            until("all is well", lambda one=one: one.connection() == "live" and not one.red())
        cards = lambda: page.tab.locator(".nodes li").all_inner_texts()  # noqa: E731
        until(
            "three nodes",
            lambda: len(cards()) == 3 and all("connected" in card or "this node" in card for card in cards()),
            said=page.text,
        )
        order = page.tab.evaluate("[...document.querySelectorAll('[data-part]')].map(one => one.dataset.part)")
        assert order[0] == "nodes", order
        page.pictures(folder, "cluster")

        third.kill()
        until("a node is missing", lambda: names[2] in page.alarm("A node is missing", "warn"), said=page.text)
        assert "not if another one fails" in page.alarm("A node is missing", "warn")
        until("locks are granted", lambda: page.connection() == "live", said=page.text)
        until(
            "its card says so",
            lambda: any(names[2] in card and ("refused" in card or "not connected" in card) for card in cards()),
            said=page.text,
        )
        page.pictures(folder, "node-missing")
        assert not deaf.alarm("A node is missing", "warn"), "the control: a page that does not look"

        leader.kill()
        for one in (page, forgets):
            until("no majority", lambda one=one: one.alarm("No majority: nothing is granted"), said=one.text)
        said = page.alarm("No majority")
        assert names[0] in said and names[2] in said and "1 of 3" in said, said
        until("it is not green", lambda: page.connection() == "lost")
        until("what is old is grey", lambda: {"figures", "list", "ranking"} <= page.old().keys(), said=page.text)
        # For several rounds of questions: the page alternated between two views once.
        for _ in range(3):
            with page.tab.expect_request("**/v1/locks?*"):
                pass
            assert len(locks(page)) == 4 and page.figure("locks") == "4", "what was seen last stays"
            assert page.alarm("No majority") and len(cards()) == 3 and "as of" in page.old()["list"]
        page.pictures(folder, "no-majority")
        until("the control forgets", lambda: not forgets.rows("All locks"))
        until("the control does not count", lambda: blind.alarm("No node leads"))

        third.start()
        until("a majority", lambda: page.connection() == "live" and not page.alarm("No majority"), said=page.text)
        until("nothing is old", lambda: not page.old(), said=page.text)
        assert len(locks(page)) == 4
        for one in tabs:
            one.close()
    cluster.end()


def shows_a_full_disk(palisade, folder):
    """A disk that has no room for a segment of the log, and then has."""
    with tempfile.TemporaryDirectory() as place:
        disk = f"{place}/disk"
        os.mkdir(disk)
        small = f'mount -t tmpfs -o size=8m none {disk}; exec "$@"'
        server = Server(palisade, data=f"{disk}/data", around=("unshare", "--mount", "sh", "-c", small, "sh"))
        with browser() as chromium:
            page = Page(chromium, server).open()
            # The control does not ask for the disk, as the page before this one.
            green = Page(chromium, server, plant=("!source.error && source.last?.log_full", "false")).open()
            until(
                "it is said in red",
                lambda: "granted" in page.alarm("The disk is full: nothing is granted"),
                said=page.text,
            )
            until("it is not green", lambda: page.connection() == "lost")
            assert "disk full" in page.tab.locator(".nodes").inner_text(), page.text()
            try:
                server.acquire("a")
                raise SystemExit("something was granted")
            except urllib.error.HTTPError as refused:
                assert refused.code == 503, refused
            page.pictures(folder, "disk-full")
            until("the control is green", lambda: green.connection() == "live" and not green.red())
            subprocess.run(
                ["nsenter", "--mount", "--target", str(server.process.pid), "mount", "-o", "remount,size=100m", disk],
                check=True,
            )
            until(
                "there is room",
                lambda: page.connection() == "live" and not page.alarm("The disk is full"),
                said=page.text,
            )
            assert server.acquire("a")["lock_acquired"]
            for one in (page, green):
                one.close()
        server.end()


def shows_a_stall(palisade, folder):
    """The thread that orders requests does not run; then the whole process does not."""
    server = Server(palisade)
    server.acquire("orders/7", "the holder")
    server.queue("orders/7", "the next")
    with browser() as chromium:
        page = Page(chromium, server).open()
        # The control does not compare the silence of the authority with the answers of its server.
        blind = Page(chromium, server, plant=("&& status.silent() > STALL", "&& false")).open()
        for one in (page, blind):
            one.until_agrees("at first")
            until("all is read", lambda one=one: one.rows("Longest queues"))
        paused = Paused(server.process.pid, ORDERING)
        until("it stalls", lambda: page.alarm("The authority does not answer: nothing is granted"), said=page.alarms)
        until("it is not green", lambda: page.connection() == "lost")
        until("what is old is grey", lambda: {"figures", "list", "ranking"} <= page.old().keys())
        assert [row[0] for row in page.rows("All locks")] == ["orders/7"], "what was seen last stays"
        assert server.call("healthz")["status"] == "serving"
        page.pictures(folder, "stalled")
        assert not blind.alarm("The authority does not answer"), "the control"
        paused.go_on()
        until("it goes on", lambda: page.connection() == "live" and not page.old(), said=page.text)
        until("it says that it was away", lambda: page.alarm("The authority was away", "warn"), said=page.text)
        page.until_agrees("after the stall")

        server.process.send_signal(signal.SIGSTOP)
        until("nothing answers", lambda: page.alarm("This server does not answer"), said=page.alarms)
        assert page.rows("All locks") and page.connection() == "lost"
        for _ in range(2):
            with page.tab.expect_request("**/healthz"):
                pass
        assert "does not answer" in page.tab.locator(".nodes").inner_text(), page.tab.locator("main").inner_text()
        page.pictures(folder, "unreachable")
        server.process.send_signal(signal.SIGCONT)
        until("it goes on", lambda: page.connection() == "live" and not page.old(), said=page.text)
        for one in (page, blind):
            one.close()
    server.end()


def shows_an_expiring_certificate(palisade, folder):
    """A certificate of three days, which is replaced by one of thirty."""
    with tempfile.TemporaryDirectory() as place:

        def certificate(days):
            names = ["-subj", "/CN=locks", "-addext", "subjectAltName=IP:127.0.0.1"]
            made = [
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-keyout",
                f"{place}/new.key",
                "-out",
                f"{place}/new.pem",
            ]
            subprocess.run(
                ["openssl", "req", "-x509", *made, *names, "-days", str(days)], check=True, capture_output=True
            )
            for kind in ("key", "pem"):
                os.replace(f"{place}/new.{kind}", f"{place}/server.{kind}")

        certificate(3)
        server = Server(palisade, "--tls-cert", f"{place}/server.pem", "--tls-key", f"{place}/server.key")
        with browser() as chromium:
            page = Page(chromium, server).open()
            late = Page(chromium, server, plant=("7 * 86_400_000", "0 * 86_400_000")).open()
            until("it is said in red", lambda: page.alarm("The certificate of this server ends in"), said=page.text)
            said = page.alarm("The certificate of this server ends in")
            assert "2 days" in said and "--tls-cert" in said, said
            until("locks are granted", lambda: page.connection() == "live")
            page.pictures(folder, "certificate")
            until("the control is there", lambda: late.connection() == "live")
            assert not late.red(), "the control: a page that says it at the end"
            certificate(30)
            # A connection has the certificate of its beginning, and the page asks for the newest.
            until("it was replaced", lambda: not page.red(), said=page.text)
            for one in (page, late):
                one.close()
        server.end()


def shows_an_empty_server(palisade, folder):
    """The page says what to type, and that works."""
    server = Server(palisade)
    with browser() as chromium:
        page = Page(chromium, server).open()
        silent = Page(chromium, server, plant=("none ? firstSteps() : null", "null")).open()
        typed = page.tab.locator("pre")
        until("it says what to type", lambda: typed.count() == 2)
        page.pictures(folder, "empty")
        run, curl = typed.all_text_contents()
        assert run.startswith("palisade run ") and server.url in run and server.url in curl
        answer = json.loads(subprocess.run(["sh", "-c", curl], check=True, capture_output=True).stdout)
        assert answer["lock_acquired"], answer
        until(
            "it is listed",
            lambda: [row[0] for row in page.rows("All locks")] == ["orders"] and typed.count() == 0,
            said=page.text,
        )
        server.release("orders", answer)
        until("it is empty again", lambda: typed.count() == 2)
        job = subprocess.Popen([palisade, *shlex.split(run)[1:]])
        until("it is listed again", lambda: [row[0] for row in page.rows("All locks")] == ["orders"], said=page.text)
        job.terminate()
        job.wait()
        until("the control is there", lambda: silent.connection() == "live")
        assert silent.tab.locator("pre").count() == 0, "the control"
        for one in (page, silent):
            one.close()
    server.end()


def shows_long_names(palisade, folder):
    """Names of 255 bytes that differ at their ends only."""
    server = Server(palisade)
    names = [f"orders/{'eu-central-1/' * 18}".ljust(250, "x") + f"/{at:04}" for at in range(3)]
    for at, name in enumerate(names):
        server.acquire(name, f"worker-{'pod-' * 60}".ljust(250, "y") + f"-{at:04}", metadata="m" * 250)
    server.queue(names[0], f"waiter-{'pod-' * 60}".ljust(255, "z"))
    with browser() as chromium:
        page = Page(chromium, server).open()
        # The control shows names as they are.
        long = Page(chromium, server, plant=("if (!isLong(name)) return", "if (true) return")).open()
        tall = "[...document.querySelectorAll('table[aria-label=\"All locks\"] tbody tr')].map(row => row.clientHeight)"
        for one in (page, long):
            until("three locks", lambda one=one: len(one.rows("All locks")) == 3)
        ends = """[...document.querySelectorAll('table[aria-label="All locks"] td.name .short')].map(one => {
            const tail = document.createRange();
            tail.selectNodeContents(one.lastChild);
            const shown = one.getBoundingClientRect(), end = tail.getBoundingClientRect();
            return end.left - shown.left > 20 && end.width > 20 && end.right <= shown.right + 1;
        })"""
        cut = """[...document.querySelectorAll('table[aria-label="All locks"] td.name .front')]
            .map(one => one.scrollWidth > one.clientWidth)"""
        for width in WIDTHS:
            for one in (page, long):
                one.tab.set_viewport_size({"width": width, "height": 900})
            assert max(page.tab.evaluate(tall)) < 40, page.tab.evaluate(tall)
            assert page.tab.evaluate(ends) == [True] * 3, f"both ends are shown at {width}"
            assert page.tab.evaluate(cut) == [True] * 3, f"the middle is left out at {width}"
            assert long.tab.evaluate(ends) != [True] * 3, "the control"
        assert {row[0] for row in page.rows("All locks")} == set(names), "a copy is the whole name"
        page.pictures(folder, "long-names")
        page.tab.get_by_role("link", name=names[0], exact=True).first.click()
        until("its page", lambda: page.rows("Holder"))
        server.acquire("worker-1.example", "worker-1.example")
        wide = Page(chromium, server).open("#/find/worker")
        until("a name that has room", lambda: wide.rows("Locks that begin with worker"))
        assert (
            wide.tab.evaluate("[...document.querySelectorAll('.front')].map(one => one.scrollWidth > one.clientWidth)")
            == [False] * 2
        )
        wide.close()
        assert page.tab.locator("h1").text_content() == names[0]
        page.pictures(folder, "long-name")
        for one in (page, long):
            one.close()
    server.end()


def shows_rates_expiries_and_the_oldest_waiter(palisade, folder):
    """Against the counts of the interface."""
    server = Server(palisade)
    server.acquire("old/queue", "the holder")
    server.queue("old/queue", "waits longest")
    server.acquire("new/queue/0", "another holder")
    server.queue("new/queue/0", "a")
    server.queue("new/queue/0", "b")
    with browser() as chromium:
        page = Page(chromium, server).open()
        # The control adds up nothing.
        still = Page(chromium, server, plant=("[newest[name] - oldest[name],", "[0,")).open()
        for one in (page, still):
            until("a first answer", lambda one=one: one.figure("expired") == "0")
        until("a second answer", lambda: page.figure("grants a second") == "0")
        for at in range(5):
            server.acquire(f"short/{at}", "dies", lease_duration_ms=200)
        until("they have expired", lambda: server.call("v1/status")["counts"]["expired"] == 5)
        until("the page counts them", lambda: page.figure("expired") == "5", said=page.text)
        assert float(page.figure("grants a second")) > 0, page.text()
        until("the oldest waiter", lambda: (page.figure("oldest waiter") or "").endswith(" s"))
        shown = page.tab.locator(".figures div", has_text="oldest waiter").get_by_role("link").text_content()
        longest = server.call("v1/ranking")["longest_wait"]
        assert shown == longest["resource_id"] == "old/queue", longest
        assert [row[0] for row in page.rows("Longest queues")][0] == "new/queue/0", "the longest queue is another one"
        page.pictures(folder, "rates")
        until("the control has the answer", lambda: "5 since" in still.text())
        assert still.figure("expired") == "0", "the control"
        for one in (page, still):
            one.close()
    server.end()


def shows_refused_late_writes(palisade, folder):
    """As they are reported, and how many reports were of grants that nobody had."""
    server = Server(palisade)
    first = server.acquire("orders/7", "late")["fencing_token"]
    server.call("v1/locks/orders%2F7/break", {"fencing_token": first, "reason": "it hangs"})
    second = server.acquire("orders/7", "the holder")["fencing_token"]

    def report(token, highest):
        body = {"fencing_token": token, "highest": highest, "resource": "the database", "operation": "UPDATE"}
        return server.call("v1/locks/orders%2F7/rejections", body)["recorded"]

    with browser() as chromium:
        page = Page(chromium, server).open()
        plain = Page(chromium, server)
        plain.tab.route("**/v1/status", withheld)
        plain.open()
        until(
            "none so far", lambda: "None was reported since" in page.tab.locator("main").text_content(), said=page.text
        )
        assert report(first, second) and not report(second + 1, second + 2)
        until(
            "one of each",
            lambda: page.figure("refused in all") == page.figure("reports of unknown grants") == "1",
            said=page.text,
        )
        assert page.figure("refused") == "1", "while the page is open"
        until("the latest one", lambda: len(page.rows("Latest late writes")) == 1, said=page.text)
        (shown,) = page.rows("Latest late writes")
        assert shown[1:4] == ["orders/7", str(first), "late"], shown
        assert shown[4] == f"UPDATE at the database, which had seen token {second}", shown
        later = Page(chromium, server).open()
        until(
            "one of before",
            lambda: later.figure("refused in all") == "1" and later.figure("refused") == "0",
            said=later.text,
        )
        until("the latest one of before", lambda: len(later.rows("Latest late writes")) == 1, said=later.text)
        page.pictures(folder, "late-writes")

        # Names without a place to break a line, and a report of an earlier day.
        name, client = "warehouse/eu-west-1/orders/2026-11-29", "worker-7.example-7f3a0b52c1"
        token = server.acquire(name, client)["fencing_token"]
        long = {
            "fencing_token": token,
            "highest": token + 1,
            "resource": "postgres://" + "orders_of_" * 20,
            "operation": "INSERT",
        }
        for _ in range(3):
            assert server.call(f"v1/locks/{quote(name, safe='')}/rejections", long)["recorded"]

        def earlier(route):
            answer = route.fetch().json()
            for grant in answer["grants"]:
                for one in grant["rejections"]:
                    one["reported_at"] = "2026-01-31" + one["reported_at"][10:]
            route.fulfill(json=answer)

        fits = Page(chromium, server)
        # The control: the column as any other one, as it was.
        control = Page(chromium, server, plant=('["refused", "said",', '["refused", "",'))
        for one in (fits, control):
            one.tab.route("**/v1/history?refused=true*", earlier)
            one.open()
            until("both late writes", lambda one=one: len(one.rows("Latest late writes")) == 2, said=one.text)
        for width in WIDTHS:
            fits.tab.set_viewport_size({"width": width, "height": 900})
            cut = fits.cut("Latest late writes", "refused")
            assert not cut, f"{cut} at {width}"
        fits.pictures(folder, "late-writes-long")
        control.tab.set_viewport_size({"width": WIDTHS[-1], "height": 900})
        assert control.cut("Latest late writes", "refused"), "the control: a column that does not give way"
        for one in (fits, control):
            one.close()
        until("a server without a history", lambda: plain.figure("locks") == "2")
        assert "late writes" not in plain.tab.locator("main").text_content(), "the control: nothing is counted"
        for one in (page, plain, later):
            one.close()
    server.end()


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
            for wrong, said in (
                ("pal_x", "not a token"),
                (viewer[:-1] + ("0" if viewer[-1] != "0" else "1"), "unknown"),
            ):
                tab.get_by_label("Token").fill(wrong)
                tab.get_by_role("button", name="Sign in").click()
                until(said, lambda: said in (tab.locator("main [role=alert]").text_content() or ""))
            tab.get_by_label("Token").fill(viewer)
            tab.get_by_role("button", name="Sign in").click()
            until("all locks", lambda: {row[0] for row in page.rows("All locks")} == {"a/1", "b/1"})
            assert viewer not in tab.url and not tab.evaluate("document.cookie")
            tab.goto(f"{server.url}/#/lock/a%2F1")
            tab.get_by_role("button", name="Take the lock from one").click()
            tab.get_by_label("Type the token").fill("1")
            tab.get_by_label("Reason, which watchers see").fill("mine")
            tab.get_by_role("button", name="Break the lock").click()
            until(
                "it is forbidden", lambda: "may not break" in (tab.locator("dialog [role=status]").text_content() or "")
            )
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
            with page.tab.expect_request("**/v1/ranking"):
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
        until(
            "one of many",
            lambda: [row[0] for row in page.rows(f"Locks that begin with lock-{count - 1}")] == [f"lock-{count - 1}"],
        )
        memory = page.tab.evaluate("performance.memory?.usedJSHeapSize ?? 0") / 1e6
        page.close()
    print(
        f"{count} locks, acquired in {filled:.1f} s: first view after {first:.0f} ms and {view / 1e3:.0f} kB, {memory:.0f} MB in the tab"
    )
    server.end()


def run(palisade, scenario, folder=None):
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
    try:
        globals()[scenario](palisade, folder)
    except Error as error:
        raise SystemExit(f"the browser: {error}") from error


if __name__ == "__main__":
    # A scenario that hangs says where, and fails.
    faulthandler.dump_traceback_later(600, exit=True)
    run(*sys.argv[1:])
