"""H6: a lease that is handed over to another process."""

from __future__ import annotations

from .clock import now_ms, pause
from .driver import Driver
from .relay import BACK, FORTH
from .rules import rule
from .trial import Trial, expect, expect_deadline, expect_lost_for_good, latest


def exported(trial: Trial, driver: Driver, ttl_ms: int) -> str:
    trial.needs(driver, "handover")
    trial.held(driver, ttl_ms)
    answer = driver.call("export", grant="g")
    expect(answer["ok"], f"the lease was not exported: {answer}")
    return str(answer["text"])


@rule("H6-export", "an exported lease is not held, renewed or released any more, and is no loss", wire="http")
def nothing_after_the_export(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = trial.driver(scripted.url)
    exported(trial, driver, ttl_ms=1500)
    sent = len(scripted.requests)
    expect_lost_for_good(driver)
    code = driver.call("check", grant="g")["code"]
    expect(code == "handed_over", f"the code is {code!r}")
    driver.call("release", grant="g")
    pause(1500)  # real time: a holder would have renewed by now
    expect(len(scripted.requests) == sent, f"then came {scripted.requests[sent:]}")
    expect(not scripted.of("release"), "the exporter released the lease")
    expect(driver.find("lost", grant="g") is None, "the hand-over was announced as a loss")


@rule("H6-adopt", "an adopter has the same token, and counts from before its own first renewal was sent")
def adopter_counts_for_itself(trial: Trial) -> None:
    text = exported(trial, trial.driver(trial.server.url), ttl_ms=5000)
    token = trial.holder_token()
    relay = trial.relay()
    adopter = trial.driver(relay.url)
    relay.hold(BACK)
    before = now_ms()
    asked = adopter.start("adopt", text=text, **{"as": "g"})
    expect(relay.next_bytes(FORTH, before), "no renewal was sent")
    pause(800)  # real time: the acknowledgement is late
    expect(not adopter.has_answered(asked), "a lease is adopted before its renewal is acknowledged")
    relay.open()
    adopted = adopter.answer(asked)
    expect(adopted["ok"], f"the lease was not adopted: {adopted}")
    expect(adopted["token"] == token, f"the token {token} became {adopted['token']}")
    expect_deadline(adopted, latest(relay.last_sent(), 5000), "the acknowledgement came 0.8 s late")
    pause(5500)  # real time: longer than the lease
    expect(adopter.call("check", grant="g")["ok"], "an adopted lease is not renewed")
    expect(trial.holder_token() == token, "the lock was free in between")
    expect(adopter.call("release", grant="g")["ok"], "the adopter's release failed")
    trial.expect_free("the lock is still held after the adopter's release")


@rule("H6-unacknowledged", "without an acknowledged renewal an adopter holds nothing")
def nothing_is_held_without_an_answer(trial: Trial) -> None:
    text = exported(trial, trial.driver(trial.server.url), ttl_ms=30_000)
    relay = trial.relay()
    adopter = trial.driver(relay.url, patience_ms=1000)
    relay.cut(refuse=True)
    answer = adopter.call("adopt", text=text, **{"as": "g"})
    expect(not answer["ok"], "a lease is adopted without an answer")
    expect(answer["code"] == "unavailable", f"the code is {answer['code']!r}")


@rule("H6-over", "a lease that is over is not adopted, and the reason is that of the server")
def what_is_over_is_lost(trial: Trial) -> None:
    driver = trial.driver(trial.server.url)
    text = exported(trial, driver, ttl_ms=30_000)
    trial.server.lock(trial.lock, "break", fencing_token=trial.holder_token(), reason="the test")
    answer = driver.call("adopt", text=text, **{"as": "a"})
    expect(not answer["ok"], "a lease that was revoked is adopted")
    expect(answer["code"] == "revoked", f"the code is {answer['code']!r}")
