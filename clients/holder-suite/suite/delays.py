"""Delays: time after a grant (docs/use/kinds.md). For drivers that say that they can: "delays"."""

from __future__ import annotations

from .driver import Answer, Driver
from .rules import rule
from .trial import Trial, expect


def connected(trial: Trial) -> Driver:
    driver = trial.bare_driver()
    trial.needs(driver, "delays")
    driver.call("connect", urls=[trial.server.url], patience_ms=5000)
    return driver


def delayed(trial: Trial, driver: Driver) -> Answer:
    """Another try, of which the client must say that nobody has the lock and nobody gets it."""
    answer = driver.call("acquire", **trial.wish(10_000))
    expect(not answer["ok"] and answer["code"] == "delayed", f"a try while the lock is closed: {answer}")
    return answer


@rule("Delays-at-least-for", "a grant that asks for it keeps its lock closed after an early release")
def at_least_for(trial: Trial) -> None:
    driver = connected(trial)
    trial.held(driver, 10_000, at_least_for_ms=60_000)
    driver.call("release", grant="g")
    delayed(trial, driver)
    expect(trial.server.show(trial.lock).get("delayed_ms", 0) > 0, "the server does not know the delay")


@rule(
    "Delays-lock-delay",
    "after a revocation a grant that asks for it keeps its lock closed, after a release it does not",
)
def lock_delay(trial: Trial) -> None:
    driver = connected(trial)
    trial.held(driver, 10_000, lock_delay_ms=30_000)
    driver.call("release", grant="g")
    granted = trial.held(driver, 10_000, lock_delay_ms=30_000)
    trial.server.lock(trial.lock, "break", fencing_token=granted["token"], reason="the suite")
    delayed(trial, driver)


@rule("Delays-none", "a grant that asks for no delay leaves its lock free")
def none_unless_asked_for(trial: Trial) -> None:
    driver = connected(trial)
    trial.held(driver, 10_000)
    driver.call("release", grant="g")
    trial.held(driver, 10_000)
