"""Notices: a lease says that it is in danger, wanted or lost before its next renewal would."""

from __future__ import annotations

from typing import Any

from .clock import now_ms, pause, until
from .driver import Driver
from .rules import rule
from .scripted import Reply, Scripted, error
from .trial import Trial, expect

# Nothing that a renewal says comes within this rule.
LONG_MS = 60_000
# Longer than any client waits before it names a new grant.
SETTLED_MS = 600


def listening(trial: Trial, url: str, notices: bool = True) -> Driver:
    driver = trial.bare_driver()
    trial.needs(driver, "notices")
    answer = driver.call("connect", urls=[url], patience_ms=5000, notices=notices)
    expect(answer["ok"], f"connect failed: {answer}")
    return driver


def kinds(driver: Driver, *among: str) -> list[str]:
    told = [event["kind"] for event in list(driver.events) if event["event"] == "notice"]
    return [kind for kind in told if not among or kind in among]


def notice(driver: Driver, kind: str, timeout_s: float = 10.0) -> dict[str, Any]:
    return driver.event("notice", timeout_s, grant="g", kind=kind)


@rule("N-break-heard", "a revocation is heard at once, with its reason; without notices it is heard later")
def break_is_heard_at_once(trial: Trial) -> None:
    driver, control = listening(trial, trial.server.url), listening(trial, trial.server.url, notices=False)
    mine = trial.held(driver, ttl_ms=LONG_MS)
    late = control.call("acquire", **{**trial.wish(ttl_ms=15_000), "lock": "late"})
    expect(late["ok"], f"acquire failed: {late}")
    pause(SETTLED_MS)  # real time: the client listens by now
    broken = now_ms()
    trial.server.lock("late", "break", fencing_token=late["token"], reason="maintenance")
    trial.server.lock(trial.lock, "break", fencing_token=mine["token"], reason="maintenance")
    lost = driver.event("lost", grant="g", timeout_s=15)
    # It hears of it from its next renewal, within a third of the time of its lease.
    later = control.event("lost", grant="g", timeout_s=15)
    expect(lost["code"] == "revoked", f"the loss has the code {lost['code']!r}, not 'revoked'")
    took, slow = lost["at_ms"] - broken, later["at_ms"] - broken
    expect(took < slow / 2, f"heard after {took:.0f} ms, and without notices after {slow:.0f} ms")
    check = driver.call("check", grant="g")
    expect(not check["ok"], "check() succeeds although the loss was announced")
    told = notice(driver, "lost")
    found = told.get("why"), told.get("reason")
    expect(found == ("revoked", "maintenance"), f"the notice has the reason {found}, not ('revoked', 'maintenance')")


@rule("N-wanted", "a holder hears that a request waits for its lock, and that none does any more")
def holder_hears_that_others_wait(trial: Trial) -> None:
    driver, other = listening(trial, trial.server.url), trial.driver(trial.server.url)
    trial.held(driver, ttl_ms=LONG_MS)
    pause(SETTLED_MS)  # real time: the client listens by now
    expect(driver.call("wanted", grant="g")["waiters"] == 0, "somebody is said to wait, and nobody does")
    asked = other.start("acquire", **{**trial.wish(ttl_ms=5000, wait_ms=3000), "as": "w"})
    told = notice(driver, "wanted")
    expect(told.get("waiters") == 1, f"{told.get('waiters')} requests are said to wait, and one does")
    expect(driver.call("wanted", grant="g")["waiters"] == 1, "`wanted` does not say that one request waits")
    expect(not other.has_answered(asked), "the notice came after the request had ended")
    other.answer(asked)
    notice(driver, "unwanted")
    expect(driver.call("wanted", grant="g")["waiters"] == 0, "`wanted` still says that a request waits")
    expect(driver.call("check", grant="g")["ok"], "the lease is lost, because others waited")


@rule("N-upgrade", "an upgrade that is told before it is answered is no loss")
def told_before_answered(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = trial.bare_driver()
    trial.needs(driver, "notices", "update")
    url = scripted.url if driver.hello.get("wire", "http") == "http" else trial.server.url
    expect(driver.call("connect", urls=[url], patience_ms=5000, notices=True)["ok"], "connect failed")

    def answer_late(request: Any, answer: dict[str, Any]) -> dict[str, Any]:
        if request.body.get("mode") == "upgrade":
            heard = len(scripted.of("listen"))
            # The client that was told asks again, unless it takes the reader for lost or leaves it out.
            until(lambda: len(scripted.of("listen")) > heard or driver.find("lost") is not None, 2)
        return answer

    scripted.alter = answer_late
    # A client of one connection is told and answered in the same instant, in either order.
    for _ in range(3):
        trial.held(driver, ttl_ms=LONG_MS, mode="update")
        pause(SETTLED_MS)  # real time: the client listens by now
        answer = driver.call("upgrade", grant="g", wait_ms=0, **{"as": "w"})
        expect(answer["ok"], f"the upgrade failed: {answer}")
        expect(driver.find("lost") is None, "the upgrade was announced as a loss")
        expect(not kinds(driver, "lost"), f"the notices are {kinds(driver)}")
        driver.call("release", grant="w")


@rule("N-suspended-order", "a lease says suspended when a renewal fails, then restored; and suspended before lost")
def suspended_comes_first(trial: Trial) -> None:
    relay = trial.relay()
    driver = listening(trial, relay.url, notices=False)
    trial.held(driver, ttl_ms=4000)
    relay.cut(refuse=True)
    told = notice(driver, "suspended")
    left = told.get("remaining_ms") or 0
    expect(0 < left < 4000, f"{left} ms are said to remain of a lease of 4 s")
    expect(driver.call("check", grant="g")["ok"], "check() fails although the lease is only suspended")
    relay.accept_again()
    notice(driver, "restored")
    relay.cut(refuse=True)
    notice(driver, "lost")
    # The deadline alone ends it: what is said comes first, and each once.
    found = kinds(driver)
    expect(found == ["suspended", "restored", "suspended", "lost"], f"the notices are {found}")
    lost = driver.event("lost", grant="g")
    expect(lost["code"] == "expired", f"the reason is {lost['code']!r}, not 'expired'")


@rule("N-off", "a client without notices sends no listen, and its leases are renewed as before", wire="http")
def listening_can_be_switched_off(trial: Trial) -> None:
    scripted = trial.scripted()
    scripted.decide = lambda request: error(503, "unavailable") if request.path == "/v1/listen" else None
    driver = listening(trial, scripted.url, notices=False)
    trial.held(driver, ttl_ms=1500)
    expect(until(lambda: len(scripted.of("renew")) >= 3), "the lease is not renewed")
    expect(not scripted.of("listen"), "it listens although notices are off")
    driver.call("release", grant="g")
    # The control.
    driver.call("connect", urls=[scripted.url], patience_ms=5000, notices=True)
    trial.held(driver, ttl_ms=1500)
    expect(until(lambda: scripted.of("listen")), "with notices it does not listen")


@rule(
    "N-hundred", "each listen names at most a hundred grants, each once, and all together name every one", wire="http"
)
def a_hundred_in_a_request(trial: Trial) -> None:
    scripted = trial.scripted()
    hold_back(trial, scripted)
    driver = listening(trial, scripted.url)
    locks = {f"lock-{number}" for number in range(130)}
    for lock in sorted(locks):
        answer = driver.call("acquire", **{**trial.wish(ttl_ms=LONG_MS), "as": lock, "lock": lock})
        expect(answer["ok"], f"acquire failed: {answer}")

    def named() -> list[list[str]]:
        return [[grant["resource_id"] for grant in request.body["grants"]] for request in scripted.of("listen")]

    expect(until(lambda: {lock for each in named() for lock in each} == locks), "not every lease is named")
    for each in named():
        expect(1 <= len(each) <= 100, f"a listen names {len(each)} grants")
        expect(len(set(each)) == len(each), "a listen names a grant twice")


def hold_back(trial: Trial, scripted: Scripted) -> None:
    """A listen is not answered before the end of the trial."""
    ended: list[bool] = []
    trial.ends.append(lambda: ended.append(True))

    def decide(request: Any) -> Any:
        if request.path != "/v1/listen":
            return None
        until(lambda: ended, 60)
        return Reply(200, {"notices": []})

    scripted.decide = decide


@rule("N-no-storm", "a listen that fails is repeated after pauses, and suspends and ends nothing", wire="http")
def failing_listens_pause(trial: Trial) -> None:
    answers = [error(503, "unavailable"), error(429, "busy"), Reply(504, b"<html>"), Reply(200, {"notices": []})]
    for answer in answers:
        scripted = trial.scripted()
        scripted.decide = lambda request, answer=answer: answer if request.path == "/v1/listen" else None
        driver = listening(trial, scripted.url)
        lock = f"lock-{answer.status}"
        held = driver.call("acquire", **{**trial.wish(ttl_ms=10_000), "lock": lock})
        expect(held["ok"], f"acquire failed: {held}")
        expect(until(lambda scripted=scripted: scripted.of("listen")), "it does not listen")
        pause(3000)  # real time: so long its requests are counted
        asked = len(scripted.of("listen"))
        # Pauses of half a second, one, and two, of which chance takes at most half.
        expect(2 <= asked <= 8, f"{asked} requests in 3 s that were answered {answer.status} at once")
        expect(driver.call("check", grant="g")["ok"], f"the lease is lost, because a listen got {answer.status}")
        found = kinds(driver, "suspended", "lost")
        expect(not found, f"the notices are {found}, because a listen got {answer.status}")
        driver.call("release", grant="g")


@rule("N-old-server", "a server that does not know the request is not asked again", wire="http")
def old_servers_are_asked_once(trial: Trial) -> None:
    scripted = trial.scripted()
    scripted.decide = lambda request: error(404, "not_found") if request.path == "/v1/listen" else None
    driver = listening(trial, scripted.url)
    trial.held(driver, ttl_ms=3000)
    expect(until(lambda: scripted.of("listen")), "it does not listen")
    pause(3000)  # real time: several renewals
    expect(len(scripted.of("listen")) == 1, f"{len(scripted.of('listen'))} requests that the server does not know")
    expect(driver.call("check", grant="g")["ok"], "the lease is lost")
