"""M: several locks at once (docs/use/kinds.md). For drivers that say that they can: "sets"."""

from __future__ import annotations

from typing import Any, Optional

from .clock import now_ms, pause, until
from .driver import Answer, Driver
from .relay import BACK
from .rules import rule
from .scripted import LOSE_ANSWER, Reply, Request, Scripted, error
from .trial import Trial, deadline_of, expect, expect_deadline, expect_lost_for_good, latest, watch_checks

# The suite's own lock stands between them in the order of names.
LOWER, HIGHER = "invoices", "stock"


def connected(trial: Trial, url: str, **options: Any) -> Driver:
    driver = trial.bare_driver()
    trial.needs(driver, "sets")
    driver.call("connect", urls=[url], **{"patience_ms": 5000, **options})
    return driver


def holders(trial: Trial, *locks: str) -> list[Optional[int]]:
    """The token that holds each of the locks, as the server knows it."""
    shown = [trial.server.show(lock)["holder"] for lock in locks]
    return [holder and int(holder["fencing_token"]) for holder in shown]


def waiters(trial: Trial, *locks: str) -> list[int]:
    return [int(trial.server.show(lock)["waiters"]) for lock in locks]


def taken(trial: Trial, lock: str) -> Answer:
    """Another client gets a lock, at the server itself."""
    grant = trial.server.lock(lock, "acquire", client_id="another", lease_duration_ms=60_000)
    expect(grant["status"] == 200, f"another client did not get {lock!r}: {grant}")
    return grant


def expect_kept(driver: Driver, ms: float, why: str) -> None:
    end = now_ms() + ms
    while now_ms() < end:
        expect(driver.call("check", grant="g")["ok"], why)
        pause(100)  # real time: as long as the caller says
    expect(driver.find("lost", grant="g") is None, why)


def locks_of(scripted: Scripted, verb: str) -> list[str]:
    return [lock_of(request) for request in scripted.of(verb)]


def lock_of(request: Request) -> str:
    return request.path.split("/")[3]


@rule("M-whole", "all or none: a request for several locks that waits for one of them holds no other")
def all_or_none(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    for busy, free in ((HIGHER, trial.lock), (trial.lock, HIGHER)):
        other = taken(trial, busy)
        asked = driver.start("acquire", **trial.wish(20_000, 30_000, also=[HIGHER]))
        expect(until(lambda busy=busy: waiters(trial, busy) == [1]), f"the request does not wait for {busy!r}")
        expect(holders(trial, free) == [None], f"{free!r} is held while {busy!r} is waited for")
        expect(waiters(trial, free) == [1], f"the request does not wait for {free!r}")
        trial.server.lock(busy, "release", lock_token=other["lock_token"])
        granted = driver.answer(asked)
        expect(granted["ok"], f"acquire failed: {granted}")
        expect(holders(trial, free, busy) == [granted["token"]] * 2, "half of the locks was granted")
        released = driver.call("release", grant="g")
        expect(released.get("result") == "released", f"release: {released}")
        expect(holders(trial, free, busy) == [None, None], "a lock is still held after the release")


@rule("M-one-token", "several locks have one token, which is drawn once and stays, and all of them are kept")
def one_token(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    granted = trial.held(driver, 3000, also=[HIGHER, LOWER])
    expect_kept(driver, 6000, "lost although the server was there")
    tokens = holders(trial, LOWER, trial.lock, HIGHER)
    expect(tokens == [granted["token"]] * 3, f"the grant has token {granted['token']}, the locks have {tokens}")
    expect(trial.server.next_token() == granted["token"] + 1 == 2, "more than one token was drawn")


@rule("M-part-released", "a lock that is released early is free for others, and the rest is held and renewed")
def part_is_released(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    granted = trial.held(driver, 3000, also=[HIGHER, LOWER])
    for number, part in enumerate((trial.lock, HIGHER)):
        released = driver.call("release", grant="g", lock=part)
        expect(released.get("result") == "released", f"the release of {part!r}: {released}")
        other = taken(trial, part)
        expect(other["fencing_token"] > granted["token"], "the next holder has no higher token")
        rest = (LOWER, HIGHER)[: 2 - number]
        expect_kept(driver, 4000, f"lost when {part!r} was released")
        expect(holders(trial, *rest) == [granted["token"]] * len(rest), f"{rest} went with {part!r}")
        again = driver.call("release", grant="g", lock=part)
        expect(again["ok"], f"a second release of {part!r}: {again}")
        expect(holders(trial, part) == [other["fencing_token"]], "a second release took the next holder's lock")
    driver.call("release", grant="g")
    expect(holders(trial, LOWER) == [None], "the rest is still held after the release")
    expect(holders(trial, trial.lock) != [None], "the release of the rest took the next holder's lock")


@rule("M-last-part", "when its last lock is released the grant is over, and that is no loss")
def last_part_is_released(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    trial.held(driver, 3000, also=[HIGHER])
    for part in (HIGHER, trial.lock):
        expect(driver.call("check", grant="g")["ok"], "lost before the last lock was released")
        driver.call("release", grant="g", lock=part)
    expect(holders(trial, trial.lock, HIGHER) == [None, None], "a lock is still held after its release")
    expect_lost_for_good(driver)
    pause(3500)  # real time: longer than the lease
    expect(driver.find("lost", grant="g") is None, "a release was announced as a loss")


@rule("M-part-revoked", "a revocation of one lock is a loss of all within one lease, and the others become free")
def part_is_revoked(trial: Trial) -> None:
    ttl_ms = 9000
    driver = connected(trial, trial.server.url)
    # Of one grant the lower lock is revoked, of the other the higher one.
    parts = {"g": (trial.lock, HIGHER), "h": ("a", "b")}
    for grant, (first, second) in parts.items():
        wish = {**trial.wish(ttl_ms, also=[second]), "as": grant, "lock": first}
        granted = driver.call("acquire", **wish)
        expect(granted["ok"], f"acquire failed: {granted}")
    revoked = {"g": HIGHER, "h": "a"}
    broken_ms = now_ms()
    for lock in revoked.values():
        token = trial.server.show(lock)["holder"]["fencing_token"]
        trial.server.lock(lock, "break", fencing_token=token, reason="the suite")
    for grant, locks in parts.items():
        lost = driver.event("lost", grant=grant, timeout_s=15)
        late = lost["at_ms"] - broken_ms - ttl_ms
        expect(late <= 0, f"announced {late:.0f} ms after a lease's time")
        expect(lost["code"] == "revoked", f"the reason is {lost['code']!r}, not 'revoked'")
        check = driver.call("check", grant=grant)
        expect(not check["ok"], f"check() succeeds although {revoked[grant]!r} was revoked")
        # The lease itself would go on for more than half of its time.
        expect(until(lambda locks=locks: holders(trial, *locks) == [None, None], 4), "what is left is still held")


@rule("M-round", "each round of renewals names every lock that is held, and no other", wire="http")
def each_round_names_all(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url)
    trial.held(driver, 6000, also=[HIGHER, LOWER, "zones"])

    def counts() -> dict[str, int]:
        named = locks_of(scripted, "renew")
        return {lock: named.count(lock) for lock in (LOWER, trial.lock, HIGHER, "zones")}

    # Three rounds take 6 s. Renewals of one lock each would take 24 s.
    expect(until(lambda: min(counts().values()) >= 3, 15), f"in 15 s the renewals named {counts()}")
    driver.call("release", grant="g", lock=trial.lock)
    before = counts()
    del before[trial.lock]

    def again(times: int) -> bool:
        return all(counts()[lock] >= count + times for lock, count in before.items())

    # The first round may have been under way at the release.
    expect(until(lambda: again(1), 15), f"the rest is not renewed: {before}, {counts()}")
    began = len(locks_of(scripted, "renew"))
    expect(until(lambda: again(2), 15), f"the rest is not renewed: {before}, {counts()}")
    later = locks_of(scripted, "renew")[began:]
    expect(trial.lock not in later, f"{trial.lock!r} was released, and then renewed: {later}")


@rule("M-deadline", "the deadline after a round of renewals counts from before its first request", wire="http")
def deadline_counts_from_the_first(trial: Trial) -> None:
    scripted = trial.scripted()
    seen: list[Request] = []

    def decide(request: Request) -> Optional[Reply]:
        if request.verb == "renew":
            seen.append(request)
            if len(seen) == 1:
                pause(800)  # real time: the answer is late
        return None

    scripted.decide = decide
    driver = connected(trial, scripted.url)
    trial.held(driver, 9000, also=[HIGHER])
    first = driver.call("remaining", grant="g")
    expect(until(lambda: {lock_of(request) for request in seen} == {trial.lock, HIGHER}), "a lock was not renewed")
    # Waits until the next round begins, which hides the effects of this one.
    end = now_ms() + 1000
    while now_ms() < end:
        again = driver.call("remaining", grant="g")
        # Each lock was renewed in the round that counts, or later.
        last = [max(request.at for request in seen if lock_of(request) == lock) for lock in (trial.lock, HIGHER)]
        expect_deadline(again, latest(min(last), 9000), "the second request came 0.8 s after the first one")
        pause(20)  # real time: looked at again
    moved = until(lambda: deadline_of(driver.call("remaining", grant="g")) > deadline_of(first) + 100)
    expect(moved, "the renewal moved nothing")


@rule("M-all-acknowledged", "a lock that is not acknowledged ends the lease, though the others are", wire="http")
def all_are_acknowledged(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url)
    scripted.decide = lambda request: (
        error(503, "unavailable") if request.verb == "renew" and lock_of(request) == HIGHER else None
    )
    trial.held(driver, 3000, also=[HIGHER])
    watch_checks(driver, latest(scripted.of("acquire")[0].at, 3000))
    lost = driver.event("lost", grant="g")
    expect(lost["code"] == "expired", f"the reason is {lost['code']!r}, not 'expired'")


@rule("M-slow", "a round of renewals may take longer than one attempt is waited for", wire="http")
def slow_round_keeps_the_lease(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url)

    def decide(request: Request) -> None:
        if request.verb == "renew":
            pause(400)  # real time: each answer is late

    scripted.decide = decide
    trial.held(driver, 6000, also=[HIGHER, LOWER, "zones"])
    # At the first round 4 s are left: an attempt is waited for 1.3 s, and the round takes 1.6 s.
    expect_kept(driver, 9000, "lost although each renewal was answered in time")


@rule("M-released-renewal", "a renewal that meets a lock which was released here meanwhile is no loss", wire="http")
def renewal_meets_a_release(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url)
    released: list[Answer] = []

    def decide(request: Request) -> None:
        if request.verb == "renew" and lock_of(request) == HIGHER and not released:
            released.append(driver.call("release", grant="g", lock=HIGHER))

    scripted.decide = decide
    granted = trial.held(driver, 3000, also=[HIGHER])
    expect(until(lambda: released), f"{HIGHER!r} was not renewed")
    expect(released[0].get("result") == "released", f"the release of {HIGHER!r}: {released}")
    expect_kept(driver, 5000, "the release was taken for a loss")
    expect(holders(trial, trial.lock, HIGHER) == [granted["token"], None], "the server knows other holders")


@rule("M-silent", "after a release in the middle of a round of renewals no other lock is renewed", wire="http")
def release_ends_the_round(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url)
    released: list[Answer] = []

    def release(request: Request, answer: dict[str, Any]) -> dict[str, Any]:
        # The first renewal is acknowledged, and the release comes before its answer.
        if request.verb == "renew" and not released:
            released.append(driver.call("release", grant="g"))
        return answer

    scripted.alter = release
    trial.held(driver, 3000, also=[HIGHER, LOWER])
    expect(until(lambda: released), "it was not renewed")
    pause(1500)  # real time: another renewal would come
    expect(len(scripted.of("renew")) == 1, f"renewals after the release: {locks_of(scripted, 'renew')[1:]}")
    expect(driver.find("lost", grant="g") is None, "a release was announced as a loss")


@rule("M-part-again", "a lock whose release got no answer is released with the rest", wire="http")
def unanswered_release_is_repeated(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url, patience_ms=2000)
    trial.held(driver, 60_000, also=[HIGHER])
    scripted.decide = lambda request: error(503, "unavailable") if request.verb == "release" else None
    answer = driver.call("release", grant="g", lock=HIGHER)
    # The last attempt has little time: on a busy machine it may end before its answer is read.
    known = ("unavailable", "unknown_outcome")
    expect(not answer["ok"] and answer["code"] in known, f"a release that nobody received: {answer}")
    expect(driver.call("check", grant="g")["ok"], "the rest was lost with it")
    scripted.decide = lambda request: None
    driver.call("release", grant="g")
    expect(holders(trial, trial.lock, HIGHER) == [None, None], "a lock is still held after the release")


@rule("M-repeat", "a request for several locks is repeated with the same names, and gets the same grant", wire="http")
def repetitions_name_the_same(trial: Trial) -> None:
    scripted = trial.scripted()
    answers = [LOSE_ANSWER, error(504, "unknown_outcome", forward=True)]
    scripted.decide = lambda request: answers.pop(0) if request.verb == "acquire" and answers else None
    driver = connected(trial, scripted.url)
    granted = trial.held(driver, 20_000, also=[HIGHER, LOWER])
    sent = [{lock_of(request), *request.body["also"]} for request in scripted.of("acquire")]
    expect(sent == [{trial.lock, HIGHER, LOWER}] * 3, f"the requests named {sent}")
    expect(len(scripted.ids()) == 1, f"{len(scripted.ids())} request ids for one acquire")
    expect(trial.server.next_token() == granted["token"] + 1 == 2, "more than one token was drawn")


@rule("M-cancelled", "a cancelled request for several locks leaves every queue, and gives every lock back")
def cancelled_request_leaves_nothing(trial: Trial) -> None:
    relay = trial.relay()
    driver = connected(trial, relay.url)
    trial.needs(driver, "cancel")
    other = taken(trial, HIGHER)
    asked = driver.start("acquire", **trial.wish(60_000, 30_000, also=[HIGHER]))
    expect(until(lambda: waiters(trial, trial.lock, HIGHER) == [1, 1]), "the request does not wait")
    driver.call("cancel", target=asked)
    expect(until(lambda: waiters(trial, trial.lock, HIGHER) == [0, 0], 6), "the cancelled request still waits")
    trial.server.lock(HIGHER, "release", lock_token=other["lock_token"])
    relay.hold(BACK)
    asked = driver.start("acquire", **trial.wish(60_000, also=[HIGHER]))
    expect(until(lambda: None not in holders(trial, trial.lock, HIGHER)), "the request did not arrive")
    driver.call("cancel", target=asked)
    relay.open()
    free = until(lambda: holders(trial, trial.lock, HIGHER) == [None, None], 6)
    expect(free, "a lock of 60 s is still held after its acquire was cancelled")


@rule(
    "M-invalid",
    "no name twice, none that is not valid and no more than 64: refused before anything is sent",
    wire="http",
)
def wrong_names_are_refused(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url)
    for wrong in ([trial.lock], [HIGHER, HIGHER], [""], ["."], [f"lock-{number}" for number in range(64)]):
        answer = driver.call("acquire", **trial.wish(20_000, also=wrong))
        expect(not answer["ok"] and answer["code"] == "invalid", f"{trial.lock!r} and {wrong[:2]}: {answer}")
    expect(not scripted.requests, f"sent: {scripted.requests[:1]}")
    most = [f"lock-{number}" for number in range(63)]
    trial.held(driver, 60_000, also=most)
    answer = driver.call("release", grant="g", lock="another")
    expect(not answer["ok"] and answer["code"] == "invalid", f"the release of a lock that is not its own: {answer}")
    expect(None not in holders(trial, trial.lock, *most), "a lock is not held")


@rule("M-downgrade", "several locks have no shared mode: a downgrade is refused, and all are kept", wire="http")
def sets_are_not_downgraded(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    trial.needs(driver, "shared")
    granted = trial.held(driver, 20_000, also=[HIGHER])
    answer = driver.call("downgrade", grant="g", **{"as": "r"})
    expect(not answer["ok"] and answer["code"] == "invalid", f"a downgrade of several locks: {answer}")
    expect(driver.call("check", grant="g")["ok"], "the grant is lost")
    expect(holders(trial, trial.lock, HIGHER) == [granted["token"]] * 2, "a lock is gone")
