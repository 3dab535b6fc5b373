"""S: readers and a writer (docs/use/kinds.md). For drivers that say that they can: "shared"."""

from __future__ import annotations

from typing import Any

from .clock import now_ms, pause, until
from .driver import Answer, Driver
from .rules import rule
from .scripted import LOSE_ANSWER, Reply, Scripted, error
from .trial import Trial, expect, expect_lost_for_good, watch_checks


def reads(trial: Trial, driver: Driver, grant: str = "g", ttl_ms: int = 20_000) -> Answer:
    """The driver holds the lock as a reader."""
    answer = driver.call("acquire", **{**trial.wish(ttl_ms), "as": grant, "mode": "shared"})
    expect(answer["ok"], f"a reader was refused: {answer}")
    return answer


def another_reader(trial: Trial) -> dict[str, Any]:
    """Another client reads, at the server itself."""
    reader = trial.server.lock(
        trial.lock, "acquire", client_id="another reader", lease_duration_ms=60_000, mode="shared"
    )
    expect(reader["status"] == 200, f"another reader was refused: {reader}")
    return reader


def connected(trial: Trial, url: str, **options: Any) -> Driver:
    driver = trial.bare_driver()
    trial.needs(driver, "shared")
    driver.call("connect", urls=[url], **{"patience_ms": 5000, **options})
    return driver


def grant_ids(trial: Trial) -> set[int]:
    return {reader["grant_id"] for reader in trial.server.show(trial.lock).get("readers", [])}


@rule("S-readers", "readers hold together: one token, a grant id for each, and one leaves without the others")
def readers_hold_together(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    one, other = reads(trial, driver, "g", 1500), reads(trial, driver, "h", 1500)
    expect(one["token"] == other["token"], f"the tokens of one phase are {one['token']} and {other['token']}")
    expect(one["grant_id"] != other["grant_id"], f"both grants are called {one['grant_id']}")
    expect(grant_ids(trial) == {one["grant_id"], other["grant_id"]}, "the server knows other readers")
    end = now_ms() + 4000
    while now_ms() < end:
        for grant in ("g", "h"):
            expect(driver.call("check", grant=grant)["ok"], f"reader {grant!r} lost its lease")
        pause(100)  # real time: longer than the leases
    driver.call("release", grant="h")
    expect(grant_ids(trial) == {one["grant_id"]}, "the release of one reader ended another, or not its own")
    expect(driver.call("check", grant="g")["ok"], "a reader lost its lease when another one left")


@rule("S-grant-id", "a reader is renewed and released by its grant id, not by the phase's token", wire="http")
def readers_are_named_by_their_grant_id(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url)
    another_reader(trial)
    granted = reads(trial, driver, ttl_ms=1500)
    expect(granted["grant_id"] != granted["token"], "the second reader began the phase")
    expect(until(lambda: scripted.of("renew")), "no renewal was sent")
    driver.call("release", grant="g")
    named = {request.body["fencing_token"] for verb in ("renew", "release") for request in scripted.of(verb)}
    expect(named == {granted["grant_id"]}, f"grant {granted['grant_id']} was named {named}")


@rule("S-exclusive", "a request that does not say shared is a writer's")
def writers_are_the_default(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    another_reader(trial)
    answer = driver.call("acquire", **trial.wish(ttl_ms=10_000))
    expect(not answer["ok"] and answer["code"] == "held", f"a writer beside a reader: {answer}")


@rule("S-no-grant-id", "a shared grant without a grant id is a broken answer, not a grant", wire="http")
def grant_id_is_missing(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url, patience_ms=300)
    scripted.alter = lambda request, answer: {key: value for key, value in answer.items() if key != "grant_id"}
    answer = driver.call("acquire", **{**trial.wish(ttl_ms=60_000), "mode": "shared"})
    expect(not answer["ok"] and answer["code"] == "unknown_outcome", f"a grant that nobody can name: {answer}")
    trial.expect_free("the grant that could not be named is still held")


@rule("S-revoked", "the revocation of one reader ends that reader only")
def one_reader_is_revoked(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    reads(trial, driver, "h", 4000)
    granted = reads(trial, driver, "g", 4000)
    trial.server.lock(trial.lock, "break", fencing_token=granted["grant_id"], reason="the suite")
    lost = driver.event("lost", grant="g", timeout_s=10)
    expect(lost["code"] == "revoked", f"the reason is {lost['code']!r}, not 'revoked'")
    expect_lost_for_good(driver)
    expect(driver.call("check", grant="h")["ok"], "the other reader lost its lease")


@rule("S-deadline", "a reader's deadline is as strict as a writer's")
def readers_have_a_deadline(trial: Trial) -> None:
    relay = trial.relay()
    driver = connected(trial, relay.url)
    reads(trial, driver, ttl_ms=1500)
    relay.cut(refuse=True)
    watch_checks(driver, relay.last_sent() + 1500)
    expect_lost_for_good(driver)


@rule("S-downgrade", "a writer becomes a reader in one step, with a higher token; its grant as a writer is over")
def writer_becomes_reader(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    writer = trial.held(driver, ttl_ms=2000)
    reader = driver.call("downgrade", grant="g", **{"as": "r"})
    expect(reader["ok"], f"downgrade failed: {reader}")
    expect(reader["token"] > writer["token"], f"the token went from {writer['token']} to {reader['token']}")
    expect(not driver.call("check", grant="g")["ok"], "the writer's grant still holds")
    beside = another_reader(trial)
    expect(beside["fencing_token"] == reader["token"], "the readers have different tokens")
    end = now_ms() + 4000
    while now_ms() < end:
        expect(driver.call("check", grant="r")["ok"], "the reader lost its lease")
        pause(100)  # real time: longer than the lease
    expect(reader["grant_id"] in grant_ids(trial), "the server does not know the reader")
    driver.call("release", grant="g")
    expect(reader["grant_id"] in grant_ids(trial), "a release of the writer's grant took the reader's")
    driver.call("release", grant="r")
    expect(grant_ids(trial) == {beside["grant_id"]}, "the reader was not released")
    expect(driver.find("lost") is None, "a downgrade was announced as a loss")


@rule("S-downgrade-before", "a writer that becomes a reader does not hold as a writer from before it asks", wire="http")
def writer_ends_before_it_asks(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url)
    trial.held(driver, ttl_ms=20_000)
    checks: list[Answer] = []

    def decide(request: Any) -> Any:
        if request.verb == "acquire":
            checks.append(driver.call("check", grant="g"))
        return None

    scripted.decide = decide
    reader = driver.call("downgrade", grant="g", **{"as": "r"})
    expect(reader["ok"], f"downgrade failed: {reader}")
    expect(checks and not checks[0]["ok"], "check() of the writer succeeded while the downgrade was under way")


@rule("S-downgrade-once", "a downgrade whose answer is lost is repeated with the same request id", wire="http")
def downgrade_is_repeated(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url)
    writer = trial.held(driver, ttl_ms=20_000)
    earlier = scripted.ids()
    answers = [LOSE_ANSWER]
    scripted.decide = lambda request: answers.pop() if request.verb == "acquire" and answers else None
    reader = driver.call("downgrade", grant="g", **{"as": "r"})
    expect(reader["ok"], f"downgrade failed: {reader}")
    expect(len(scripted.ids() - earlier) == 1, "the repetition has another request id")
    expect(trial.server.next_token() == writer["token"] + 2, "the downgrade drew more than one token")


@rule("S-downgrade-fails", "a downgrade that fails leaves no lock behind", wire="http")
def failed_downgrade_leaves_nothing(trial: Trial) -> None:
    for reply in (error(429, "queue_full"), LOSE_ANSWER):
        scripted = trial.scripted()
        driver = connected(trial, scripted.url, patience_ms=500)
        trial.held(driver, ttl_ms=60_000)
        refuse(scripted, reply)
        answer = driver.call("downgrade", grant="g", **{"as": "r"})
        expect(not answer["ok"], f"the downgrade was refused, and succeeded: {answer}")
        trial.expect_free("a lock of 60 s is still held after its downgrade failed")


@rule("S-downgrade-lost", "a writer that is lost does not become a reader: nothing is asked", wire="http")
def lost_writer_does_not_become_a_reader(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = connected(trial, scripted.url)
    trial.held(driver, ttl_ms=1500)
    scripted.decide = lambda request: error(410, "revoked") if request.verb == "renew" else None
    driver.event("lost", grant="g")
    before = len(scripted.of("acquire"))
    answer = driver.call("downgrade", grant="g", **{"as": "r"})
    expect(not answer["ok"] and answer["code"] == "revoked", f"the answer is {answer}")
    expect(len(scripted.of("acquire")) == before, "a lost writer asked to be a reader")


def refuse(scripted: Scripted, reply: Reply) -> None:
    scripted.decide = lambda request: reply if request.verb == "acquire" else None
