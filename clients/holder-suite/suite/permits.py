"""Slots: permits of a semaphore (docs/use/kinds.md). For drivers that say that they can: "permits"."""

from __future__ import annotations

from typing import Any

from .clock import now_ms, pause
from .driver import Answer, Driver
from .rules import rule
from .trial import Trial, expect


def connected(trial: Trial, url: str, **options: Any) -> Driver:
    driver = trial.bare_driver()
    trial.needs(driver, "permits")
    driver.call("connect", urls=[url], **{"patience_ms": 5000, **options})
    return driver


def takes(trial: Trial, driver: Driver, grant: str, count: int, of: int, ttl_ms: int = 20_000) -> Answer:
    """The driver asks for permits."""
    return driver.call("acquire", **{**trial.wish(ttl_ms), "as": grant, "permits": {"count": count, "of": of}})


def held(trial: Trial, driver: Driver, grant: str, count: int, of: int, ttl_ms: int = 20_000) -> Answer:
    answer = takes(trial, driver, grant, count, of, ttl_ms)
    expect(answer["ok"], f"{count} of {of} permits were refused: {answer}")
    return answer


def slots(trial: Trial) -> dict[int, list[int]]:
    """The slots of each token, as the server knows them."""
    holders = trial.server.show(trial.lock).get("readers", [])
    return {holder["fencing_token"]: holder["slots"] for holder in holders}


@rule("Slots-own", "each grant of permits has slots and a token of its own, is kept, and leaves without the others")
def grants_have_slots_of_their_own(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    one, two = held(trial, driver, "g", 1, 3, 1500), held(trial, driver, "h", 2, 3, 1500)
    expect((one.get("slots"), two.get("slots")) == ([1], [2, 3]), f"the slots are {one} and {two}")
    keys = [f"{trial.lock}~{slot}" for slot in (1, 2, 3)]
    expect([*one["slot_keys"], *two["slot_keys"]] == keys, f"the fences of the slots are {one} and {two}")
    expect(two["token"] > one["token"], f"the tokens are {one['token']} and {two['token']}")
    end = now_ms() + 4000
    while now_ms() < end:
        for grant in ("g", "h"):
            expect(driver.call("check", grant=grant)["ok"], f"grant {grant!r} was lost")
        pause(100)  # real time: longer than the leases
    expect(slots(trial) == {one["token"]: [1], two["token"]: [2, 3]}, "the server knows other holders")
    driver.call("release", grant="g")
    expect(slots(trial) == {two["token"]: [2, 3]}, "the release of one grant ended another, or not its own")
    expect(driver.call("check", grant="h")["ok"], "a grant was lost when another one was released")


@rule("Slots-fewer", "a grant with other than the wanted number of slots is a broken answer, not a grant", wire="http")
def slots_are_missing(trial: Trial) -> None:
    for broken in (None, [], [1], [2, 2], [0, 1], [64, 65], ["1", "2"]):
        scripted = trial.scripted()
        driver = connected(trial, scripted.url, patience_ms=300)
        scripted.alter = lambda request, answer: {**answer, "slots": broken}
        answer = takes(trial, driver, "g", 2, 3, 60_000)
        expect(not answer["ok"] and answer["code"] == "unknown_outcome", f"slots {broken} were taken: {answer}")
        trial.expect_free("the grant without its slots is still held")


@rule("Slots-number", "a request with another number of permits is refused as invalid and changes nothing")
def another_number_is_refused(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    one = held(trial, driver, "g", 1, 3)
    for count, of in ((1, 4), (4, 3), (0, 3)):
        answer = takes(trial, driver, "h", count, of)
        expect(not answer["ok"] and answer["code"] == "invalid", f"{count} of {of} beside 1 of 3: {answer}")
    expect(slots(trial) == {one["token"]: [1]}, "a refused request changed the semaphore")


@rule("Slots-downgrade", "permits have no shared mode: a downgrade is refused, and the permits are kept", wire="http")
def permits_are_not_downgraded(trial: Trial) -> None:
    driver = connected(trial, trial.server.url)
    trial.needs(driver, "shared")
    one = held(trial, driver, "g", 1, 3)
    answer = driver.call("downgrade", grant="g", **{"as": "r"})
    expect(not answer["ok"] and answer["code"] == "invalid", f"a downgrade of permits: {answer}")
    expect(driver.call("check", grant="g")["ok"] and slots(trial) == {one["token"]: [1]}, "the permits are gone")
