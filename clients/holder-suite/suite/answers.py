"""P: answers that belong to another request. A server that lies: with the answer to another request, late by one,
without the nonce, or about another lock, lease or authority."""

from __future__ import annotations

import re
from typing import Any, Optional

from .clock import now_ms, pause, until
from .rules import rule
from .scripted import LOST_NONCE, Reply, Request
from .trial import Trial, deadline_of, expect, expect_deadline, expect_lost_for_good, latest

OTHER_AUTHORITY = "00000000000000000000000000000001"


@rule("P-nonce", "every attempt has a nonce of its own, a repetition too, and it is not the request id", wire="http")
def nonces_are_fresh(trial: Trial) -> None:
    scripted = trial.scripted()
    lost = [Reply(status=0, forward=True), Reply(status=0, forward=True)]
    scripted.decide = lambda request: lost.pop(0) if request.verb == "acquire" and lost else None
    driver = trial.driver(scripted.url)
    trial.held(driver, ttl_ms=1500)
    expect(until(lambda: len(scripted.of("renew")) >= 2), "no renewals were sent")
    driver.call("release", grant="g")
    nonces = [request.nonce or "" for request in scripted.requests]
    bad = [nonce for nonce in nonces if not re.fullmatch("[A-Za-z0-9_-]{1,64}", nonce)]
    expect(not bad, f"a request has the nonce {bad[:1]}")
    expect(len(set(nonces)) == len(nonces), "two attempts have the same nonce")
    ids = {str(id).replace("-", "") for id in scripted.ids()}
    expect(not ids & {nonce.replace("-", "") for nonce in nonces}, "the request id is used as the nonce")


def lied_to(trial: Trial, what: str, **lie: Any) -> None:
    """The first two answers to an acquire are about something else; the third is right."""
    scripted = trial.scripted()
    left = [True, True]

    def alter(request: Request, answer: dict[str, Any]) -> dict[str, Any]:
        if request.verb == "acquire" and left:
            left.pop()
            return {**answer, **lie}
        return answer

    scripted.alter = alter
    granted = trial.held(trial.driver(scripted.url), ttl_ms=20_000)
    expect(not left, f"a grant with {what} was believed")
    expect(len(scripted.ids()) == 1, "the repetition has another request id")
    expect(granted["token"] == trial.holder_token(), f"a grant with {what} was believed")
    asked = [request.connection for request in scripted.of("acquire")]
    expect(len(set(asked)) == len(asked), f"the connection goes on on which a grant with {what} came")


@rule("P-other-lock", "a grant of another lock, or what is no grant, is an unknown outcome", wire="http")
def grant_of_another_lock(trial: Trial) -> None:
    for what, lie in (
        ("another lock", {"resource_id": "other"}),
        ("no lock", {"resource_id": None}),
        ("lock_acquired false", {"lock_acquired": False}),
        ("waiting in place of a grant", {"lock_acquired": "true"}),
    ):
        lied_to(trial, what, **lie)
        trial.server.lock(trial.lock, "break", fencing_token=trial.holder_token(), reason="the next lie")


@rule(
    "P-other-nonce", "an answer with another nonce or none is an unknown outcome, and ends its connection", wire="http"
)
def answer_with_another_nonce(trial: Trial) -> None:
    for nonce in ("another", LOST_NONCE):
        scripted = trial.scripted()
        left = [True, True]

        def echo(request: Request, left: list[bool] = left, nonce: Optional[str] = nonce) -> Optional[str]:
            if request.verb == "acquire" and left:
                left.pop()
                return nonce
            return request.nonce

        scripted.echo = echo
        granted = trial.held(trial.driver(scripted.url), ttl_ms=20_000)
        expect(not left, "an answer was believed that is not that of the request")
        expect(len(scripted.ids()) == 1, "the repetition has another request id")
        asked = [request.connection for request in scripted.of("acquire")]
        expect(len(set(asked)) == len(asked), "the connection goes on on which another request's answer came")
        trial.server.lock(trial.lock, "break", fencing_token=granted["token"], reason="the next lie")


@rule("P-late-by-one", "answers that are late by one move no deadline, also on the same lease", wire="http")
def answers_late_by_one(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = trial.driver(scripted.url)
    granted = trial.held(driver, ttl_ms=3000)
    sent = scripted.of("acquire")[-1].at
    # A renewal is answered, with the answer to the one before: all are of this lease, and all are acknowledgements.
    scripted.late_by_one = True
    end = now_ms() + 4500
    while now_ms() < end:
        left = driver.call("remaining", grant="g")
        if left["remaining_ms"] > 0:
            expect_deadline(left, latest(sent, 3000), "answers were late by one")
        pause(20)  # real time: the lease has to last out its time
    driver.event("lost", grant="g")
    expect_lost_for_good(driver)
    expect(len(scripted.of("renew")) >= 2, "no renewals were sent, so this shows nothing")
    expect(granted["token"] == 1, "it was granted again")


@rule(
    "P-late-connection", "a connection that is late by one is given up, and the lease is kept on another", wire="http"
)
def connection_late_by_one(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = trial.driver(scripted.url)
    trial.held(driver, ttl_ms=3000)
    first = scripted.of("acquire")[-1].connection
    scripted.late_connections = {first}
    end = now_ms() + 5000
    while now_ms() < end:
        check = driver.call("check", grant="g")
        expect(check["ok"], f"lost although a new connection would have worked: {check}")
        pause(50)  # real time: longer than the lease


@rule("P-other-renewal", "a renewal of another lock, token or authority moves no deadline", wire="http")
def renewal_of_another_grant(trial: Trial) -> None:
    for name, value in (
        ("resource_id", "other"),
        ("fencing_token", 4242),
        ("authority", OTHER_AUTHORITY),
        ("released", True),
        ("lock_acquired", True),
    ):
        scripted = trial.scripted()

        def alter(request: Request, answer: Any, name: str = name, value: Any = value) -> Any:
            return {**answer, name: value} if request.verb == "renew" else answer

        scripted.alter = alter
        driver = trial.driver(scripted.url)
        granted = trial.held(driver, ttl_ms=1500)
        sent = scripted.of("acquire")[-1].at
        lost = driver.event("lost", grant="g", timeout_s=6)
        late = lost["at_ms"] - latest(sent, 1500)
        expect(late < 1000, f"a renewal with {name} {value!r} was believed")
        expect(lost["code"] == "expired", f"the reason is {lost['code']!r}, not 'expired'")
        expect(deadline_of(granted) <= latest(sent, 1500), "the grant itself counts from its answer")
        expect(until(lambda: trial.holder_token() is None), "the lease does not end")


@rule("P-other-release", "a release that is acknowledged for something else is repeated", wire="http")
def release_of_another_grant(trial: Trial) -> None:
    scripted = trial.scripted()
    lies = [{"resource_id": "other"}, {"fencing_token": 4242}, {"authority": OTHER_AUTHORITY}]

    def decide(request: Request) -> Optional[Reply]:
        if request.verb != "release" or not lies:
            return None
        said = {"resource_id": trial.lock, "released": True, "already_released": False, "fencing_token": 1}
        return Reply(200, {**said, "authority": trial.server.authority(), **lies.pop()})

    scripted.decide = decide
    driver = trial.driver(scripted.url)
    trial.held(driver, ttl_ms=20_000)
    answer = driver.call("release", grant="g")
    expect(answer["ok"] and not lies, f"an acknowledgement of something else was believed: {answer}")
    trial.expect_free("the lock is still held")
