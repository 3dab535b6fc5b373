"""Permits of a semaphore, each slot with a fence of its own."""

from __future__ import annotations

import uuid
from typing import Iterator

import psycopg
import pytest
from served import Served

from palisade import Client, Grant, Invalid, slot_key
from palisade.fences import Stale, postgres


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with served.client() as client:
        yield client


@pytest.fixture
def gpu() -> str:
    return f"gpu-{uuid.uuid4().hex}"


def taken(client: Client, gpu: str, count: int = 1) -> Grant:
    return client.lock(gpu, wait=0, permits=(count, 2)).acquire()


def claim(database: psycopg.Connection[tuple[object, ...]], resource: str, grant: Grant) -> None:
    with database.transaction():
        postgres.claim(database, resource, grant.token)


def test_a_zombie_of_a_slot_is_refused_beside_a_live_holder(
    client: Client, gpu: str, database: psycopg.Connection[tuple[object, ...]]
) -> None:
    zombie, live = taken(client, gpu), taken(client, gpu)
    assert (zombie.slot_keys, live.slot_keys) == ((f"{gpu}~1",), (f"{gpu}~2",))
    for grant in (zombie, live):
        claim(database, grant.slot_keys[0], grant)
    client.break_lock(gpu, zombie.token, "it is paused")
    successor = taken(client, gpu)
    assert successor.slots == zombie.slots and successor.token > live.token
    claim(database, successor.slot_keys[0], successor)
    with pytest.raises(Stale):
        claim(database, zombie.slot_keys[0], zombie)
    claim(database, live.slot_keys[0], live)


def test_one_fence_for_all_slots_refuses_a_live_holder(
    client: Client, gpu: str, database: psycopg.Connection[tuple[object, ...]]
) -> None:
    """Why each slot has a fence of its own."""
    older, newer = taken(client, gpu), taken(client, gpu)
    claim(database, gpu, newer)
    with pytest.raises(Stale):
        claim(database, gpu, older)
    assert older.held


def test_a_semaphore_is_shown_and_resized(client: Client, gpu: str) -> None:
    both = taken(client, gpu, 2)
    shown = client.show(gpu)
    assert shown.permits == 2 and [holder.slots for holder in shown.readers] == [(1, 2)]
    assert both.slot_keys == (slot_key(gpu, 1), slot_key(gpu, 2))
    client.resize(gpu, 3)
    assert client.lock(gpu, wait=0, permits=(1, 3)).acquire().slots == (3,)
    with pytest.raises(Invalid, match="3"):
        client.lock(gpu, wait=0, permits=(1, 2)).acquire()
    with pytest.raises(Invalid):
        client.lock(gpu, shared=True, permits=(1, 3)).acquire()
    with pytest.raises(Invalid):
        both.downgrade()
    assert both.held
