"""H3 and H5: release, and acquires that end without a grant."""

from __future__ import annotations

import threading
from typing import Any, Optional

from .clock import now_ms, pause, until
from .relay import BACK, FORTH
from .rules import rule
from .scripted import LOSE_ANSWER, Reply, Request, error
from .trial import Trial, expect, expect_lost_for_good


@rule("H3-before-release", "not held is recorded before the release is sent, not when it is answered")
def not_held_before_the_release(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    trial.held(driver, ttl_ms=10_000)
    relay.hold(FORTH)
    before = now_ms()
    asked = driver.start("release", grant="g")
    expect(relay.next_bytes(FORTH, before), "no release was sent")
    expect_lost_for_good(driver)
    expect(not driver.has_answered(asked), "the release was reported before the server had it")
    relay.open()
    answer = driver.answer(asked)
    expect(answer["ok"], f"the release failed: {answer}")
    trial.expect_free("the lock is still held after the release")
    expect(driver.find("lost", grant="g") is None, "a release was announced as a loss")


@rule("H3-repeat", "a release whose answer is lost is repeated, and reported as done")
def release_is_repeated(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    trial.held(driver, ttl_ms=20_000)
    relay.hold(BACK)
    before = now_ms()
    asked = driver.start("release", grant="g")
    expect(relay.next_bytes(FORTH, before), "no release was sent")
    trial.expect_free("the release did not arrive")
    relay.cut()
    relay.open()
    answer = driver.answer(asked)
    expect(answer["ok"], f"the release is reported as failed: {answer}")
    expect(answer["result"] in ("released", "already_released"), f"the result is {answer['result']!r}")


@rule("H3-twice", "releasing twice is harmless")
def releasing_twice(trial: Trial) -> None:
    driver = trial.driver(trial.server.url)
    trial.held(driver, ttl_ms=10_000)
    first = driver.call("release", grant="g")
    another = trial.taken_by_another()
    second = driver.call("release", grant="g")
    expect(first["ok"] and second["ok"], f"a release failed: {first}, {second}")
    expect(trial.holder_token() == another["fencing_token"], "the second release took the next holder's lock")


@rule("H3-unreachable", "a release without a server ends within the patience, and leaves the client without the lock")
def release_has_an_end(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url, patience_ms=1000)
    trial.held(driver, ttl_ms=20_000)
    relay.cut(refuse=True)
    answer = driver.call("release", grant="g", timeout_s=10)
    expect(not answer["ok"], "a release that nobody received is reported as done")
    expect(answer["code"] in ("unavailable", "unknown_outcome"), f"the code is {answer['code']!r}")
    expect_lost_for_good(driver)


@rule("H3-silent", "after a release nothing is renewed", wire="http")
def nothing_after_the_release(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = trial.driver(scripted.url)
    trial.held(driver, ttl_ms=1500)
    driver.call("release", grant="g")
    sent = len(scripted.requests)
    pause(1500)  # real time: as long as the lease would last
    expect(len(scripted.requests) == sent, f"then came {scripted.requests[sent:]}")


@rule("H3-names-grant", "renewals and releases carry the lease key and the fencing token", wire="http")
def requests_name_the_grant(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = trial.driver(scripted.url)
    granted = trial.held(driver, ttl_ms=1500)
    expect(until(lambda: scripted.of("renew")), "no renewal was sent")
    driver.call("release", grant="g")
    for request in scripted.of("renew") + scripted.of("release"):
        named = request.body.get("fencing_token"), len(request.body.get("lock_token", ""))
        expect(named == (granted["token"], 32), f"{request.path} was sent with {sorted(request.body)}")


@rule("H5-lost-reply", "an acquire whose answer is lost is repeated, and gets the same grant")
def lost_reply_gives_the_same_grant(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    relay.hold(BACK)
    asked = driver.start("acquire", **trial.wish(ttl_ms=20_000))
    expect(until(trial.holder_token), "the request did not arrive")
    expect(relay.next_bytes(BACK, 0.0) is not None, "the request was not answered")
    relay.cut()
    relay.open()
    granted = driver.answer(asked)
    expect(granted["ok"], f"acquire failed: {granted}")
    expect(trial.holder_token() == granted["token"], "the client has another token than the server")
    expect(trial.server.next_token() == granted["token"] + 1 == 2, "more than one token was drawn")


@rule("H5-same-id", "repetitions of an acquire carry the same request id", wire="http")
def repetitions_carry_the_same_id(trial: Trial) -> None:
    scripted = trial.scripted()
    answers: list[Any] = [error(503, "unavailable"), LOSE_ANSWER, error(504, "unknown_outcome", forward=True)]
    scripted.decide = lambda request: answers.pop(0) if request.verb == "acquire" and answers else None
    driver = trial.driver(scripted.url)
    granted = trial.held(driver, ttl_ms=10_000)
    ids = scripted.ids()
    expect(len(scripted.of("acquire")) == 4, f"{len(scripted.of('acquire'))} attempts instead of four")
    expect(len(ids) == 1 and None not in ids, f"{len(ids)} request ids for one acquire")
    expect(trial.server.next_token() == granted["token"] + 1 == 2, "more than one token was drawn")


@rule("H5-new-id", "each new acquire has a new request id, of 128 bits", wire="http")
def new_wish_new_id(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = trial.driver(scripted.url)
    for number in range(3):
        trial.lock = f"lock-{number}"
        trial.held(driver, ttl_ms=10_000)
    ids = scripted.ids()
    expect(len(ids) == 3, f"{len(ids)} request ids for three acquires")
    digits = {len(str(id).replace("-", "")) for id in ids}
    expect(digits == {32}, f"request ids of {digits} hexadecimal digits")


@rule("H5-cancel-waiting", "a cancelled acquire leaves the queue")
def cancelled_acquire_leaves_the_queue(trial: Trial) -> None:
    driver = trial.driver(trial.server.url)
    other = trial.taken_by_another()
    trial.needs(driver, "cancel")
    asked = driver.start("acquire", **trial.wish(ttl_ms=20_000, wait_ms=30_000))
    expect(until(lambda: trial.server.show(trial.lock)["waiters"] == 1), "the request does not wait")
    driver.call("cancel", target=asked)
    expect(driver.answer(asked)["code"] == "cancelled", "the cancelled acquire has another result")
    gone = until(lambda: trial.server.show(trial.lock)["waiters"] == 0, 6)
    expect(gone, "the cancelled request still waits")
    trial.server.lock(trial.lock, "release", lock_token=other["lock_token"])
    pause(300)  # real time: a late grant would come
    expect(trial.holder_token() is None, "the cancelled request was granted")


@rule("H5-cancel-granted", "an acquire that is cancelled while its grant is on the way leaves no lock behind")
def cancelled_acquire_gives_its_grant_back(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    relay.hold(BACK)
    trial.needs(driver, "cancel")
    asked = driver.start("acquire", **trial.wish(ttl_ms=60_000))
    expect(until(trial.holder_token), "the request did not arrive")
    driver.call("cancel", target=asked)
    pause(200)  # real time: the holder gives up before the answer comes
    relay.open()
    trial.expect_free("a lock of 60 s is still held after its acquire was cancelled")


@rule("H5-abandon", "a cancelled acquire is abandoned by its request id, until that is acknowledged", wire="http")
def abandon_is_repeated(trial: Trial) -> None:
    scripted = trial.scripted()
    trial.taken_by_another()
    failures = [error(503, "unavailable"), error(500, "internal")]
    scripted.decide = lambda request: failures.pop(0) if request.verb == "abandon" and failures else None
    driver = trial.driver(scripted.url)
    trial.needs(driver, "cancel")
    asked = driver.start("acquire", **trial.wish(ttl_ms=20_000, wait_ms=30_000))
    expect(until(lambda: trial.server.show(trial.lock)["waiters"] == 1), "the request does not wait")
    driver.call("cancel", target=asked)
    expect(until(lambda: len(scripted.of("abandon")) == 3, 6), f"{len(scripted.of('abandon'))} abandons, not 3")
    (id,) = scripted.ids()
    named = {request.path.split("/")[3].replace("-", "") for request in scripted.of("abandon")}
    expect(named == {str(id).replace("-", "")}, "another request id was abandoned")


@rule("H3-silent-release", "a release that gets no answer is sent again on another connection, in time", wire="http")
def silent_release_is_repeated(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = trial.driver(scripted.url, patience_ms=4000)
    trial.held(driver, ttl_ms=60_000)
    silent, over = [True], threading.Event()

    def decide(request: Request) -> Optional[Reply]:
        if request.verb == "release" and silent:
            silent.clear()
            over.wait(30)
            return Reply(status=0)
        return None

    scripted.decide = decide
    try:
        answer = driver.call("release", grant="g")
        expect(answer["ok"], f"one attempt took all of the patience: {answer}")
        expect(trial.holder_token() is None, "the lock is still held")
    finally:
        over.set()


@rule("H5-timeout", "an acquire without an answer ends as unknown, and leaves no lock behind")
def acquire_without_an_answer(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url, patience_ms=1000)
    relay.hold(BACK)
    asked = driver.start("acquire", **trial.wish(ttl_ms=60_000))
    answer = driver.answer(asked, timeout_s=15)
    expect(not answer["ok"] and answer["code"] == "unknown_outcome", f"the answer is {answer}")
    relay.open()
    trial.expect_free("a lock of 60 s is still held after its acquire got no answer")


@rule("H5-wait-over", "a wait has an end: held, and nothing stays in the queue")
def wait_has_an_end(trial: Trial) -> None:
    driver = trial.driver(trial.server.url)
    trial.taken_by_another()
    answer = driver.call("acquire", **trial.wish(ttl_ms=10_000, wait_ms=500))
    expect(not answer["ok"] and answer["code"] == "held", f"the answer is {answer}")
    expect(trial.server.show(trial.lock)["waiters"] == 0, "a request still waits")


@rule("H5-unreachable", "with no server there, an acquire ends within its patience as unavailable")
def nobody_there(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url, patience_ms=1000)
    relay.listener.close()
    relay.cut(refuse=True)
    answer = driver.call("acquire", timeout_s=12, **trial.wish(ttl_ms=10_000))
    known = ("unavailable", "unknown_outcome")
    expect(not answer["ok"] and answer["code"] in known, f"the answer is {answer}")
