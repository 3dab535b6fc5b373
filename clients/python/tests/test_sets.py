"""Several locks at once: the API, and a fence for each of them."""

from __future__ import annotations

import asyncio
import uuid
from typing import Iterator, Union

import psycopg
import pytest
from served import Served
from suite.relay import Relay
from suite.servers import Palisade

from palisade import AsyncClient, Client, Grant, Invalid, LeaseLost
from palisade.fences import Pass, Rejected, Stale, postgres
from palisade.fences.rule import pass_of


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with served.client() as client:
        yield client


def holders(client: Client, *locks: str) -> list[object]:
    shown = [client.show(lock).holder for lock in locks]
    return [holder and holder.token for holder in shown]


def test_a_block_holds_all_and_releases_all(client: Client) -> None:
    with client.locks("b", "a", "c", ttl="10s", wait=0, client_id="me", metadata="why") as grant:
        assert grant.locks == ("a", "b", "c")
        assert holders(client, "a", "b", "c") == [grant.token] * 3
        shown = client.show("c").holder
        assert shown is not None
        assert (shown.client_id, shown.metadata) == ("me", "why")
        assert client.locks("c", "d", wait=0).try_acquire() is None
        assert holders(client, "d") == [None]
        assert grant.release_part("b") == "released"
        assert grant.release_part("b") == "already_released"
        assert holders(client, "a", "b", "c") == [grant.token, None, grant.token]
        grant.check()
    assert holders(client, "a", "c") == [None, None]
    assert grant.release() == "already_released"
    assert "'a', 'b', 'c'" in repr(grant)
    assert not grant.lost.is_set()


def test_one_lock_is_a_set_of_one(client: Client) -> None:
    with client.lock("a") as grant:
        assert (grant.lock, grant.locks, grant.part("a").lock) == ("a", ("a",), "a")
        assert grant.release_part("a") == "released"
        with pytest.raises(LeaseLost):
            grant.check()


def test_a_loss_names_the_lock_that_is_over(client: Client) -> None:
    grant = client.locks("a", "b", ttl="9s").acquire()
    client.break_lock("b", grant.token, "the test")
    assert grant.lost.wait(30)
    with pytest.raises(LeaseLost, match="'b'") as lost:
        grant.check()
    assert (lost.value.code, lost.value.lock, lost.value.token) == ("revoked", "b", grant.token)
    assert grant.release() == "over"
    assert holders(client, "a", "b") == [None, None]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ((), "0 locks"),
        (("a", "b", "a"), "'a' is named twice"),
        (("a", ""), "name of a lock"),
        (tuple(f"lock-{number}" for number in range(65)), "65 locks"),
    ],
)
def test_bad_names_are_told_and_nothing_is_sent(names: tuple[str, ...], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        Client("http://127.0.0.1:1").locks(*names).acquire()


def test_only_its_own_locks_are_parts(client: Client) -> None:
    with client.locks("a", "b") as grant:
        for wrong in (grant.part, grant.release_part):
            with pytest.raises(Invalid, match="'a', 'b'"):
                wrong("c")
        a, b = grant.part("a"), grant.part("b")
        grant.release_part("b")
        with pytest.raises(LeaseLost, match="'b'"):
            grant.part("b")
        with pytest.raises(LeaseLost, match="'b'"):
            pass_of(b)
        assert pass_of(a) == Pass(grant.token, grant.authority, "a")
        grant.check()
    with pytest.raises(LeaseLost):
        grant.part("a")
    for lost in (a, grant):
        with pytest.raises(LeaseLost):
            pass_of(lost)


def claim(database: psycopg.Connection[tuple[object, ...]], resource: str, holder: Union[Grant, Pass]) -> None:
    with database.transaction():
        postgres.claim(database, resource, holder)


def test_each_fence_is_bound_to_its_own_lock(client: Client, database: psycopg.Connection[tuple[object, ...]]) -> None:
    a, b = (f"{name}-{uuid.uuid4().hex}" for name in "ab")
    both = client.locks(a, b).acquire()
    for name in (a, b):
        claim(database, name, both.part(name))
    part = both.part(b)
    both.release()
    for lost in (part, both):
        with pytest.raises(LeaseLost):
            claim(database, b, lost)
    with client.lock(b) as next_holder:
        claim(database, b, next_holder)
        with pytest.raises(Stale):
            claim(database, b, Pass(both.token, both.authority, b))


def test_one_name_for_all_fences_would_lock_the_next_holder_out(
    client: Client, database: psycopg.Connection[tuple[object, ...]]
) -> None:
    """Why a fence takes a part, and why the grant of several locks has no name of its own."""
    a, b, c = (f"{name}-{uuid.uuid4().hex}" for name in "abc")
    both = client.locks(a, b, c).acquire()
    claim(database, b, Pass(both.token, both.authority, a))
    assert pass_of(both).lock is None
    claim(database, c, both)
    both.release()
    with client.lock(b) as next_holder, pytest.raises(Rejected) as rejected:
        claim(database, b, next_holder)
    assert rejected.value.code == "wrong_lock"
    with client.lock(c) as next_holder:
        claim(database, c, next_holder)


def test_a_cancelled_release_of_a_part_goes_on(server: Palisade) -> None:
    async def run() -> None:
        relay = Relay((server.host, server.port))
        async with AsyncClient(relay.url) as client:
            grant = await client.locks("a", "b", ttl="60s").acquire()
            relay.cut(refuse=True)
            release = asyncio.ensure_future(grant.release_part("b"))
            await asyncio.sleep(0)  # real time: none, the task begins
            release.cancel()
            with pytest.raises(asyncio.CancelledError):
                await release
            grant.check()
            with pytest.raises(LeaseLost):
                grant.part("b")
            relay.accept_again()
        # Closing the client waits for background work.
        assert server.show("b")["holder"] is None
        assert server.show("a")["holder"]["fencing_token"] == grant.token
        relay.close()

    asyncio.run(run())


def test_asyncio(served: Served) -> None:
    async def run() -> None:
        async with served.async_client() as client:
            async with client.locks("b", "a", ttl="9s") as grant:
                assert (grant.lock, grant.locks, grant.part("b").lock) == ("", ("a", "b"), "b")
                assert await client.locks("c", "b", wait=0).try_acquire() is None
                assert await grant.release_part("a") == "released"
                with pytest.raises(LeaseLost):
                    grant.part("a")
                await client.break_lock("b", grant.token)
                await asyncio.wait_for(grant.lost.wait(), 30)
                with pytest.raises(LeaseLost, match="'b'"):
                    grant.check()
            with pytest.raises(Invalid, match="named twice"):
                await client.locks("a", "a").acquire()

    asyncio.run(run())
