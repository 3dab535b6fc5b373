"""P: the network between client and server: addresses that do not answer, proxies that end quiet connections, a
fork."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from itertools import pairwise
from typing import Any, Optional

from .clock import now_ms, pause, until
from .rules import rule
from .scripted import Reply, Request
from .trial import NotApplicable, Trial, expect


def silent(trial: Trial) -> str:
    """Accepts, and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    trial.ends.append(listener.close)
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def half_open(trial: Trial) -> str:
    """Its queue of connections is full: no connection comes to pass, and none is refused."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    address = listener.getsockname()
    trial.ends.append(listener.close)
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(address)
        trial.ends.append(filler.close)
    return f"http://127.0.0.1:{address[1]}"


def slow(trial: Trial) -> str:
    """Answers, after every client has lost its patience."""
    scripted = trial.scripted()

    def decide(request: Request) -> Optional[Reply]:
        pause(8000)  # real time: longer than any patience
        return Reply(503, {"error": {"code": "unavailable", "message": "scripted"}})

    scripted.decide = decide
    return scripted.url


def trickling(trial: Trial) -> str:
    """Begins an answer, and sends a byte of it now and then: none of its pieces is late."""
    listener = socket.create_server(("127.0.0.1", 0))
    trial.ends.append(listener.close)

    def trickle(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
            while True:
                pause(200)  # real time: its own slowness
                connection.sendall(b" ")

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=trickle, args=[connection], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


PATIENCE_MS = 4000


def passed_over(trial: Trial, *bad: str) -> None:
    driver = trial.bare_driver()
    trial.needs(driver, "addresses")
    # At another lock, too: the client stays at the address that answered.
    for lock, wait_ms in (("one", 0), ("two", 3000)):
        trial.lock = lock
        driver.call("connect", urls=[*bad, trial.server.url], patience_ms=PATIENCE_MS)
        began = now_ms()
        trial.held(driver, ttl_ms=10_000, wait_ms=wait_ms, **{"as": lock})
        took = now_ms() - began
        expect(took < wait_ms + PATIENCE_MS, f"granted after {took:.0f} ms")
    driver.call("connect", urls=[*bad, trial.server.url], patience_ms=PATIENCE_MS)
    shown = driver.call("show", lock="one")
    expect(shown["ok"] and shown["token"], f"show: {shown}")


@rule("P-silent", "an address that accepts and never answers leaves time for the next one, in every call", wire="http")
def silent_address(trial: Trial) -> None:
    passed_over(trial, silent(trial))


@rule("P-half-open", "an address to which no connection comes to pass leaves time for the next one", wire="http")
def half_open_address(trial: Trial) -> None:
    passed_over(trial, half_open(trial))


@rule("P-slow", "an address that answers too late leaves time for the next one", wire="http")
def slow_address(trial: Trial) -> None:
    passed_over(trial, slow(trial))


@rule("P-trickling", "an address whose answer never comes to its end leaves time for the next one", wire="http")
def trickling_address(trial: Trial) -> None:
    passed_over(trial, trickling(trial))


@rule("P-two-silent", "two silent addresses of three leave time for the third", wire="http")
def two_silent_addresses(trial: Trial) -> None:
    passed_over(trial, silent(trial), half_open(trial))


@rule("P-moves-on", "a failure that is to be repeated is repeated at the next address", wire="http")
def failures_move_on(trial: Trial) -> None:
    for reply in (
        Reply(503, {"error": {"code": "unavailable", "message": "scripted"}}),
        Reply(504, {"error": {"code": "unknown_outcome", "message": "scripted"}}),
        Reply(500, {"error": {"code": "internal", "message": "scripted"}}),
        Reply(408, {"error": {"code": "request_timeout", "message": "scripted"}}),
        Reply(502, b"<html>bad gateway</html>"),
        Reply(301, location="http://127.0.0.1:1/"),
        Reply(200, b"<html>busy</html>"),
    ):
        bad = trial.scripted()
        bad.decide = lambda request, reply=reply: reply  # type: ignore[misc]
        driver = trial.bare_driver()
        trial.needs(driver, "addresses")
        driver.call("connect", urls=[bad.url, trial.server.url], patience_ms=5000)
        trial.held(driver, ttl_ms=20_000)
        expect(len(bad.of("acquire")) == 1, f"asked {len(bad.of('acquire'))} times after {reply.status}")
        driver.call("release", grant="g")


@rule("P-waiting", "202 is no denial: the same request is asked again at once, for the rest of its wait", wire="http")
def asked_again_while_waiting(trial: Trial) -> None:
    scripted = trial.scripted()
    other = trial.taken_by_another()
    driver = trial.driver(scripted.url)
    waiting = Reply(202, {"resource_id": trial.lock, "lock_acquired": False, "waiting": True})
    answers = [waiting, waiting, waiting]

    def decide(request: Request) -> Optional[Reply]:
        if request.verb != "acquire" or not answers:
            return None
        pause(400)  # real time: each answer is late
        return answers.pop(0)

    scripted.decide = decide
    began = now_ms()
    asked = driver.start("acquire", **trial.wish(ttl_ms=10_000, wait_ms=10_000))
    expect(until(lambda: len(scripted.of("acquire")) == 4), "it is not asked again")
    expect(until(lambda: trial.server.show(trial.lock)["waiters"] == 1), "the request does not wait")
    trial.server.lock(trial.lock, "release", lock_token=other["lock_token"])
    granted = driver.answer(asked)
    took = now_ms() - began
    expect(granted["ok"], f"acquire failed: {granted}")
    expect(len(scripted.ids()) == 1, "the repetition has another request id")
    waits = [int(request.body["wait_ms"]) for request in scripted.of("acquire")]
    expect(all(one > following for one, following in pairwise(waits)), f"wait_ms goes {waits}")
    if "waited_ms" in granted:
        expect(granted["waited_ms"] >= 1200, f"it says that it waited for {granted['waited_ms']:.0f} of {took:.0f} ms")


@rule("P-poll", "a waiting request asks for a sign of life, in less time than proxies wait", wire="http")
def asks_for_signs_of_life(trial: Trial) -> None:
    scripted = trial.scripted()
    trial.taken_by_another()
    driver = trial.driver(scripted.url)
    asked = driver.start("acquire", **trial.wish(ttl_ms=10_000, wait_ms=30_000))
    expect(until(lambda: len(scripted.of("acquire")) == 2), "it was not answered and asked again within 10 s")
    polls = [request.body.get("poll_ms") for request in scripted.of("acquire")]
    expect(all(poll and 1000 <= poll <= 10_000 for poll in polls), f"poll_ms is {polls}")
    expect(polls[0] == 1000, f"poll_ms is {polls[0]} at an address that has not answered yet")
    expect(trial.server.show(trial.lock)["waiters"] == 1, "the request left its queue")
    expect(not driver.has_answered(asked), "the wait is over")


@rule("P-proxy", "a proxy that ends quiet connections does not cost the place in the queue", wire="http")
def proxy_ends_quiet_connections(trial: Trial) -> None:
    relay = trial.relay()
    other = trial.taken_by_another()
    driver = trial.driver(relay.url)
    asked = driver.start("acquire", **trial.wish(ttl_ms=10_000, wait_ms=30_000))
    expect(until(lambda: trial.server.show(trial.lock)["waiters"] == 1), "the request does not wait")
    rival: list[dict[str, Any]] = []

    def wait_directly() -> None:
        rival.append(trial.server.lock(trial.lock, "acquire", client_id="r", lease_duration_ms=5000, wait_ms=30_000))

    threading.Thread(target=wait_directly, daemon=True).start()
    expect(until(lambda: trial.server.show(trial.lock)["waiters"] == 2), "the rival does not wait")
    for _ in range(3):
        pause(700)  # real time: it waits for a while before the proxy cuts
        relay.cut()
    expect(until(lambda: trial.server.show(trial.lock)["waiters"] == 2), "it does not wait again")
    pause(300)  # real time: it has to be back
    trial.server.lock(trial.lock, "release", lock_token=other["lock_token"])
    granted = driver.answer(asked)
    expect(granted["ok"] and not rival, f"one that came later was granted first: {rival}")


@rule("P-route-timeout", "a wait outlasts a proxy that gives each request 15 s, as Envoy does", wire="http")
def proxy_bounds_each_request(trial: Trial) -> None:
    scripted = trial.scripted()
    scripted.most_seconds = 15.0
    other = trial.taken_by_another()
    driver = trial.driver(scripted.url)
    asked = driver.start("acquire", **trial.wish(ttl_ms=10_000, wait_ms=40_000))
    pause(18_000)  # real time: longer than the proxy lets a request wait
    timed_out = scripted.timed_out
    trial.server.lock(trial.lock, "release", lock_token=other["lock_token"])
    granted = driver.answer(asked)
    expect(granted["ok"], f"acquire failed: {granted}")
    expect(not timed_out, f"{timed_out} requests took longer than the proxy allows")


@rule("P-fork", "a child that is forked holds nothing of its parent's, and ends nothing of it", wire="http")
def forked_child_holds_nothing(trial: Trial) -> None:
    scripted = trial.scripted()
    driver = trial.driver(scripted.url)
    if "fork" not in driver.hello.get("can", []):
        raise NotApplicable("the driver says that its client's processes do not fork")
    trial.held(driver, ttl_ms=3000)
    connections = {request.connection for request in scripted.requests}
    child = driver.call("fork", grant="g", lock="the-childs-own", ttl_ms=5000)
    expect(child["ok"], f"fork failed: {child}")
    expect(child["code"] is not None, "check() succeeds in the child")
    expect(child["remaining_ms"] == 0, f"{child['remaining_ms']} ms remain in the child")
    released = [each for each in scripted.of("release") if "the-childs-own" not in each.path]
    expect(not released, "the child released its parent's grant")
    own = [each for each in scripted.of("acquire") if "the-childs-own" in each.path]
    expect(child["acquired"] and own, f"the child could not acquire a lock of its own: {child}")
    expect(all(each.connection not in connections for each in own), "the child used a connection of its parent")
    pause(1500)  # real time: the parent has to renew
    expect(driver.call("check", grant="g")["ok"], "the parent's grant is lost")
    expect(trial.holder_token() is not None, "the server has no holder any more")
