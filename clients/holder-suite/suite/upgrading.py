"""S: a reader in mode update, and its upgrade (docs/use/kinds.md). For drivers that say that they can: "update"."""

from __future__ import annotations

import json
import threading
from typing import Any, Optional

from .clock import now_ms, pause, until
from .driver import Answer, Driver
from .relay import BACK
from .rules import rule
from .scripted import LOSE_ANSWER, Reply, Request
from .sharing import another_reader, grant_ids
from .trial import Broken, Trial, expect, expect_lost_for_good


def connected(trial: Trial, url: str, *abilities: str, **options: Any) -> Driver:
    driver = trial.bare_driver()
    trial.needs(driver, "update", *abilities)
    driver.call("connect", urls=[url], **{"patience_ms": 5000, **options})
    return driver


def updates(trial: Trial, driver: Driver, ttl_ms: int = 20_000) -> Answer:
    """The driver holds the lock as the reader that may become the writer, as grant `g`."""
    answer = driver.call("acquire", **{**trial.wish(ttl_ms), "mode": "update"})
    expect(answer["ok"], f"a reader in mode update was refused: {answer}")
    return answer


def leaves(trial: Trial, reader: dict[str, Any]) -> None:
    """A reader at the server itself releases."""
    trial.server.lock(trial.lock, "release", lock_token=reader["lock_token"])


def upgrades(driver: Driver, wait_ms: int, grant: str = "g") -> int:
    """The driver asks for the upgrade; the writer is grant `w`."""
    return driver.start("upgrade", grant=grant, wait_ms=wait_ms, **{"as": "w"})


def waiting(trial: Trial, driver: Driver) -> int:
    """An upgrade that waits for other readers."""
    asked = upgrades(driver, 20_000)
    expect(until(lambda: trial.server.show(trial.lock)["waiters"] == 1), "the upgrade does not wait")
    return asked


def expect_writer(trial: Trial, writer: Answer, reader: Answer) -> None:
    expect(writer["ok"], f"the upgrade failed: {writer}")
    expect(writer["token"] > reader["grant_id"], f"the token went from {reader['grant_id']} to {writer['token']}")
    holder = trial.holder_token()
    expect(holder == writer["token"], f"the client has the token {writer['token']}, the server {holder}")


@rule("S-update", "one reader at a time has mode update, and reads beside plain readers")
def one_reader_has_mode_update(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    beside = another_reader(trial)
    reader = updates(trial, driver)
    expect(reader["token"] == beside["fencing_token"], "the readers of one phase have different tokens")
    expect(reader["grant_id"] in grant_ids(trial), "the server does not know the reader")
    second = driver.call("acquire", **{**trial.wish(20_000), "as": "h", "mode": "update"})
    expect(not second["ok"] and second["code"] == "held", f"a second reader in mode update: {second}")
    another_reader(trial)
    expect(driver.call("check", grant="g")["ok"], "the reader in mode update lost its lease")


@rule(
    "S-upgrade", "an upgrade waits for the other readers, and draws a higher token, which is what is held from then on"
)
def reader_becomes_writer(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    beside = another_reader(trial)
    reader = updates(trial, driver, ttl_ms=2000)
    asked = waiting(trial, driver)
    expect(driver.call("check", grant="g")["ok"], "the reader does not hold while its upgrade waits")
    leaves(trial, beside)
    writer = driver.answer(asked)
    expect_writer(trial, writer, reader)
    expect(not driver.call("check", grant="g")["ok"], "the reader's grant still holds")
    end = now_ms() + 4000
    while now_ms() < end:
        expect(driver.call("check", grant="w")["ok"], "the writer lost its lease")
        pause(100)  # real time: longer than the lease
    driver.call("release", grant="g")
    expect(trial.holder_token() == writer["token"], "a release of the reader's grant took the writer's")
    driver.call("release", grant="w")
    trial.expect_free("the writer was not released")
    expect(driver.find("lost") is None, "an upgrade was announced as a loss")


@rule("S-upgrade-held", "an upgrade that is not granted in time is denied, and the reader has what it had")
def denied_upgrade_changes_nothing(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    beside = another_reader(trial)
    reader = updates(trial, driver)
    for wait_ms in (0, 300):
        answer = driver.answer(upgrades(driver, wait_ms))
        expect(not answer["ok"] and answer["code"] == "held", f"an upgrade beside a reader: {answer}")
        expect(driver.call("check", grant="g")["ok"], "the reader lost its lease when its upgrade was denied")
        expect(reader["grant_id"] in grant_ids(trial), "the server does not know the reader any more")
    late = another_reader(trial)
    leaves(trial, beside)
    leaves(trial, late)
    expect_writer(trial, driver.answer(upgrades(driver, 0)), reader)
    expect(driver.find("lost") is None, "a denied upgrade was announced as a loss")


@rule("S-upgrade-plain", "only a reader in mode update is upgraded; a plain reader and a writer are told so, and go on")
def others_are_not_upgraded(trial: Trial) -> None:
    for mode in ({"mode": "shared"}, {}):
        driver = connected(trial, trial.server.url, "shared")
        trial.held(driver, ttl_ms=20_000, **mode)
        before = trial.server.next_token()
        answer = driver.answer(upgrades(driver, 0))
        expect(not answer["ok"] and answer["code"] == "invalid", f"an upgrade of {mode or 'a writer'}: {answer}")
        expect(driver.call("check", grant="g")["ok"], "a refused upgrade ended the grant")
        expect(trial.server.next_token() == before, "a refused upgrade drew a token")
        driver.call("release", grant="g")


@rule("S-upgrade-renews", "a reader is renewed while its upgrade waits for longer than its lease lasts")
def reader_is_renewed_meanwhile(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    beside = another_reader(trial)
    reader = updates(trial, driver, ttl_ms=1200)
    asked = waiting(trial, driver)
    end = now_ms() + 4000
    while now_ms() < end:
        expect(driver.call("check", grant="g")["ok"], "the reader lost its lease while its upgrade waited")
        expect(not driver.has_answered(asked), "the upgrade did not wait")
        pause(100)  # real time: longer than the lease
    expect(reader["grant_id"] in grant_ids(trial), "the server does not know the reader any more")
    leaves(trial, beside)
    expect_writer(trial, driver.answer(asked), reader)
    expect(driver.call("check", grant="w")["ok"], "the writer does not hold")


@rule("S-upgrade-revoked", "a reader that is revoked while its upgrade waits is lost, and its upgrade fails")
def reader_is_revoked_meanwhile(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    another_reader(trial)
    reader = updates(trial, driver, ttl_ms=4000)
    asked = waiting(trial, driver)
    trial.server.lock(trial.lock, "break", fencing_token=reader["grant_id"], reason="the suite")
    answer = driver.answer(asked)
    expect(not answer["ok"] and answer["code"] == "revoked", f"the upgrade of a revoked reader: {answer}")
    lost = driver.event("lost", grant="g", timeout_s=10)
    expect(lost["code"] == "revoked", f"the reason is {lost['code']!r}, not 'revoked'")
    expect_lost_for_good(driver)


@rule(
    "S-upgrade-late", "a lease that is lost while its upgrade waits stays lost: a grant that comes later is given back"
)
def lost_reader_is_not_upgraded(trial: Trial) -> None:
    relay = trial.relay()
    driver = connected(trial, relay.url)
    beside = another_reader(trial)
    updates(trial, driver, ttl_ms=2500)
    asked = waiting(trial, driver)
    # Renewals arrive and keep the lease alive at the server; their answers do not come.
    relay.hold(BACK)
    lost = driver.event("lost", grant="g", timeout_s=10)
    expect(lost["code"] == "expired", f"the reason is {lost['code']!r}, not 'expired'")
    leaves(trial, beside)
    expect(until(lambda: not grant_ids(trial), 5), "the server still has readers")
    relay.open()
    answer = driver.answer(asked)
    expect(not answer["ok"] and answer["code"] == "expired", f"the upgrade of a reader that was lost: {answer}")
    expect_lost_for_good(driver)
    trial.expect_free("the lock of a reader that was lost is still held")


@rule("S-upgrade-once", "an upgrade whose answer is lost is repeated with the same request id", wire="http")
def upgrade_is_repeated(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url)
    reader = updates(trial, driver)
    earlier = scripted.ids()
    answers = [LOSE_ANSWER]
    scripted.decide = lambda request: answers.pop() if request.verb == "acquire" and answers else None
    expect_writer(trial, driver.answer(upgrades(driver, 0)), reader)
    expect(len(scripted.ids() - earlier) == 1, "the repetition has another request id")
    expect(trial.server.next_token() == reader["grant_id"] + 2, "the upgrade drew more than one token")


@rule("S-upgrade-names", "a writer that was a reader is renewed and released by its new token", wire="http")
def writer_is_named_by_its_token(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url)
    reader = updates(trial, driver, ttl_ms=1500)
    writer = driver.answer(upgrades(driver, 0))
    expect_writer(trial, writer, reader)
    granted = len(scripted.requests)
    expect(until(lambda: any(request.verb == "renew" for request in scripted.requests[granted + 1 :])), "no renewal")
    driver.call("release", grant="w")
    later = [each for each in scripted.requests[granted + 1 :] if each.verb in ("renew", "release")]
    named = {request.body["fencing_token"] for request in later}
    expect(named == {writer["token"]}, f"grant {writer['token']} was named {named}")


@rule("S-upgrade-superseded", "a renewal that finds the reader superseded by its upgrade is no loss", wire="http")
def superseded_by_its_own_upgrade(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url)
    reader = updates(trial, driver, ttl_ms=4000)

    def decide(request: Request) -> Optional[Reply]:
        if request.verb != "acquire":
            return None
        granted = scripted.forward(request, json.dumps(request.body).encode())
        before = len(scripted.of("renew"))
        # When the second one comes, the first one was answered.
        until(lambda: len(scripted.of("renew")) >= before + 2)
        return Reply(*granted)

    scripted.decide = decide
    expect_writer(trial, driver.answer(upgrades(driver, 0)), reader)
    expect(driver.find("lost") is None, "the upgrade was announced as a loss")
    expect(driver.call("check", grant="w")["ok"], "the writer does not hold")


@rule("S-upgrade-cancel", "an upgrade that is cancelled leaves the queue, and the reader goes on")
def cancelled_upgrade_leaves_the_reader(trial: Trial) -> None:
    driver = connected(trial, trial.server.url, "cancel")
    beside = another_reader(trial)
    reader = updates(trial, driver, ttl_ms=1500)
    driver.call("cancel", target=waiting(trial, driver))
    expect(until(lambda: trial.server.show(trial.lock)["waiters"] == 0), "the cancelled upgrade still waits")
    late = another_reader(trial)
    end = now_ms() + 3000
    while now_ms() < end:
        expect(driver.call("check", grant="g")["ok"], "the reader lost its lease after its upgrade was cancelled")
        pause(100)  # real time: longer than the lease
    leaves(trial, beside)
    leaves(trial, late)
    expect_writer(trial, driver.answer(upgrades(driver, 5000)), reader)


@rule("S-upgrade-given-up", "a cancelled upgrade that was granted does not free the lock while the reader believes")
def reader_does_not_believe_beside_the_next_writer(trial: Trial) -> None:
    relay = trial.relay()
    driver = connected(trial, relay.url, "cancel")
    beside = another_reader(trial)
    updates(trial, driver, ttl_ms=6000)
    asked = waiting(trial, driver)
    relay.hold(BACK)
    leaves(trial, beside)
    expect(until(lambda: not grant_ids(trial), 5), "the upgrade was not granted")
    driver.call("cancel", target=asked)
    taken: list[float] = []

    def take() -> None:
        trial.taken_by_another(wait_ms=20_000)
        taken.append(now_ms())

    threading.Thread(target=take, daemon=True).start()
    began = now_ms()
    while now_ms() < began + 15_000:
        known = list(taken)
        check = driver.call("check", grant="g")
        expect(not (known and check["ok"]), "the reader believes although another client has the lock")
        if known:
            return
        if now_ms() > began + 1500:
            relay.open()
        pause(50)  # real time: asked again, up to a deadline
    raise Broken("the lock of an upgrade that was cancelled is still held")
