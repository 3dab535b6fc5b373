"""The API and its errors, which the holder suite cannot see."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import os
import pathlib
import signal
import threading
from typing import Any, Callable

import pytest
from conftest import ROOT
from served import Served
from suite.clock import until
from suite.servers import Palisade

import palisade
from palisade import Client, Invalid, LeaseLost, LockHeld, Unavailable
from palisade._clock import now_ns
from palisade._endpoints import Endpoints
from palisade._model import milliseconds
from palisade._process import Guard
from palisade._protocol import Reply, Wish, release
from palisade._sse import Position


def test_a_block_holds_and_releases(served: Served) -> None:
    with served.client() as client:
        with client.lock("orders", ttl="10s", wait=0, client_id="me", metadata="why") as grant:
            grant.check()
            assert grant.held
            assert 9 < grant.remaining < 10
            shown = client.show("orders").holder
            assert shown is not None
            assert (shown.token, shown.client_id, shown.metadata) == (grant.token, "me", "why")
            assert [info.lock for info in client.list("ord")] == ["orders"]
        assert not grant.held
        assert not grant.lost.is_set()
        with pytest.raises(LeaseLost):
            grant.check()
        assert client.show("orders").holder is None
        assert client.status().next_token == 2
        assert "lock_token" not in repr(grant)


def test_an_exception_in_the_block_releases_and_goes_on(served: Served) -> None:
    with served.client() as client:
        with pytest.raises(ZeroDivisionError), client.lock("orders"):
            raise ZeroDivisionError
        assert client.show("orders").holder is None


def test_held_says_who_and_until_when(served: Served) -> None:
    with served.client() as client, client.lock("orders", ttl="20s", client_id="first"):
        assert client.lock("orders", wait=0).try_acquire() is None
        with pytest.raises(LockHeld) as held:
            client.lock("orders", wait=0).acquire()
    assert held.value.holder is not None
    assert held.value.holder.client_id == "first"
    assert held.value.retry_after is not None
    assert 15 < held.value.retry_after <= 20


@pytest.mark.parametrize(("given", "waits_ms"), [({}, 0), ({"wait": "50ms"}, 50), ({"wait": 0}, 0)])
def test_trying_asks_once_and_waits_only_if_told(
    served: Served, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], waits_ms: int
) -> None:
    asked: list[tuple[str, int]] = []

    def body(wish: Wish, wait_ms: int, poll_ms: int = 0, full: Callable[..., dict[str, Any]] = Wish.body) -> Any:
        asked.append((wish.lock, wish.wait_ms))
        return full(wish, wait_ms, poll_ms)

    async def tried() -> None:
        async with served.async_client() as client:
            assert await client.lock("orders", **given).try_acquire() is None
            assert await client.locks("orders", "more", **given).try_acquire() is None

    with served.client() as client, client.lock("orders"):
        monkeypatch.setattr(Wish, "body", body)
        assert client.lock("orders", **given).try_acquire() is None
        assert client.locks("orders", "more", **given).try_acquire() is None
        asyncio.run(tried())
        assert {waited for _, waited in asked} == {waits_ms}
        # The control: an acquire waits.
        client.lock("free").acquire()
        assert asked[-1] == ("free", 30_000)


def test_a_broken_lock_is_lost_and_says_so(served: Served) -> None:
    with served.client() as client:
        grant = client.lock("orders", ttl="1s").acquire()
        client.break_lock("orders", grant.token, "the test")
        assert grant.lost.wait(5)
        with pytest.raises(LeaseLost) as lost:
            grant.check()
        assert (lost.value.code, lost.value.token) == ("revoked", grant.token)
        assert grant.release() == "over"
        seen = list(itertools.islice(client.watch("orders", after=0), 2))
        assert [event.kind for event in seen] == ["granted", "revoked"]
        granted, revoked = (datetime.datetime.fromisoformat(str(event.time)[:-1] + "+00:00") for event in seen)
        now = datetime.datetime.now(datetime.UTC)
        assert granted <= revoked <= now + datetime.timedelta(seconds=1)
        assert now - granted < datetime.timedelta(hours=1)


def test_an_interrupted_acquire_leaves_the_queue(served: Served) -> None:
    with served.client() as client, client.lock("orders"):

        def interrupt() -> None:
            until(lambda: client.show("orders").waiters, timeout_s=60)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            client.lock("orders", wait="60s").acquire()
        thread.join()
        assert until(lambda: served.show("orders").waiters == 0, timeout_s=60)


def test_a_client_may_be_closed_while_a_release_begins(server: Palisade, monkeypatch: pytest.MonkeyPatch) -> None:
    beginning, closing = threading.Event(), threading.Event()

    class Noted(Guard):
        """Tells that `close` has come to it."""

        def __enter__(self) -> None:
            if threading.current_thread() is threading.main_thread():
                closing.set()
            super().__enter__()

    class Slow(threading.Thread):
        def start(self) -> None:
            beginning.set()
            assert closing.wait(30)
            # The control: clients are closed meanwhile, so `close` is not over only because it waits for the start.
            for _ in range(5):
                with Client(server.url) as beside:
                    beside.status()
            super().start()

    client = Client(server.url)
    client._guard = Noted()
    grant = client.lock("orders").acquire()
    with monkeypatch.context() as patch:
        patch.setattr("palisade._client.threading.Thread", Slow)
        until = now_ns() + 5_000_000_000
        other = threading.Timer(0, client._in_background, [release(grant._ref, until), "the test"])
        other.start()
        assert beginning.wait(30)
        client.close()
        other.join()
    assert server.show("orders")["holder"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"ttl": 0.05}, "100 ms to 86400000 ms"),
        ({"ttl": "25h"}, "86400000"),
        ({"wait": "soon"}, "500ms"),
        ({"wait": -1}, "0 ms"),
        ({"metadata": "x" * 257}, "256"),
        ({"metadata": 5}, "metadata is 5"),
        ({"permits": 3}, "two numbers"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_sent(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        Client("http://127.0.0.1:1").lock("orders", **arguments).acquire()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", ".", "..", "ä", "a\n", "x" * 256, 5, ["a", "b"]])
def test_bad_names_are_refused(name: Any) -> None:
    with pytest.raises(Invalid, match="name of a lock"):
        Client("http://127.0.0.1:1").show(name)


def test_nobody_there_is_unavailable_and_says_what_to_do() -> None:
    says = "http://127.0.0.1:1: .*refused.*palisade serve.*PALISADE_URL"
    with pytest.raises(Unavailable, match=says):
        Client("http://127.0.0.1:1", patience="2s").lock("orders", wait=0).acquire()


def test_a_bearer_token_is_for_tls_and_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALISADE_TOKEN", "pal_environment\n")
    for token, sent in ((None, "pal_environment"), ("pal_given", "pal_given")):
        requests = Client("https://a", token=token)._requests
        assert requests.settings.options["auth"].current() == sent
    for kept in ("http://localhost:1", "http://127.9.9.9:1", "http://[::1]:1", "https://a"):
        Client(kept)
    with pytest.raises(Invalid, match=r"http://10\.0\.0\.1:1.*https") as refused:
        Client(["https://a", "http://10.0.0.1:1"])
    assert "pal_" not in str(refused.value)
    for bad in ("a b", "a\nb", "ä", "", 5):
        with pytest.raises(Invalid, match="printable ASCII"):
            Client(token=bad)  # type: ignore[arg-type]


def test_a_leader_without_tls_does_not_get_the_token() -> None:
    named = Reply(503, {"error": {"code": "not_leader", "leader": "http://a:1"}})
    for secret in (False, True):
        endpoints = Endpoints("http://127.0.0.1:1", secret)
        assert endpoints.answered("http://127.0.0.1:1", named) is not secret
        assert endpoints.current() == ("http://127.0.0.1:1" if secret else "http://a:1")


def test_durations() -> None:
    same: list[palisade.Duration] = ["1500ms", "1.5s", 1.5, datetime.timedelta(seconds=1.5)]
    assert {milliseconds(duration, "ttl", 0, 10**9) for duration in same} == {1500}
    assert (milliseconds("2m", "ttl", 0, 10**9), milliseconds("1h", "ttl", 0, 10**9)) == (120_000, 3_600_000)
    assert milliseconds(0.0000001, "wait", 0, 10) == 1


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALISADE_URL", "http://a:1, http://b:2/")
    assert Endpoints(None).urls == ["http://a:1", "http://b:2"]
    for bad in (
        "localhost:1",
        "ftp://a",
        "http://a/x",
        "http://u:secret@a",
        "",
        "http://a:99999",
        "http://a:b",
        "http://[a",
    ):
        with pytest.raises(Invalid, match=r"HOST:PORT|token") as refused:
            Endpoints([bad])
        assert "secret" not in str(refused.value)
    with pytest.raises(Invalid, match="'http://a/x'"):
        Endpoints("http://a/x")
    with pytest.raises(Invalid, match="127"):
        Endpoints([])


def test_events_are_read_line_by_line() -> None:
    position = Position("", None)
    assert list(position.opened()) == []
    lines = [
        ":",
        "",
        "event: later",
        "id: 4",
        'data: {"x": 1}',
        "",
        "event: missed",
        "id: 9",
        'data: {"missed": 5}',
        "",
    ]
    events = [event for line in lines if (event := position.line(line)) is not None]
    assert [(event.kind, event.missed) for event in events] == [("missed", 5)]
    assert position.parameters() == {"prefix": "", "after_revision": "9"}
    position.lost()
    assert [event.kind for event in position.opened()] == ["missed"]


def test_asyncio(served: Served) -> None:
    async def run() -> None:
        async with served.async_client() as client:
            async with client.lock("orders", ttl="1s") as grant:
                grant.check()
                assert [info.lock async for info in client.list()] == ["orders"]
                assert await client.lock("orders", wait=0).try_acquire() is None
                await client.break_lock("orders", grant.token)
                await asyncio.wait_for(grant.lost.wait(), 5)
                with pytest.raises(LeaseLost):
                    grant.check()
            task = asyncio.ensure_future(client.lock("orders").acquire())
            held = await task
            waiting = asyncio.ensure_future(client.lock("orders", wait="60s").acquire())
            async with asyncio.timeout(60):
                while (await client.show("orders")).waiters == 0:
                    await asyncio.sleep(0.01)  # real time: asked again, up to a deadline
            waiting.cancel()
            await asyncio.wait([waiting])
            assert await held.release() == "released"
            shown = served.show("orders")
            assert (shown.holder, shown.waiters) == (None, 0)

    asyncio.run(run())


def test_the_version_is_that_of_the_package() -> None:
    project = (ROOT / "clients" / "python" / "pyproject.toml").read_text()
    assert f'version = "{palisade.__version__}"' in project
    assert pathlib.Path(palisade.__file__).with_name("py.typed").exists()
