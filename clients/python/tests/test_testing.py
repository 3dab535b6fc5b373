"""The levers of `palisade.testing.MemoryServer`. What a client sees is tested beside the program: see `served`."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest
from suite.clock import until
from test_readme import README

from palisade import LeaseLost, LockHeld, Unavailable, UnknownOutcome
from palisade.jobs import once
from palisade.testing import MemoryServer


@pytest.mark.parametrize("code", ["expired", "revoked"])
def test_a_lease_is_ended_by_the_test(code: str) -> None:
    server = MemoryServer()
    with server.client() as client, server.client() as beside:
        grant = client.lock("orders", ttl="200ms").acquire()
        kept = beside.lock("kept", ttl="200ms").acquire()
        server.expire("orders") if code == "expired" else server.revoke("orders", "the test")
        assert grant.lost.wait(30)
        with pytest.raises(LeaseLost) as over:
            grant.check()
        assert over.value.code == code
        assert server.holder("orders") is None
        # The control: another lock is renewed meanwhile.
        kept.check()


def test_another_client_has_the_lock() -> None:
    server = MemoryServer()
    with server.client() as client:
        held = server.hold("orders", "somebody")
        assert client.lock("orders").try_acquire() is None
        with pytest.raises(LockHeld) as refused:
            client.lock("orders", wait=0).acquire()
        assert refused.value.holder is not None
        assert refused.value.holder.client_id == "somebody"
        with pytest.raises(ValueError, match="'orders' is not free: held by 'somebody'"):
            server.hold("orders")
        with pytest.raises(ValueError, match="not free"), server.hold("a"):
            server.hold("a")

        def release() -> None:
            until(lambda: client.show("orders").waiters, timeout_s=60)
            held.release()
            held.release()

        thread = threading.Thread(target=release)
        thread.start()
        with client.lock("orders", wait="60s") as grant:
            thread.join()
            shown = server.holder("orders")
            assert shown is not None
            assert (shown.token, shown.client_id) == (grant.token, grant.client_id)
        # One number for each grant, over all locks.
        assert server.tokens("orders") == [held.token, grant.token] == [1, 3]
        assert server.tokens("never") == []


def test_a_server_that_is_down() -> None:
    server = MemoryServer()
    with server.client(patience="1s") as client:
        grant = client.lock("orders").acquire()
        server.down()
        with pytest.raises(Unavailable):
            client.lock("other").try_acquire()
        grant.check()
        server.up()
        assert grant.release() == "released"


def test_a_server_that_does_not_answer() -> None:
    server = MemoryServer()
    with server.client(patience="1s") as client:
        short, long = client.lock("short", ttl="500ms").acquire(), client.lock("long", ttl="1h").acquire()
        server.stall()
        assert short.lost.wait(30)
        with pytest.raises(LeaseLost) as over:
            short.check()
        assert over.value.code == "expired"
        # The control: the deadline ends a lease, and nothing else does.
        long.check()
        with pytest.raises(UnknownOutcome):
            client.lock("other").try_acquire()
        server.up()
        assert long.release() == "released"
        # What was stalled is given up in the background.
        until(lambda: server.holder("other") is None, timeout_s=60)


def test_requests_are_granted_in_the_order_of_their_arrival() -> None:
    server = MemoryServer()
    order: list[int] = []
    with server.client() as client:
        held = server.hold("orders")

        def worker(number: int) -> None:
            with client.lock("orders", wait="60s"):
                order.append(number)

        threads = []
        for number in range(5):
            threads.append(threading.Thread(target=worker, args=(number,)))
            threads[-1].start()
            until(lambda waiting=number + 1: client.show("orders").waiters == waiting, timeout_s=60)  # type: ignore[misc]
        held.release()
        for thread in threads:
            thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_more_requests_wait_on_one_event_loop_than_a_pool_has_threads() -> None:
    async def run() -> list[int]:
        server = MemoryServer()
        async with server.async_client() as client:
            held = server.hold("orders")

            async def worker() -> int:
                async with client.lock("orders", wait="60s") as grant:
                    return grant.token

            tasks = [asyncio.create_task(worker()) for _ in range(100)]
            async with asyncio.timeout(60):
                while (await client.show("orders")).waiters < 100:
                    await asyncio.sleep(0.01)  # real time: asked again, up to a deadline
            held.release()
            return await asyncio.gather(*tasks)

    assert sorted(asyncio.run(run())) == list(range(2, 102))


def test_watches_lose_nothing_while_the_server_is_stalled() -> None:
    server = MemoryServer()
    with server.client() as client:
        events = client.watch(after=0)
        server.hold("a").release()
        assert [next(events).kind for _ in range(2)] == ["granted", "released"]
        server.stall()
        server.hold("b").release()
        server.up()
        assert [(event.lock, event.kind) for event in (next(events), next(events))] == [
            ("b", "granted"),
            ("b", "released"),
        ]
        # A watch of a server that is down goes on when it is up again.
        server.down()
        server.hold("c")
        threading.Timer(0.2, server.up).start()
        assert next(events).lock == "c"


def test_jobs_run_against_it() -> None:
    server = MemoryServer()

    @once("nightly", client=server.client())
    def nightly() -> str:
        return "ran"

    with server.hold("nightly"):
        assert not nightly()
    assert nightly() == "ran"


def test_addresses_and_secrets_have_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALISADE_URL", "http://127.0.0.1:1")
    server = MemoryServer()
    with server.client(url="http://127.0.0.1:1", token="t", verify="/nowhere", patience="1s") as client:
        assert client.status().version == "memory"
    with pytest.raises(TypeError):
        server.client(unknown=1)


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python norun\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    (example,) = (block for block in blocks if "MemoryServer" in block)
    exec(compile(example, str(README), "exec"), {})
    assert capsys.readouterr().out == "[1, 2] None\n"
