"""H1, H2 and H4: the deadline, renewal, and the loss."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

from .clock import SURE, now_ms, pause, until
from .relay import BACK, FORTH
from .rules import rule
from .scripted import Reply, Request, error
from .trial import (
    NotApplicable,
    Trial,
    deadline_of,
    expect,
    expect_deadline,
    expect_lost_for_good,
    latest,
    watch_checks,
)


@rule("H1-acquire", "the deadline of a grant counts from before the request was sent, not from its answer")
def acquire_counts_from_the_sending(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    relay.hold(BACK)
    before = now_ms()
    asked = driver.start("acquire", **trial.wish(ttl_ms=5000))
    sent = relay.next_bytes(FORTH, before)
    expect(sent, "no request came")
    pause(1500)  # real time: the answer is late
    relay.open()
    granted = driver.answer(asked)
    expect(granted["ok"], f"acquire failed: {granted}")
    expect_deadline(granted, latest(sent or 0, 5000), "the answer came 1.5 s late")


@rule("H1-renew", "the deadline after a renewal counts from before that renewal was sent")
def renewal_counts_from_the_sending(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    granted = trial.held(driver, ttl_ms=5000)
    relay.hold(BACK)
    sent = relay.next_bytes(FORTH, granted["read_ms"])
    expect(sent, "no renewal was sent")
    pause(800)  # real time: the answer is late
    first = driver.call("remaining", grant="g")
    relay.open()

    def moved() -> Any:
        again = driver.call("remaining", grant="g")
        return again if deadline_of(again) > deadline_of(first) + 100 else None

    again = until(moved, 5)
    expect(again, "the renewal that was acknowledged late, but in time, moved nothing")
    expect_deadline(again, latest(relay.last_sent(), 5000), "the acknowledgement came 0.8 s late")


@rule("H1-drift", "the deadline allows for clocks that run 1 % wrong, and for no more than that")
def deadline_has_a_share_for_drift(trial: Trial) -> None:
    day = 86_400_000
    relay = trial.relay()
    driver = trial.driver(relay.url)
    before = now_ms()
    granted = trial.held(driver, ttl_ms=day)
    expect_deadline(granted, latest(relay.last_sent(), day), "a lease of 24 h")
    short = before + day * SURE - deadline_of(granted)
    expect(short < 5_000, f"the client gives {short:.0f} ms of a 24 h lease away")


@rule("H1-waited", "a grant that waited longer than its lease lasts is of use: valid_for_ms, not remaining_ms")
def waiting_does_not_use_up_the_lease(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    other = trial.taken_by_another()
    asked = driver.start("acquire", **trial.wish(ttl_ms=2000, wait_ms=20_000))
    expect(until(lambda: trial.server.show(trial.lock)["waiters"] == 1), "the request does not wait")
    pause(2500)  # real time: longer than the lease
    trial.server.lock(trial.lock, "release", lock_token=other["lock_token"])
    released = now_ms()
    granted = driver.answer(asked)
    expect(granted["ok"], f"a grant that waited 2.5 s for a lease of 2 s was refused: {granted}")
    expect(granted["remaining_ms"] > 500, f"only {granted['remaining_ms']:.0f} ms remain of 2 s")
    expect_deadline(granted, released + 2000, "after a wait")


@rule("H1-waited-again", "the same after a wait that was cut and repeated: it counts from the repetition")
def waiting_again_does_not_use_up_the_lease(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    other = trial.taken_by_another()
    asked = driver.start("acquire", **trial.wish(ttl_ms=2000, wait_ms=20_000))
    expect(until(lambda: trial.server.show(trial.lock)["waiters"] == 1), "the request does not wait")
    pause(1000)  # real time: half of the lease
    cut = now_ms()
    relay.cut()
    expect(relay.next_bytes(FORTH, cut), "the request is not repeated")
    expect(until(lambda: trial.server.show(trial.lock)["waiters"] == 1), "the repeated request does not wait")
    pause(2500)  # real time: longer than the lease
    trial.server.lock(trial.lock, "release", lock_token=other["lock_token"])
    released = now_ms()
    granted = driver.answer(asked)
    expect(granted["ok"], f"a grant that waited 2.5 s again for a lease of 2 s was refused: {granted}")
    expect(granted["remaining_ms"] > 500, f"only {granted['remaining_ms']:.0f} ms remain of 2 s")
    expect_deadline(granted, released + 2000, "after a second wait")


@rule("H1-clock", "the clock counts suspended time: the time since boot, also where it differs from other clocks")
def clock_is_the_time_since_boot(trial: Trial) -> None:
    shift_s = 100_000
    namespace = ["unshare", "--time", "--boottime", str(shift_s), "--"]
    if not shutil.which("unshare") or subprocess.run([*namespace, "true"], capture_output=True).returncode:
        raise NotApplicable("time namespaces are not available (they need Linux 5.6, unshare and root)")
    driver = trial.bare_driver(namespace)
    read = driver.call("clock")["now_ms"]
    wrong = read - now_ms() - shift_s * 1e3
    expect(abs(wrong) < 60_000, f"the client's clock is {wrong / 1e3:.0f} s away from CLOCK_BOOTTIME")


@rule("H1-late-grant", "a grant whose deadline has passed when it arrives is no grant, and is given back")
def late_grant_is_none(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    relay.hold(BACK)
    before = now_ms()
    asked = driver.start("acquire", **trial.wish(ttl_ms=1000))
    expect(relay.next_bytes(FORTH, before), "no request came")
    driver.stop()
    relay.open()
    pause(1500)  # real time: longer than the lease
    driver.go_on()
    granted = driver.answer(asked)
    expect(not granted["ok"], "a grant was handed out after its deadline")
    trial.expect_free("the late grant is still held")


@rule("H2-third", "renewal runs by itself, at about a third of the lease")
def renews_at_a_third(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    granted = trial.held(driver, ttl_ms=3000)
    pause(6000)  # real time: twice the lease
    sent = relay.bursts(granted["read_ms"] + 50)
    expect(sent, "nothing was sent in two times the lease")
    first = sent[0] - granted["read_ms"]
    expect(450 <= first <= 1900, f"the first renewal came after {first:.0f} ms of a lease of 3000 ms")
    expect(3 <= len(sent) <= 14, f"{len(sent)} renewals in two times the lease")


@rule("H2-keeps", "a renewed lease is held for many times its length, with the same token")
def renewal_keeps_lease_and_token(trial: Trial) -> None:
    driver = trial.driver(trial.server.url)
    granted = trial.held(driver, ttl_ms=2000)
    end = now_ms() + 6000
    while now_ms() < end:
        check = driver.call("check", grant="g")
        expect(check["ok"], f"lost although the server was there: {check}")
        expect(trial.holder_token() == granted["token"], "the server has another token")
        pause(200)  # real time: three times the lease
    expect(trial.server.next_token() == granted["token"] + 1, "renewing drew tokens")


@rule("H2-late-answer", "an acknowledgement that comes after the deadline revives nothing")
def late_acknowledgement_revives_nothing(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    trial.held(driver, ttl_ms=2000)
    relay.hold(BACK)
    driver.event("lost", grant="g", timeout_s=8)
    relay.open()
    pause(500)  # real time: the late answer has to arrive
    expect_lost_for_good(driver)


@rule("H2-stopped-renewal", "SIGSTOP during a renewal whose answer is waiting: no revival after SIGCONT")
def stopped_with_an_answer_waiting(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    granted = trial.held(driver, ttl_ms=2000)
    relay.hold(BACK)
    expect(relay.next_bytes(FORTH, granted["read_ms"]), "no renewal was sent")
    driver.stop()
    relay.open()
    another = trial.taken_by_another(wait_ms=20_000)
    expect(another["fencing_token"] > granted["token"], "the tokens do not rise")
    asked = [driver.start("check", grant="g") for _ in range(3)]
    driver.go_on()
    for check in asked:
        expect(not driver.answer(check)["ok"], "check() succeeded after SIGCONT, while another client holds")
    driver.event("lost", grant="g")
    pause(300)  # real time: late answers have to arrive
    expect_lost_for_good(driver)


@rule("H2-forward-only", "an acknowledged renewal never moves the deadline back", wire="http")
def deadline_never_moves_back(trial: Trial) -> None:
    scripted = trial.scripted()
    shortened: list[Request] = []

    def shorter(request: Request, answer: dict[str, Any]) -> dict[str, Any]:
        if request.verb == "renew":
            shortened.append(request)
            answer = {**answer, "valid_for_ms": 300, "remaining_ms": 300}
        return answer

    scripted.alter = shorter
    driver = trial.driver(scripted.url)
    trial.held(driver, ttl_ms=6000)
    first = max(deadline_of(driver.call("remaining", grant="g")) for _ in range(5))
    expect(until(lambda: shortened), "no renewal was sent")
    pause(200)  # real time: the answer has to arrive
    again = max(deadline_of(driver.call("remaining", grant="g")) for _ in range(5))
    expect(again > first - 50, f"the deadline moved back by {first - again:.0f} ms")


@rule("H2-failed-renewal", "failed renewals take nothing away, and renewal goes on when the server is back")
def failures_end_nothing_early(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    trial.held(driver, ttl_ms=6000)
    relay.cut(refuse=True)
    end = now_ms() + 3500
    while now_ms() < end:
        expect(driver.call("check", grant="g")["ok"], "lost before the deadline, because the server was away")
        pause(50)  # real time: the server is away for most of the lease
    relay.accept_again()
    end = now_ms() + 6000
    while now_ms() < end:
        expect(driver.call("check", grant="g")["ok"], "lost although the server came back in time")
        pause(50)  # real time: as long as the lease


@rule("H2-refused-renewal", "an error that does not say that the grant is over ends nothing early", wire="http")
def errors_end_nothing_early(trial: Trial) -> None:
    scripted = trial.scripted()
    answers = [error(503, "unavailable"), error(500, "internal"), Reply(200, b"<html>"), error(418, "teapot")]

    def decide(request: Request) -> Any:
        return answers.pop(0) if request.verb == "renew" and answers else None

    scripted.decide = decide
    driver = trial.driver(scripted.url)
    trial.held(driver, ttl_ms=6000)
    end = now_ms() + 8000
    while now_ms() < end:
        check = driver.call("check", grant="g")
        expect(check["ok"], f"lost because of an error that repeating cures: {check}")
        pause(50)  # real time: longer than the lease
    expect(not answers, f"{len(answers)} of four failures were never met: it does not try again soon")


@rule("H2-cut", "a connection that breaks extends nothing: not held from the deadline on")
def cut_off_holder_stops(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    trial.held(driver, ttl_ms=2000)
    relay.cut(refuse=True)
    watch_checks(driver, latest(relay.last_sent(), 2000))
    lost = driver.event("lost", grant="g")
    expect(lost["code"] == "expired", f"the reason is {lost['code']!r}, not 'expired'")
    expect_lost_for_good(driver)


@rule("H2-silence", "an open connection on which nothing comes back extends nothing")
def silence_extends_nothing(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    trial.held(driver, ttl_ms=2000)
    relay.hold(BACK)
    last = relay.last_sent()
    watch_checks(driver, latest(last, 2000))


@rule("H2-new-connection", "a connection that went silent is replaced before the lease is lost", wire="http")
def silent_connection_is_replaced(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    trial.held(driver, ttl_ms=4000)
    relay.freeze()
    end = now_ms() + 8000
    while now_ms() < end:
        check = driver.call("check", grant="g")
        expect(check["ok"], f"lost although a new connection would have worked: {check}")
        pause(50)  # real time: longer than the lease


@rule("H2-no-storm", "a server that fails is not flooded with renewals", wire="http")
def failing_renewals_pause(trial: Trial) -> None:
    scripted = trial.scripted()
    scripted.decide = lambda request: error(503, "unavailable") if request.verb == "renew" else None
    driver = trial.driver(scripted.url)
    trial.held(driver, ttl_ms=3000)
    driver.event("lost", grant="g", timeout_s=8)
    attempts = len(scripted.of("renew"))
    expect(3 <= attempts <= 60, f"{attempts} attempts before a lease of 3 s was lost")


@rule("H4-announced", "the loss is announced at the deadline though nobody asks")
def loss_is_announced(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    granted = trial.held(driver, ttl_ms=1500)
    relay.cut(refuse=True)
    lost = driver.event("lost", grant="g", timeout_s=6)
    expect(lost["token"] == granted["token"], "the loss names another token")
    late = lost["at_ms"] - latest(relay.last_sent(), 1500)
    expect(late < 1000, f"announced {late:.0f} ms after the deadline")
    expect(late > -1000, f"announced {-late:.0f} ms before the deadline")


@rule("H4-sigstop", "after SIGSTOP past the lease the first thing said is that it is lost")
def stopped_holder_is_lost_first(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    granted = trial.held(driver, ttl_ms=2000)
    expect(relay.next_bytes(BACK, granted["read_ms"]), "no renewal was answered")
    driver.stop()
    another = trial.taken_by_another(wait_ms=20_000)
    asked = [driver.start("check", grant="g") for _ in range(3)]
    left = driver.start("remaining", grant="g")
    # Its own clock has to say it: a renewal that is refused would do so a moment later.
    relay.hold(BACK)
    driver.go_on()
    for check in asked:
        expect(not driver.answer(check)["ok"], "check() succeeded after SIGCONT, while another client holds")
    expect(driver.answer(left)["remaining_ms"] == 0, "some time remains after SIGCONT")
    driver.event("lost", grant="g")
    relay.open(BACK)
    driver.call("release", grant="g")
    expect(trial.holder_token() == another["fencing_token"], "a release after the loss took the next holder's lock")


@rule("H4-stays-lost", "a lost lease stays lost, is not renewed, and nothing is acquired in its place")
def lost_stays_lost(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    granted = trial.held(driver, ttl_ms=1500)
    relay.cut(refuse=True)
    driver.event("lost", grant="g", timeout_s=6)
    relay.accept_again()
    end = now_ms() + 2500
    while now_ms() < end:
        expect_lost_for_good(driver)
        pause(100)  # real time: a late renewal would come
    expect(trial.holder_token() is None, "the lock is held again")
    expect(trial.server.next_token() == granted["token"] + 1, "a token was drawn after the loss")


@rule("H4-revoked", "a revocation is noticed at the next renewal, before the deadline, and says so")
def revocation_is_noticed(trial: Trial) -> None:
    driver = trial.driver(trial.server.url)
    granted = trial.held(driver, ttl_ms=20_000)
    trial.server.lock(trial.lock, "break", fencing_token=granted["token"], reason="the suite")
    lost = driver.event("lost", grant="g", timeout_s=15)
    expect(lost["code"] == "revoked", f"the reason is {lost['code']!r}, not 'revoked'")
    expect_lost_for_good(driver)


@rule("H4-superseded", "a later grant to the same client id ends this one, and the loss says so")
def superseding_is_noticed(trial: Trial) -> None:
    driver = trial.driver(trial.server.url)
    trial.held(driver, ttl_ms=9000, client_id="one-of-two")
    later = trial.server.lock(trial.lock, "acquire", client_id="one-of-two", lease_duration_ms=60_000)
    lost = driver.event("lost", grant="g", timeout_s=8)
    expect(lost["code"] == "superseded", f"the reason is {lost['code']!r}, not 'superseded'")
    driver.call("release", grant="g")
    expect(trial.holder_token() == later["fencing_token"], "a release after the loss took the later grant")


@rule("H4-not-held", "a renewal answered with not_held is a loss", wire="http")
def not_held_is_a_loss(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = trial.driver(scripted.url)
    trial.held(driver, ttl_ms=9000)
    scripted.decide = lambda request: error(409, "not_held") if request.verb == "renew" else None
    lost = driver.event("lost", grant="g", timeout_s=8)
    expect(lost["code"] == "not_held", f"the reason is {lost['code']!r}, not 'not_held'")
    expect_lost_for_good(driver)
