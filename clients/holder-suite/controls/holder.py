"""A small holder of its own, with a flaw of one's choice: the suite must find each of them.

    python3 holder.py [--flaw FLAW]

Without a flaw it keeps every rule, which shows that what the suite finds is the flaw and nothing else.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
import uuid
from typing import Any, Optional

FLAWS = {
    "deadline-from-answer": "counts the deadline from the arrival of the answer",
    "remaining-ms": "takes remaining_ms instead of valid_for_ms",
    "ignores-deadline": "holds until the server says otherwise",
    "revives": "believes an acknowledgement that came after the deadline",
    "new-request-ids": "repeats an acquire with a new request id",
    "forgets-cancelled": "does not abandon a cancelled acquire",
    "releases-late": "records the release when it is answered",
    "exports-and-releases": "releases a lease that it exports",
    "exports-and-renews": "renews a lease that it has exported",
    "loses-exported": "announces a loss when it exports",
    "adopts-unasked": "takes an exported lease for held before a renewal is acknowledged",
    "monotonic": "reads a clock that stops in suspension",
    "one-attempt": "waits for the answer to its first release for as long as it has patience",
    "names-by-token": "renews and releases a reader by its phase's token",
    "any-slots": "takes the first slot, whatever the answer says",
    "forgets-delays": "asks for no time after its grant",
    "late-downgrade": "holds as a writer until a downgrade is answered",
    "keeps-writer": "holds as a writer after a downgrade",
    "keeps-token": "goes on with the reader's token after an upgrade",
    "keeps-reader": "holds as a reader after an upgrade",
    "believes-upgrade": "takes an upgrade that was denied for granted",
    "rests-while-upgrading": "does not renew a reader while its upgrade waits",
    "upgrades-lost": "takes the upgrade of a reader that was lost meanwhile",
    "superseded-is-loss": "takes a reader that its own upgrade superseded for lost",
    "upgrades-anything": "asks for the upgrade of any grant, and ends it",
    "abandons-upgrade": "abandons an upgrade while the reader believes",
    "follows-redirects": "follows redirects",
    "follows-leaders": "follows one leader after the other without a pause",
    "one-by-one": "asks for several locks one after the other",
    "renews-first": "renews only the first of several locks",
    "late-round": "counts from the last request of a round of renewals",
    "part-by-part": "extends the deadline although not all of its locks were acknowledged",
    "hurries-round": "gives a round of renewals the time of one attempt, and begins it anew with the same lock",
    "finishes-round": "goes on with a round of renewals after a release",
    "release-is-loss": "takes a lock that it released for lost",
    "forgets-part": "forgets a lock whose release got no answer",
    "leaves-rest": "does not release what is left beside a lock that was revoked",
    "forgets-also": "repeats a request with the first name only",
    "believes-any-answer": "does not look at the nonce of an answer",
    "same-nonce": "gives all of its attempts one nonce",
    "keeps-connection": "goes on with the connection on which another request's answer came",
    "believes-other-lock": "does not compare a grant with what it asked for",
    "believes-renewal": "does not compare a renewal or a release with its grant",
    "patient-acquire": "gives the first attempt of an acquire all of its time",
    "bounds-reads": "bounds each read of an answer, and not the whole",
    "stays": "leaves an address only when nobody is there",
    "denied-by-202": "takes an answer that it still waits for a denial",
    "no-poll": "asks for no sign of life while it waits",
    "rests-after-break": "rests after a broken connection for longer than its place in the queue is kept",
    "one-certificate": "reads the files of its certificate once",
    "nameless-certificate": "does not look at its certificate when no answer comes",
    "fork-holds": "holds its parent's grants after a fork",
    "fork-releases": "releases its parent's grants after a fork",
    "deaf": "ignores what a listen says",
    "told-is-lost": "takes a reader for lost that a listen calls superseded by its own upgrade",
    "forgets-unwanted": "does not say that nobody waits any more",
    "suspends-nobody": "does not say that a renewal failed",
    "always-listens": "listens although notices are off",
    "names-all": "names all of its grants in one listen",
    "hurries-listen": "listens again without a pause",
    "listen-suspends": "says that a lease is suspended when a listen failed",
}
GONE = ("expired", "revoked", "superseded", "not_held", "stale")
RETRY = ("unavailable", "request_timeout", "unknown_outcome", "internal", "not_leader")
CAN = ["addresses", "cancel", "delays", "fork", "handover", "notices", "permits", "sets", "shared", "tls", "update"]
EXPORTED = "palisade-lease/1."
say_lock = threading.Lock()


def say(message: dict[str, Any]) -> None:
    with say_lock:
        print(json.dumps(message), flush=True)


class Refused(Exception):
    def __init__(self, code: str, leader: Optional[str] = None) -> None:
        super().__init__(code)
        self.code, self.leader = code, leader


class Holder:
    def __init__(self, flaw: Optional[str]) -> None:
        self.flaw = flaw
        self.urls: list[str] = []
        self.at = 0
        self.leader: Optional[str] = None
        self.patience = 5000.0
        # The address whose last attempt was answered.
        self.answered: Optional[str] = None
        self.kept: dict[str, http.client.HTTPConnection] = {}
        # The paths of its CA, its certificate and its key, and the TLS context made from them.
        self.files: Optional[dict[str, str]] = None
        self.tls: Optional[ssl.SSLContext] = None
        self.guard = threading.Lock()
        self.grants: dict[str, Grant] = {}
        self.cancelled: set[int] = set()
        # Whether it listens, and the grants of each listen.
        self.notices = False
        self.groups: list[list[Grant]] = []
        # The operation of each command that is in progress: the path and the body of the request, until when it
        # matters, and the reader that it upgrades.
        self.under_way: dict[int, tuple[str, dict[str, Any], float, Optional[Grant]]] = {}

    def now(self) -> float:
        clock = time.CLOCK_MONOTONIC if self.flaw == "monotonic" else time.CLOCK_BOOTTIME
        return time.clock_gettime_ns(clock) / 1e6

    def address(self) -> str:
        return self.leader or self.urls[self.at % len(self.urls)]

    def once(
        self,
        method: str,
        path: str,
        body: Any,
        timeout_ms: float,
        expected: Optional[dict[str, Any]] = None,
        to: Optional[str] = None,
    ) -> dict[str, Any]:
        if self.flaw != "keeps-connection":
            return self.exchange(method, path, body, timeout_ms, expected, to)
        with self.guard:
            return self.exchange(method, path, body, timeout_ms, expected, to)

    def connection(self, host: str, port: Optional[int]) -> http.client.HTTPConnection:
        if self.files is None:
            return http.client.HTTPConnection(host, port)
        if self.tls is None or self.flaw != "one-certificate":
            self.tls = ssl.create_default_context(cafile=self.files["ca"])
            self.tls.load_cert_chain(self.files["cert"], self.files["key"])
        return http.client.HTTPSConnection(host, port, context=self.tls)

    def cut(self, connection: http.client.HTTPConnection) -> threading.Timer:
        """Ends the exchange when its time is over: the connection's own bounds each read alone."""

        def end(sock: Any = connection.sock) -> None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(connection.timeout or 0, end)
        timer.daemon = True
        if self.flaw not in ("bounds-reads", "keeps-connection"):
            timer.start()
        return timer

    def message(self, refused: Refused) -> str:
        """The error message for people."""
        if self.files is None or self.flaw == "nameless-certificate":
            return refused.code
        asked = ["openssl", "x509", "-noout", "-checkend", "0", "-in", self.files["cert"]]
        ended = subprocess.run(asked, stdout=subprocess.DEVNULL).returncode
        return f"{refused.code}: the client certificate {self.files['cert']} has expired" if ended else refused.code

    def exchange(
        self,
        method: str,
        path: str,
        body: Any,
        timeout_ms: float,
        expected: Optional[dict[str, Any]],
        to: Optional[str],
    ) -> dict[str, Any]:
        address = to or self.address()
        url = urllib.parse.urlsplit(address)
        nonce = "control" if self.flaw == "same-nonce" else uuid.uuid4().hex
        connection = self.kept.get(address) or self.connection(url.hostname or "", url.port)
        connection.timeout = max(timeout_ms, 1) / 1e3
        try:
            try:
                if connection.sock is None:
                    connection.connect()
            except OSError as error:
                raise Refused("unavailable") from error
            cut = self.cut(connection)
            try:
                text = json.dumps(body) if body is not None else None
                connection.request(method, path, text, {"Palisade-Nonce": nonce})
                answer = connection.getresponse()
                elsewhere = answer.getheader("Location")
                if elsewhere and self.flaw == "follows-redirects":
                    target = urllib.parse.urlsplit(elsewhere)
                    elsewhere = f"{target.scheme}://{target.netloc}"
                    return self.once(method, target.path, body, timeout_ms, expected, elsewhere)
                value: dict[str, Any] = json.loads(answer.read())
            except (OSError, ValueError, http.client.HTTPException) as error:
                connection.close()
                raise Refused("unknown_outcome") from error
            finally:
                cut.cancel()
        finally:
            if self.flaw == "keeps-connection":
                self.kept[address] = connection
            else:
                connection.close()
        if answer.getheader("Palisade-Nonce") != nonce and self.flaw != "believes-any-answer":
            raise Refused("unknown_outcome")
        self.answered = address
        if answer.status in (200, 202):
            different = [name for name, asked in (expected or {}).items() if value.get(name) != asked]
            if different and self.flaw not in ("believes-other-lock", "believes-renewal"):
                raise Refused("unknown_outcome")
            if answer.status == 200 or (value.get("waiting") is True and value.get("lock_acquired") is False):
                return value
            raise Refused("unknown_outcome")
        problem = value.get("error") or {}
        unknown = "unknown_outcome" if answer.status >= 500 or answer.status < 400 else "invalid"
        raise Refused(problem.get("code", unknown), problem.get("leader"))

    def attempt(
        self, method: str, path: str, body: Any, timeout_ms: float, expected: Optional[dict[str, Any]] = None
    ) -> dict[str, Any]:
        address = self.address()
        try:
            return self.once(method, path, body, timeout_ms, expected)
        except Refused as refused:
            if refused.code in RETRY and self.answered == address:
                self.answered = None
            if refused.code == "not_leader" and refused.leader:
                self.leader = refused.leader
                if self.flaw == "follows-leaders" and timeout_ms > 0:
                    return self.attempt(method, path, body, timeout_ms - 10, expected)
            elif refused.code in RETRY and (self.flaw != "stays" or refused.code == "unavailable"):
                self.leader, self.at = None, self.at + 1
            raise

    def repeat(
        self, method: str, path: str, body: Any = None, expected: Optional[dict[str, Any]] = None
    ) -> dict[str, Any]:
        end, wait, worst = self.now() + self.patience, 10.0, "unavailable"
        while True:
            left = end - self.now()
            try:
                timeout = left if self.flaw == "one-attempt" else max(left / 2, 50.0)
                return self.attempt(method, path, body, timeout, expected)
            except Refused as refused:
                if refused.code not in RETRY:
                    raise
                if refused.code in ("unknown_outcome", "internal"):
                    worst = "unknown_outcome"
                if self.now() + wait >= end:
                    raise Refused(worst) from refused
            time.sleep(wait / 1e3)  # real time: the pause before it asks again
            wait = min(2 * wait, 500)

    def acquire_body(self, command: dict[str, Any]) -> dict[str, Any]:
        check_names([command["lock"], *(command.get("also") or [])])
        body = {
            "client_id": command.get("client_id") or f"control-{uuid.uuid4().hex}",
            "lease_duration_ms": command["ttl_ms"],
            "request_id": uuid.uuid4().hex,
            **command.get("under", {}),
        }
        for kind in ("mode", "permits", "also"):
            if command.get(kind):
                body[kind] = command[kind]
        for delay in ("lock_delay_ms", "at_least_for_ms"):
            if command.get(delay) and self.flaw != "forgets-delays":
                body[delay] = command[delay]
        return body

    def acquire(self, id: int, command: dict[str, Any]) -> dict[str, Any]:
        also, reader = command.get("also") or [], command.get("reader")
        if also and self.flaw == "one-by-one":
            for lock in [command["lock"], *also]:
                answered = self.acquire(id, {**command, "lock": lock, "also": None})
            return answered
        body = self.acquire_body(command)
        t0, answer = self.ask(id, command, body)
        if id in self.cancelled:
            raise Refused("cancelled")
        any_slots = "permits" in body and self.flaw == "any-slots"
        slots = [1] if any_slots else answer.get("slots")
        if is_broken({} if any_slots else body, {**answer, "slots": slots}):
            self.abandon(*self.under_way[id])
            raise Refused("unknown_outcome")
        if reader and self.flaw != "upgrades-lost" and reader.check():
            self.abandon(*self.under_way[id])
            raise Refused(str(reader.check()))
        if reader and self.flaw == "keeps-token":
            answer.update(fencing_token=reader.token, grant_id=reader.body["fencing_token"])
        grant = Grant(self, command["as"], {**command, "client_id": body["client_id"]}, {**answer, "t0": t0})
        grant.believe(t0, answer)
        if reader:
            reader.released = self.flaw != "keeps-reader"
        if self.now() >= grant.deadline:
            grant.release()
            raise Refused("expired")
        self.grants[command["as"]] = grant
        threading.Thread(target=grant.keep, daemon=True).start()
        self.listens(grant)
        return grant.facts({**answer, "slots": slots})

    def listens(self, grant: Grant) -> None:
        if not self.notices and self.flaw != "always-listens":
            return
        most = 100 if self.flaw != "names-all" else 1_000
        with self.guard:
            group = next((group for group in self.groups if len(group) < most), [])
            group.append(grant)
            starts = group not in self.groups
            if starts:
                self.groups.append(group)
        if starts:
            threading.Thread(target=self.listen, args=(group,), daemon=True).start()

    def listen(self, group: list[Grant]) -> None:
        """One request after the other, each a short one, so that the next one names new grants soon."""
        pause, wait_ms = 0.5, 300
        while True:
            time.sleep(0.0 if self.flaw == "hurries-listen" else 0.1)  # real time: a new grant is not named at once
            named = {(lock, grant.body["fencing_token"]): grant for grant in group for lock in grant.listened()}
            if not named:
                continue
            grants = [
                {"resource_id": lock, **grant.body, "waiters": grant.known(lock)} for (lock, _), grant in named.items()
            ]
            began = self.now()
            try:
                body = {"grants": grants, "wait_ms": wait_ms}
                notices = self.once("POST", "/v1/listen", body, wait_ms + 500, to=self.address())["notices"]
                soon = not notices and self.now() - began < wait_ms / 2
            except Refused as refused:
                if refused.code == "not_found" and self.flaw != "hurries-listen":
                    return
                notices, soon = [], True
                for grant in named.values() if self.flaw == "listen-suspends" else ():
                    grant.suspend(True)
            for notice in notices if self.flaw != "deaf" else ():
                named[notice["resource_id"], notice["fencing_token"]].hears(notice)
            if soon and self.flaw != "hurries-listen":
                time.sleep(pause)  # real time: the pause before it asks again
            pause = min(2 * pause, 10.0) if soon else 0.5

    def ask(self, id: int, command: dict[str, Any], body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        """Repeats the request until its outcome is known. Returns the clock's reading from before the attempt that was
        answered, and the answer."""
        path, reader = lock_path(command["lock"], "acquire"), command.get("reader")
        wait_end = self.now() + command["wait_ms"]
        end, pause, worst = wait_end + self.patience, 10.0, "unavailable"
        lingers = command["wait_ms"] + 2 * command["ttl_ms"]
        first, waits = self.now(), False
        while True:
            t0 = self.now()
            body["wait_ms"] = max(1 if waits else 0, int(wait_end - t0))
            body.pop("poll_ms", None)
            if body["wait_ms"] and self.flaw != "no-poll":
                body["poll_ms"] = 10_000 if self.answered == self.address() else 1_000
            asked = min(body["wait_ms"], body.get("poll_ms", body["wait_ms"]))
            timeout = asked + max(min(self.patience, end - t0 - asked) / 2, 50.0)
            if self.flaw in ("patient-acquire", "no-poll"):
                timeout = end - t0
            expected = {"resource_id": command["lock"]}
            self.under_way[id] = (path, dict(body), t0 + lingers, reader)
            try:
                answer = self.attempt("POST", path, body, timeout, expected)
                if answer.get("waiting"):
                    if self.flaw == "denied-by-202":
                        raise Refused("held")
                    waits = True
                    continue
                if answer.get("lock_acquired") is not True and self.flaw != "believes-other-lock":
                    raise Refused("unknown_outcome")
                answer["waited_ms"] += t0 - first
                return t0, answer
            except Refused as refused:
                if refused.code in GONE and reader:
                    reader.lose(refused.code)
                if refused.code not in RETRY or id in self.cancelled:
                    raise
                if refused.code in ("unknown_outcome", "internal"):
                    worst = "unknown_outcome"
                if self.now() + pause >= end:
                    self.abandon(*self.under_way[id])
                    raise Refused(worst) from refused
            if self.flaw == "rests-after-break":
                time.sleep(2.5)  # real time: the flaw itself
            if self.flaw == "new-request-ids":
                body["request_id"] = uuid.uuid4().hex
            if self.flaw == "forgets-also":
                body.pop("also", None)
            time.sleep(pause / 1e3)  # real time: the pause before it asks again
            pause = min(2 * pause, 500)

    def downgrade(self, id: int, command: dict[str, Any]) -> dict[str, Any]:
        writer = self.grants[command["grant"]]
        code = writer.check()
        if code or writer.command.get("permits") or writer.command.get("also"):
            raise Refused(code or "invalid")
        writer.released = self.flaw not in ("late-downgrade", "keeps-writer")
        under = {"lock_token": writer.body["lock_token"]}
        asked = {**writer.command, "as": command["as"], "mode": "shared", "wait_ms": 0, "under": under}
        try:
            return self.acquire(id, asked)
        except Refused:
            threading.Thread(target=writer.release, daemon=True).start()
            raise
        finally:
            writer.released = self.flaw != "keeps-writer"

    def upgrade(self, id: int, command: dict[str, Any]) -> dict[str, Any]:
        reader = self.grants[command["grant"]]
        anything = self.flaw == "upgrades-anything"
        code = reader.check()
        if code or (reader.command.get("mode") != "update" and not anything):
            raise Refused(code or "invalid")
        under = {"lock_token": reader.body["lock_token"]}
        changed = {"as": command["as"], "wait_ms": command["wait_ms"], "mode": "upgrade", "under": under}
        reader.upgrading = True
        try:
            return self.acquire(id, {**reader.command, **changed, "reader": reader})
        except Refused as refused:
            if refused.code == "held" and self.flaw == "believes-upgrade":
                return {"token": reader.token + 1, "before_ms": self.now(), "remaining_ms": reader.remaining()}
            reader.released = reader.released or anything
            raise
        finally:
            reader.upgrading = False

    def export(self, grant: Grant) -> dict[str, Any]:
        code = grant.check()
        if code:
            raise Refused(code)
        if self.flaw == "loses-exported":
            grant.lose("handed_over")
        grant.handed_over = True
        if self.flaw == "exports-and-releases":
            self.repeat("POST", lock_path(grant.lock, "release"), grant.body)
        fields = {"lock": grant.lock, "authority": grant.authority, "fencing_token": grant.token}
        fields.update(lock_token=grant.body["lock_token"], ttl_ms=grant.command["ttl_ms"])
        text = json.dumps({**fields, "client_id": grant.command["client_id"]}).encode()
        return {"text": EXPORTED + base64.urlsafe_b64encode(text).decode().rstrip("=")}

    def adopt(self, command: dict[str, Any]) -> dict[str, Any]:
        """Of a single lock that is held alone: that is all that its export is for."""
        text = command["text"].removeprefix(EXPORTED)
        fields = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        grant = Grant(self, command["as"], fields, fields)
        end, t0, answer = self.now() + self.patience, self.now(), {"valid_for_ms": fields["ttl_ms"]}
        while self.flaw != "adopts-unasked":
            t0 = self.now()
            try:
                timeout, expected = max((end - t0) / 2, 50.0), grant.expected(grant.lock, is_renewal=True)
                answer = self.attempt("POST", lock_path(grant.lock, "renew"), grant.body, timeout, expected)
                break
            except Refused as refused:
                if refused.code not in RETRY:
                    raise
                if self.now() + 100 >= end:
                    raise Refused("unavailable") from refused
            time.sleep(0.1)  # real time: the pause before it asks again
        grant.acknowledged[grant.lock] = {**answer, "t0": t0}
        grant.believe(t0, answer)
        self.grants[command["as"]] = grant
        threading.Thread(target=grant.keep, daemon=True).start()
        self.listens(grant)
        return grant.facts({**answer, "authority": grant.authority, "slots": None, "waited_ms": 0})

    def cancel(self, id: int) -> None:
        self.cancelled.add(id)
        if self.flaw != "forgets-cancelled":
            self.abandon(*self.under_way[id])
        say({"id": id, "ok": False, "code": "cancelled"})

    def abandon(self, path: str, body: dict[str, Any], until: float, reader: Optional[Grant]) -> None:
        """An upgrade is tried once more as long as the reader holds: it does not believe beside the next holder."""
        request = f"/v1/requests/{body['request_id']}/abandon"

        def run() -> None:
            while self.now() < until:
                settles = reader and not reader.check() and self.flaw != "abandons-upgrade"
                try:
                    if not settles:
                        self.attempt("POST", request, {}, 2000)
                        return
                    asked = {name: value for name, value in body.items() if name != "poll_ms"}
                    self.attempt("POST", path, {**asked, "wait_ms": 0}, 2000)
                except Refused as refused:
                    if settles and refused.code not in RETRY:
                        return
                    time.sleep(0.1)  # real time: the pause before it asks again
                else:
                    assert reader
                    reader.lose("superseded")

        threading.Thread(target=run, daemon=True).start()


class Grant:
    def __init__(self, holder: Holder, name: str, command: dict[str, Any], answer: dict[str, Any]) -> None:
        self.holder, self.name, self.lock, self.command = holder, name, command["lock"], command
        self.token = answer["fencing_token"]
        number = self.token if holder.flaw == "names-by-token" else answer.get("grant_id", self.token)
        self.body = {"lock_token": answer["lock_token"], "fencing_token": number}
        self.authority, self.process = answer["authority"], os.getpid()
        # All of its locks, those that are renewed, and those whose release was not acknowledged.
        self.locks = sorted([self.lock, *(command.get("also") or [])])
        self.held, self.unreleased = list(self.locks), list(self.locks)
        # The last answer for each of them, and from when it counts.
        self.acknowledged = dict.fromkeys(self.locks, answer)
        self.deadline = 0.0
        self.lost: Optional[str] = None
        self.released = False
        self.handed_over = False
        self.upgrading = False
        # Of the attempt to renew that was sent last.
        self.answered: Optional[bool] = True
        self.guard = threading.Lock()
        # Whether a renewal failed, and how many wait for each lock.
        self.suspended = False
        self.waiters: dict[str, int] = {}

    def believe(self, t0: float, answer: dict[str, Any]) -> None:
        flaw, now = self.holder.flaw, self.holder.now()
        valid = answer["remaining_ms"] if flaw == "remaining-ms" else answer["valid_for_ms"]
        start = now if flaw == "deadline-from-answer" else t0
        with self.guard:
            if self.deadline and now >= self.deadline and flaw not in ("revives", "ignores-deadline"):
                return
            self.deadline = max(self.deadline, start + valid * 0.99 / 1.01)
            if flaw == "revives" and self.lost == "expired":
                self.lost = None

    def facts(self, answer: dict[str, Any]) -> dict[str, Any]:
        before = self.holder.now()
        return {
            "token": self.token,
            "grant_id": answer.get("grant_id"),
            "slots": answer["slots"],
            "slot_keys": [f"{self.lock}~{slot}" for slot in answer["slots"] or []],
            "authority": answer["authority"],
            "waited_ms": answer["waited_ms"],
            "before_ms": before,
            "remaining_ms": self.remaining(),
        }

    def is_foreign(self) -> bool:
        return os.getpid() != self.process

    def expected(self, lock: str, is_renewal: bool) -> dict[str, Any]:
        """The fields that a good answer about this grant has."""
        named = {"resource_id": lock, "authority": self.authority, "lock_acquired": None}
        if is_renewal:
            return {**named, "fencing_token": self.token, "released": None}
        return {**named, "fencing_token": self.body["fencing_token"], "released": True}

    def check(self) -> Optional[str]:
        if self.is_foreign() and self.holder.flaw != "fork-holds":
            return "not_held"
        late = self.holder.now() >= self.deadline and self.holder.flaw != "ignores-deadline"
        if late and not self.lost and not self.released and not self.handed_over:
            self.lose("expired")
        if self.handed_over:
            return "handed_over"
        return self.lost or ("not_held" if self.released else None)

    def remaining(self) -> float:
        return 0.0 if self.check() else max(0.0, self.deadline - self.holder.now())

    def listened(self) -> list[str]:
        return [] if self.check() else list(self.held)

    def known(self, lock: str) -> int:
        return self.waiters.get(lock, 0)

    def notify(self, kind: str, **facts: Any) -> None:
        say({"event": "notice", "grant": self.name, "kind": kind, "at_ms": self.holder.now(), **facts})

    def hears(self, notice: dict[str, Any]) -> None:
        if notice["event"] == "wanted":
            self.wants({**self.waiters, notice["resource_id"]: notice["waiters"]})
            return
        how = notice["how"] if notice["how"] in GONE else "not_held"
        by_itself = how == "superseded" and self.upgrading and self.holder.flaw != "told-is-lost"
        if notice["resource_id"] not in self.held or by_itself:
            return
        self.lose(how, notice.get("reason"))
        if len(self.locks) > 1:
            threading.Thread(target=self.release, daemon=True).start()

    def wanted(self) -> int:
        return sum(self.waiters.values())

    def wants(self, waiters: dict[str, int]) -> None:
        before, self.waiters = self.wanted(), waiters
        if self.wanted() not in (0, before):
            self.notify("wanted", waiters=self.wanted())
        elif before and not self.wanted() and self.holder.flaw != "forgets-unwanted":
            self.notify("unwanted")

    def suspend(self, on: bool) -> None:
        was, self.suspended = self.suspended, on
        if on == was or self.check() or self.holder.flaw == "suspends-nobody":
            return
        if on:
            self.notify("suspended", remaining_ms=self.remaining())
        else:
            self.notify("restored")

    def lose(self, code: str, reason: Optional[str] = None) -> None:
        with self.guard:
            if self.lost or self.released or self.handed_over:
                return
            self.lost = code
        event = {"event": "lost", "grant": self.name, "token": self.token, "code": code}
        say({**event, "at_ms": self.holder.now()})
        self.notify("lost", why=code, reason=reason)

    def over(self) -> bool:
        revives = self.holder.flaw == "revives" and self.lost == "expired"
        handed_over = self.handed_over and self.holder.flaw != "exports-and-renews"
        return self.released or handed_over or (self.lost is not None and not revives)

    def keep(self) -> None:
        """Renews at a third of the remaining time, and announces the loss at the deadline."""
        due = self.next_attempt()
        while not self.over():
            now = self.holder.now()
            if now >= self.deadline:
                self.check()
            if now < due or (self.upgrading and self.holder.flaw == "rests-while-upgrading"):
                time.sleep(0.003)  # real time: it renews in time
                continue
            self.answered = None
            enough = max(20.0, (self.deadline - now) / 3)
            threading.Thread(target=self.renew, args=(now,), daemon=True).start()
            while self.answered is None and self.holder.now() < now + enough * len(self.held):
                time.sleep(0.003)  # real time: it waits for the answer
            due = self.next_attempt()

    def next_attempt(self) -> float:
        third = (self.deadline - self.holder.now()) / 3
        longest = third if self.answered else 500.0
        return self.holder.now() + max(20.0, min(third, longest))

    def renew(self, began: float) -> None:
        flaw = self.holder.flaw
        patient = flaw in ("revives", "deadline-from-answer")
        names = list(self.held)[: 1 if flaw == "renews-first" else None]
        if flaw != "hurries-round":
            names.sort(key=lambda lock: self.acknowledged[lock]["t0"])
        answer: dict[str, Any] = {}
        for number, lock in enumerate(names):
            t0 = self.holder.now() if number else began
            if number and self.over() and flaw != "finishes-round":
                return
            timeout = 10_000 if patient else max(20.0, (self.deadline - t0) / 3)
            if flaw == "hurries-round":
                timeout = max(1.0, began + max(20.0, (self.deadline - began) / 3) - t0)
            try:
                expected = self.expected(lock, is_renewal=True)
                answer = self.holder.attempt("POST", lock_path(lock, "renew"), self.body, timeout, expected)
            except Refused as refused:
                if refused.code == "superseded" and self.upgrading and flaw != "superseded-is-loss":
                    # The answer to the upgrade is on its way.
                    self.answered = False
                    return
                if refused.code in GONE and (lock in self.held or flaw == "release-is-loss"):
                    self.lose(refused.code)
                    if len(self.locks) > 1 and flaw != "leaves-rest":
                        threading.Thread(target=self.release, daemon=True).start()
                if refused.code in GONE and lock not in self.held:
                    continue
                if refused.code not in GONE:
                    self.suspend(True)
                self.answered = False
                return
            self.acknowledged[lock] = {**answer, "t0": t0}
            if flaw in ("part-by-part", "renews-first") or (flaw == "late-round" and number):
                oldest = self.acknowledged[lock]
            else:
                oldest = min((self.acknowledged[each] for each in [lock, *self.held]), key=lambda each: each["t0"])
            self.believe(oldest["t0"], oldest)
        self.answered = True
        self.suspend(False)
        if len(self.locks) == 1 and "waiters" in answer:
            self.wants({self.lock: answer["waiters"]})

    def release(self, part: Optional[str] = None) -> dict[str, Any]:
        if self.handed_over or (self.is_foreign() and self.holder.flaw != "fork-releases"):
            return {"result": "over"}
        if part is not None and part not in self.locks:
            raise Refused("invalid")
        if part in self.held:
            self.held.remove(part)
        whole = part is None or not self.held
        late = self.holder.flaw == "releases-late"
        self.released = self.released or (whole and not late)
        found = {"already_released"}
        for lock in list(self.unreleased) if whole else [part]:
            try:
                expected = self.expected(lock, is_renewal=False)
                answer = self.holder.repeat("POST", lock_path(lock, "release"), self.body, expected)
                found.add("already_released" if answer["already_released"] else "released")
            except Refused as refused:
                if refused.code in GONE:
                    found.add("over")
                    continue
                if self.holder.flaw == "forgets-part" and not whole:
                    self.unreleased.remove(lock)
                raise
            finally:
                self.released = self.released or whole
            if lock in self.unreleased:
                self.unreleased.remove(lock)
        return {"result": next(result for result in ("over", "released", "already_released") if result in found)}


def is_broken(body: dict[str, Any], answer: dict[str, Any]) -> bool:
    slots, wanted = answer["slots"], body.get("permits", {}).get("count")
    numbers = isinstance(slots, list) and all(type(slot) is int and 1 <= slot <= 64 for slot in slots)
    if wanted and (not numbers or len(slots) != wanted or slots != sorted(set(slots))):
        return True
    unnamed = body.get("mode") in ("shared", "update") and "grant_id" not in answer
    return unnamed or not 1 <= answer["fencing_token"] < 2**53


def check_names(locks: list[str]) -> None:
    bad = any(not 1 <= len(lock) <= 255 or lock in (".", "..") for lock in locks)
    if bad or len(set(locks)) < len(locks) or len(locks) > 64:
        raise Refused("invalid")


def lock_path(lock: str, verb: str) -> str:
    path = f"/v1/locks/{urllib.parse.quote(lock, safe='')}"
    return f"{path}/{verb}" if verb else path


def carry_out(holder: Holder, id: int, command: dict[str, Any]) -> dict[str, Any]:
    do, grant = command["do"], holder.grants.get(command.get("grant", ""))
    if do == "connect":
        holder.urls, holder.patience = command["urls"], command["patience_ms"]
        holder.files, holder.tls = command.get("tls"), None
        holder.notices = command.get("notices", False)
    elif do == "acquire":
        return holder.acquire(id, command)
    elif do == "downgrade":
        return holder.downgrade(id, command)
    elif do == "upgrade":
        return holder.upgrade(id, command)
    elif do == "check" and grant:
        before = holder.now()
        code = grant.check()
        return {"ok": code is None, "code": code, "before_ms": before}
    elif do == "remaining" and grant:
        before = holder.now()
        return {"before_ms": before, "remaining_ms": grant.remaining()}
    elif do == "wanted" and grant:
        return {"waiters": 0 if grant.check() else grant.wanted()}
    elif do == "release" and grant:
        return grant.release(command.get("lock"))
    elif do == "export" and grant:
        return holder.export(grant)
    elif do == "adopt":
        return holder.adopt(command)
    elif do == "fork" and grant:
        return fork(holder, id, command, grant)
    elif do == "clock":
        return {"now_ms": holder.now()}
    elif do == "show":
        shown = holder.repeat("GET", lock_path(command["lock"], ""))
        return {"token": (shown["holder"] or {}).get("fencing_token"), "waiters": shown["waiters"]}
    else:
        raise Refused("invalid")
    return {}


def fork(holder: Holder, id: int, command: dict[str, Any], grant: Grant) -> dict[str, Any]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        told = {"code": grant.check(), "remaining_ms": grant.remaining(), "acquired": False}
        try:
            grant.release()
            holder.acquire(id, {**command, "as": "child", "wait_ms": 0})
            holder.grants["child"].release()
            told["acquired"] = True
        except Refused:
            pass
        os.write(write, json.dumps(told).encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as said:
        answer: dict[str, Any] = json.loads(said.read())
    os.waitpid(child, 0)
    return answer


def serve(holder: Holder) -> None:
    def answer(id: int, command: dict[str, Any]) -> None:
        try:
            result = {"ok": True, **carry_out(holder, id, command)}
        except Refused as refused:
            result = {"ok": False, "code": refused.code, "message": holder.message(refused)}
        if id not in holder.cancelled:
            say({"id": id, **result})

    say(
        {
            "event": "hello",
            "client": "control",
            "wire": "http",
            "can": CAN,
        }
    )
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "cancel":
            holder.cancel(command["target"])
            say({"id": command["id"], "ok": True})
            continue
        threading.Thread(target=answer, args=(command["id"], command), daemon=True).start()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--flaw", choices=FLAWS)
    serve(Holder(arguments.parse_args().flaw))
