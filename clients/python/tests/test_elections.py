"""Elections: `client.leader`, `client.observe` and `grant.proclaim`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from served import Served
from suite.relay import Relay
from suite.servers import Palisade

from palisade import AsyncClient, Client, Invalid, Leader, LeaseLost
from palisade._election import Observed
from palisade._model import Event


def test_an_election(served: Served) -> None:
    with served.client() as client, contextlib.closing(client.observe("primary")) as election:
        assert next(election) is None
        assert client.leader("primary") is None
        leads = client.lock("primary", client_id="node-1", metadata="starting").acquire()
        assert next(election) == Leader("node-1", leads.token, "starting")
        for value in ("10.0.0.7:5432", ""):
            leads.proclaim(value)
            wanted = Leader("node-1", leads.token, value or None)
            assert (next(election), client.leader("primary")) == (wanted, wanted)
        # Locks beside it are no changes of it.
        client.lock("primary/other").acquire()
        client.break_lock("primary", leads.token, "the test")
        assert next(election) is None
        # A former leader announces nothing.
        with pytest.raises(LeaseLost):
            leads.proclaim("x")
        following = client.lock("primary", client_id="node-2").acquire()
        assert next(election) == Leader("node-2", following.token)
        assert following.token > leads.token


def test_a_loss_is_found_by_a_proclamation(served: Served) -> None:
    with served.client() as client:
        # Its next renewal would be in twenty minutes.
        leads = client.lock("primary", ttl="1h").acquire()
        client.break_lock("primary", leads.token, "the test")
        leads.check()
        with pytest.raises(LeaseLost) as over:
            leads.proclaim("x")
        assert over.value.code == "revoked"
        assert leads.lost.is_set()


def test_only_a_leader_has_a_value(served: Served) -> None:
    with served.client() as client:
        reader = client.lock("report", shared=True).acquire()
        permit = client.lock("gpu", permits=(1, 2)).acquire()
        several = client.locks("a", "b").acquire()
        for grant in (reader, permit, several):
            with pytest.raises(Invalid, match="one exclusive lock"):
                grant.proclaim("x")
        for name in ("report", "gpu", "free"):
            assert client.leader(name) is None
        leads = client.lock("primary").acquire()
        bad: list[Any] = ["x" * 257, "ä" * 129, 5, None]
        for value in bad:
            with pytest.raises(Invalid, match="the value"):
                leads.proclaim(value)
        leads.proclaim("x" * 256)
        with pytest.raises(Invalid, match="name of a lock"):
            client.observe("..")


def test_asyncio(served: Served) -> None:
    async def run() -> None:
        async with served.async_client() as client:
            election = client.observe("primary")
            assert await anext(election) is None
            async with client.lock("primary", client_id="node-1", metadata="x") as leads:
                assert await anext(election) == Leader("node-1", leads.token, "x")
                await leads.proclaim("y")
                assert await anext(election) == await client.leader("primary") == Leader("node-1", leads.token, "y")
            assert await anext(election) is None
            async with client.lock("report", shared=True) as reader:
                with pytest.raises(Invalid, match="one exclusive lock"):
                    await reader.proclaim("x")
            await election.aclose()

    asyncio.run(run())


def test_an_observer_goes_on_after_a_broken_connection(server: Palisade) -> None:
    """It may miss leaders, and never the last one."""
    relay = Relay((server.host, server.port))
    with Client(server.url) as direct, Client(relay.url) as behind:
        election = behind.observe("primary")
        assert next(election) is None
        for _ in range(3):
            relay.cut()
            direct.lock("primary", client_id="short").acquire().release()
            leads = direct.lock("primary").acquire()
            before, leader = 0, next(election)
            while leader is None or leader.token != leads.token:
                if leader is not None:
                    assert leader.token > before
                    before = leader.token
                leader = next(election)
            leads.release()
            assert next(election) is None
        election.close()
    relay.close()


def test_an_asyncio_observer_goes_on_after_a_broken_connection(server: Palisade) -> None:
    async def run() -> None:
        relay = Relay((server.host, server.port))
        async with AsyncClient(server.url) as direct, AsyncClient(relay.url) as behind:
            election = behind.observe("primary")
            assert await anext(election) is None
            relay.cut()
            leads = await direct.lock("primary").acquire()
            leader = await anext(election)
            assert leader is not None
            assert leader.token == leads.token
            await election.aclose()
            await leads.release()
        relay.close()

    asyncio.run(run())


def test_an_observer_never_goes_back() -> None:
    first, second = Leader("a", 1), Leader("b", 2)
    observed = Observed("primary")
    assert observed.concerns(None)
    assert observed.is_news((first, 5))
    assert not observed.concerns(Event("granted", 5, "primary"))
    assert not observed.concerns(Event("granted", 9, "primary/other"))
    assert observed.concerns(Event("granted", 6, "primary"))
    assert observed.concerns(Event("missed", None))
    # An older answer, and one without a change.
    assert not observed.is_news((None, 4))
    assert not observed.is_news((first, 6))
    # The control: a later one.
    assert observed.is_news((second, 7))
