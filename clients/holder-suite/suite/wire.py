"""P: the protocol: addresses, leaders, errors, names and numbers; and watch, list, show, break."""

from __future__ import annotations

import socket
from typing import Any

from .clock import ROUNDING, now_ms, pause, until
from .rules import rule
from .scripted import Reply, Request, Scripted, error
from .trial import Trial, expect

LARGEST = 2**53 - 1
# How often in a row a client follows a leader.
FOLLOWED = 5
REDIRECTS = (301, 302, 303, 307, 308)
NAMES = ("a/b", "per%cent", "%2F", "a b", "q?x=1&y", "frag#ment", "plus+;,", "back\\slash", '"q"', "~-_.", "..x")


def grant(token: int) -> Reply:
    """A grant as a server writes it, with a token of the rule's choice."""
    return Reply(
        200,
        {
            "resource_id": "orders",
            "lock_acquired": True,
            "lock_token": "0123456789abcdef" * 2,
            "fencing_token": token,
            "lease_duration_ms": 30_000,
            "valid_for_ms": 30_000,
            "waited_ms": 0,
            "remaining_ms": 30_000,
            "acquired_at": "2026-05-23T10:00:00.123Z",
            "authority": "12a0bcbbafc4cf006417132b90405596",
        },
    )


def granting(scripted: Scripted, token: int) -> None:
    def decide(request: Request) -> Reply:
        if request.verb == "acquire":
            return grant(token)
        id = request.path.split("/")[3].replace("-", "")
        over = {"request_id": id, "abandoned": True, "released": True, "already_released": False}
        named = {"resource_id": "orders", "fencing_token": token, "authority": grant(token).body["authority"]}  # type: ignore[index]
        return Reply(200, {**over, **named})

    scripted.decide = decide


@rule("P-exact-token", "the largest token is exact", wire="http")
def largest_token_is_exact(trial: Trial) -> None:
    scripted = trial.scripted(real=False)
    granting(scripted, LARGEST)
    granted = trial.held(trial.driver(scripted.url), ttl_ms=30_000)
    expect(granted["token"] == LARGEST, f"the token {LARGEST} became {granted['token']}")


@rule("P-token-range", "a token out of range is a broken answer, not a grant", wire="http")
def token_out_of_range(trial: Trial) -> None:
    for token in (0, LARGEST + 1, -1):
        scripted = trial.scripted(real=False)
        granting(scripted, token)
        driver = trial.driver(scripted.url, patience_ms=300)
        answer = driver.call("acquire", **trial.wish(ttl_ms=30_000))
        expect(not answer["ok"], f"a grant with the token {token} was accepted")


@rule("P-unknown-fields", "fields that the client does not know are ignored in every answer", wire="http")
def unknown_fields_are_ignored(trial: Trial) -> None:
    scripted = trial.scripted()

    def more(value: Any) -> Any:
        if isinstance(value, dict):
            return {**{key: more(each) for key, each in value.items()}, "x_later": {"version": [1, 2]}}
        return [more(each) for each in value] if isinstance(value, list) else value

    scripted.alter = lambda request, answer: more(answer)
    driver = trial.driver(scripted.url)
    granted = trial.held(driver, ttl_ms=3000)
    expect(until(lambda: scripted.of("renew")), "no renewal was sent")
    pause(3000)  # real time: as long as the lease
    expect(driver.call("check", grant="g")["ok"], "the renewal with an unknown field was not understood")
    shown = driver.call("show", lock=trial.lock)
    expect(shown["ok"] and shown["token"] == granted["token"], f"show: {shown}")
    expect(driver.call("release", grant="g")["ok"], "the release with an unknown field was not understood")


@rule("P-held", "held is told at once and not repeated", wire="http")
def held_is_not_repeated(trial: Trial) -> None:
    scripted = trial.scripted()
    trial.taken_by_another()
    answer = trial.driver(scripted.url).call("acquire", **trial.wish(ttl_ms=10_000))
    expect(not answer["ok"] and answer["code"] == "held", f"the answer is {answer}")
    expect(len(scripted.of("acquire")) == 1, f"{len(scripted.of('acquire'))} requests")


@rule("P-invalid", "a call that is wrong is told and not repeated", wire="http")
def invalid_is_not_repeated(trial: Trial) -> None:
    scripted = trial.scripted()
    answer = trial.driver(scripted.url).call("acquire", **trial.wish(ttl_ms=50))
    expect(not answer["ok"] and answer["code"] == "invalid", f"the answer is {answer}")
    expect(len(scripted.of("acquire")) <= 1, f"{len(scripted.of('acquire'))} requests")


@rule("P-garbled", "an answer that is not JSON is an unknown outcome: the same request again", wire="http")
def garbled_answer_is_unknown(trial: Trial) -> None:
    scripted = trial.scripted()
    answers = [Reply(200, b"<html>busy</html>", forward=True), Reply(502, b"bad gateway", forward=True)]
    scripted.decide = lambda request: answers.pop(0) if request.verb == "acquire" and answers else None
    granted = trial.held(trial.driver(scripted.url), ttl_ms=10_000)
    expect(len(scripted.ids()) == 1, "the repetition has another request id")
    expect(trial.server.next_token() == granted["token"] + 1 == 2, "more than one token was drawn")


def redirect(scripted: Scripted, status: int, url: str) -> None:
    scripted.decide = lambda request: Reply(status, location=f"{url}/elsewhere{request.path}")


def abandoned(scripted: Scripted) -> set[str]:
    return {request.path.split("/")[3].replace("-", "") for request in scripted.of("abandon")}


@rule("P-redirect", "a redirect is not followed: it would send the lease key elsewhere", wire="http")
def redirects_are_not_followed(trial: Trial) -> None:
    elsewhere, scripted = trial.scripted(), trial.scripted()
    driver = trial.driver(scripted.url, patience_ms=600)
    for status in REDIRECTS:
        for target in (elsewhere.url, scripted.url):
            redirect(scripted, status, target)
            answer = driver.call("acquire", **trial.wish(ttl_ms=10_000))
            known = not answer["ok"] and answer["code"] == "unknown_outcome"
            expect(known, f"an acquire that was answered with {status}: {answer}")
            expect(len(scripted.ids()) == 1, "the repetition has another request id")
            (id,) = (str(each).replace("-", "") for each in scripted.ids())
            expect(until(lambda id=id: id in abandoned(scripted)), "the request that was redirected is not abandoned")
            scripted.requests.clear()
    scripted.decide = lambda request: None
    # Long enough for a machine that does much else: the lease is not the subject.
    driver = trial.driver(scripted.url)
    trial.held(driver, ttl_ms=4000)
    for status in REDIRECTS:
        redirect(scripted, status, elsewhere.url)
        asked = len(scripted.of("renew"))
        expect(until(lambda now=asked: len(scripted.of("renew")) > now), f"no renewal after {status}")
        scripted.decide = lambda request: None
        answered = len(scripted.of("renew"))
        expect(until(lambda now=answered: len(scripted.of("renew")) > now), f"no renewal after {status}")
    redirect(scripted, 307, elsewhere.url)
    for do in ({"do": "show", "lock": trial.lock}, {"do": "release", "grant": "g"}):
        answer = driver.call(**do)
        expect(not answer["ok"], f"{do['do']} was answered with 307: {answer}")
    followed = [request for request in scripted.requests if request.path.startswith("/elsewhere")]
    expect(not elsewhere.requests and not followed, "a redirect was followed")


@rule("P-names", "any printable name arrives as it is", wire="http")
def names_arrive_as_they_are(trial: Trial) -> None:
    driver = trial.driver(trial.server.url)
    for name in NAMES:
        trial.lock = name
        granted = trial.held(driver, ttl_ms=10_000)
        listed = trial.server.ask("GET", "/v1/locks?limit=1000")["locks"]
        found = [lock["resource_id"] for lock in listed if lock["holder"]["fencing_token"] == granted["token"]]
        expect(found == [name], f"{name!r} arrived as {found}")


@rule("P-secret", "the lease key is never printed", wire="http")
def lease_key_is_not_printed(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = trial.driver(scripted.url)
    trial.held(driver, ttl_ms=1500)
    scripted.decide = lambda request: error(409, "not_held") if request.verb == "renew" else None
    expect(until(lambda: scripted.of("renew")), "no renewal was sent")
    key = scripted.of("renew")[0].body["lock_token"]
    driver.event("lost", grant="g")
    driver.call("release", grant="g")
    expect(key not in "".join(driver.said), "the lease key was printed")


@rule("P-addresses", "an address where nobody answers is passed over", wire="http")
def next_address(trial: Trial) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    driver = trial.bare_driver()
    trial.needs(driver, "addresses")
    driver.call("connect", urls=[nobody, trial.server.url], patience_ms=5000)
    trial.held(driver, ttl_ms=10_000)


@rule("P-not-leader", "not_leader is followed to the leader that it names, with the same request id", wire="http")
def follows_the_leader(trial: Trial) -> None:
    follower, leader = trial.scripted(), trial.scripted()
    follower.decide = lambda request: error(503, "not_leader", leader=leader.url)
    driver = trial.driver(follower.url)
    trial.held(driver, ttl_ms=1500)
    expect(follower.ids() == leader.ids() and len(leader.ids()) == 1, "the request id changed on the way")
    expect(until(lambda: len(leader.of("renew")) >= 2), "no renewals at the leader")
    expect(driver.call("check", grant="g")["ok"], "lost although the leader is there")
    expect(len(follower.requests) <= 2, f"the follower is asked again and again: {len(follower.requests)} requests")


@rule("P-no-leader", "not_leader without a name leads to the next address, with the same request id", wire="http")
def asks_the_next(trial: Trial) -> None:
    follower, leader = trial.scripted(), trial.scripted()
    follower.decide = lambda request: error(503, "not_leader")
    driver = trial.bare_driver()
    trial.needs(driver, "addresses")
    driver.call("connect", urls=[follower.url, leader.url], patience_ms=5000)
    trial.held(driver, ttl_ms=10_000)
    expect(follower.ids() == leader.ids() and len(leader.ids()) == 1, "the request id changed on the way")


@rule("P-leader-change", "a change of the leader during a lease is survived, with the same token", wire="http")
def leader_changes(trial: Trial) -> None:
    first, second = trial.scripted(), trial.scripted()
    driver = trial.bare_driver()
    trial.needs(driver, "addresses")
    driver.call("connect", urls=[first.url, second.url], patience_ms=5000)
    granted = trial.held(driver, ttl_ms=3000)
    first.decide = lambda request: error(503, "not_leader", leader=second.url)
    end = now_ms() + 4000
    while now_ms() < end:
        expect(driver.call("check", grant="g")["ok"], "lost at the change of the leader")
        pause(50)  # real time: longer than the lease
    second.decide = lambda request: error(503, "not_leader", leader=first.url)
    first.decide = lambda request: None
    end = now_ms() + 4000
    while now_ms() < end:
        expect(driver.call("check", grant="g")["ok"], "lost at the second change of the leader")
        pause(50)  # real time: longer than the lease
    expect(trial.holder_token() == granted["token"], "the server has another token")


@rule("P-leader-loop", "two servers that name each other are not asked without end", wire="http")
def leader_loop_ends(trial: Trial) -> None:
    one, other = trial.scripted(), trial.scripted()
    one.decide = lambda request: error(503, "not_leader", leader=other.url)
    other.decide = lambda request: error(503, "not_leader", leader=one.url)
    driver = trial.driver(one.url, patience_ms=3000)
    answer = driver.call("acquire", timeout_s=20, **trial.wish(ttl_ms=10_000))
    # The patience may end while the last request is under way, whose outcome is unknown then.
    expect(not answer["ok"] and answer["code"] in {"unavailable", "unknown_outcome"}, f"the answer is {answer}")
    expect(len(one.ids() | other.ids()) == 1, "the request id changed on the way")
    asked = sorted(request.at for request in one.of("acquire") + other.of("acquire"))
    # A leader is followed at most five times in a row; then comes a pause, each twice as long as the one before. A slow
    # machine makes the time longer, never shorter.
    least, pauses = 0.0, 0
    for number, at in enumerate(asked):
        if number and number % (FOLLOWED + 1) == 0:
            least += min(10 * 2**pauses, 500)
            pauses += 1
        took = at - asked[0]
        expect(took + ROUNDING >= least, f"{number + 1} requests in {took:.0f} ms: at least {least:.0f} ms are due")
    expect(len(other.of("acquire")) >= 1, "the leader was not asked")


@rule("P-lists", "show, list and break")
def show_list_break(trial: Trial) -> None:
    driver = trial.driver(trial.server.url)
    trial.needs(driver, "list")
    tokens = {}
    # A driver that writes its lines by hand breaks at the second.
    names = ["a/1", 'a/"2"\\ {}', "b/1"]
    for name in names:
        tokens[name] = trial.server.lock(name, "acquire", client_id="x", lease_duration_ms=60_000)["fencing_token"]
    listed = driver.call("list", prefix="a/")
    expect(sorted(listed.get("locks", [])) == sorted(names[:2]), f"list: {listed}")
    shown = driver.call("show", lock="b/1")
    expect(shown.get("token") == tokens["b/1"] and shown.get("waiters") == 0, f"show: {shown}")
    broken = driver.call("break", lock="b/1", token=tokens["b/1"], reason="the suite")
    expect(broken["ok"], f"break: {broken}")
    free = driver.call("show", lock="b/1")
    expect(free["ok"] and free.get("token") is None, f"show of a free lock: {free}")


@rule("P-watch", "a watch that is cut goes on after the last event that it saw: each once, in order")
def watch_goes_on(trial: Trial) -> None:
    relay = trial.relay()
    driver = trial.driver(relay.url)
    trial.needs(driver, "watch")
    answer = driver.call("watch", prefix="w/", **{"as": "w"})
    expect(answer["ok"], f"watch: {answer}")

    def change(name: str) -> None:
        held = trial.server.lock(f"w/{name}", "acquire", client_id="x", lease_duration_ms=60_000)
        trial.server.lock("other", "acquire", client_id="x", lease_duration_ms=60_000)
        trial.server.lock(f"w/{name}", "release", lock_token=held["lock_token"])

    def seen() -> list[tuple[str, int]]:
        return [(event["kind"], event["token"]) for event in driver.events if event["event"] == "change"]

    change("1")
    expect(until(lambda: len(seen()) == 2), f"the watch saw {seen()}")
    relay.cut(refuse=True)
    change("2")
    relay.accept_again()
    expect(until(lambda: len(seen()) == 4), f"after the cut the watch saw {seen()}")
    change("3")
    expect(until(lambda: len(seen()) == 6), f"after the cut the watch saw {seen()}")
    kinds, tokens = [kind for kind, _ in seen()], [token for _, token in seen()]
    expect(kinds == ["granted", "released"] * 3, f"the events are {kinds}")
    expect(tokens == sorted(tokens) and len(set(tokens)) == 3, f"the tokens are {tokens}")
