"""The fence in Redis, on a real server."""

from __future__ import annotations

import asyncio
import binascii
import itertools
import pathlib
import uuid

import pytest
import redis
import redis.asyncio
from conftest import ROOT

import palisade.fences.redis as fence
from palisade import Invalid, OperatorNeeded
from palisade.fences import FenceLost, Pass, Rejected, Stale
from palisade.fences.redis import AsyncResource, Resource, Script, probe


@pytest.fixture
def orders() -> Resource:
    return Resource(f"orders-{uuid.uuid4().hex}")


def test_the_script_is_that_of_the_rust_fence() -> None:
    ours = pathlib.Path(fence.__file__).with_name("fence.lua").read_bytes()
    assert ours == (ROOT / "crates/palisade-fence/src/redis/fence.lua").read_bytes()


def test_a_newer_holder_shuts_the_older_one_out(cache: redis.Redis, orders: Resource) -> None:
    probe(cache)
    key = f"{{{orders.name}}}:total"
    orders.claim(cache, 7)
    orders.set(cache, 7, key, 5)
    orders.claim(cache, 8)
    assert orders.get(cache, 8, key) == b"5"
    with pytest.raises(Stale) as stale:
        orders.set(cache, 7, key, 6)
    assert stale.value.highest == 8
    assert "token 7 is stale: 7 < 8" in str(stale.value)
    with pytest.raises(Stale):
        orders.get(cache, 7, key)
    assert cache.get(key) == b"5"


def test_commands(cache: redis.Redis, orders: Resource) -> None:
    text, fields = f"{{{orders.name}}}:text", f"{{{orders.name}}}:hash"
    orders.append(cache, 7, text, b"a")
    orders.append(cache, 7, text, "b")
    orders.hset(cache, 7, fields, {"x": 1, "y": b"2"})
    assert (orders.get(cache, 7, text), orders.hget(cache, 7, fields, "y")) == (b"ab", b"2")
    orders.delete(cache, 7, text)
    with pytest.raises(Rejected) as missing:
        orders.delete(cache, 7, text)
    assert missing.value.code == "missing"
    with pytest.raises(Invalid, match="nothing was written"):
        orders.append(cache, 7, fields, "x")
    with pytest.raises(Rejected) as forgot:
        orders.set(cache, None, text, "x")
    assert forgot.value.code == "tokenless"


def test_a_numbered_script_runs_once(cache: redis.Redis, orders: Resource) -> None:
    add = Script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    key = f"{{{orders.name}}}:total"
    first = orders.run(cache, 7, add, [key], [5], sequence=1)
    again = orders.run(cache, 7, add, [key], [5], sequence=1)
    assert (first.value, first.repeat, again.value, again.repeat) == (5, False, 5, True)
    with pytest.raises(Rejected) as reused:
        orders.run(cache, 7, add, [key], [6], sequence=1)
    assert reused.value.code == "sequence_reused"


def test_a_lost_fence_is_refused(cache: redis.Redis) -> None:
    name = f"orders-{uuid.uuid4().hex}"
    key = f"{{{name}}}:total"
    orders = Resource(name, guarding=[key])
    orders.set(cache, 7, key, 1)
    cache.delete(orders.mark)
    with pytest.raises(FenceLost, match="re-arm"):
        orders.claim(cache, 8)


def test_keys_with_another_tag_are_refused_before_anything_is_sent(cache: redis.Redis, orders: Resource) -> None:
    def slot(text: str) -> int:
        return binascii.crc_hqx(text.encode(), 0) % 16_384

    same_slot = next(name for name in map(str, itertools.count()) if slot(name) == slot(orders.name))
    for key in ("elsewhere", "palisade:fence:{x}", f"{{{same_slot}}}:total", f"{{x}}{{{orders.name}}}", orders.name):
        with pytest.raises(ValueError, match="key"):
            orders.set(cache, 7, key, 1)
        with pytest.raises(ValueError, match="key"):
            Resource(orders.name, guarding=[key])
    assert cache.exists(orders.mark) == 0
    assert [fence._tag(key) for key in ("foo", "{}foo", "{foo", "{foo}:{bar}")] == [None, None, None, "foo"]


def test_what_answers_later_or_elsewhere_is_refused_before_anything_is_sent(redis_url: str, cache: redis.Redis) -> None:
    orders = Resource(f"orders-{uuid.uuid4().hex}")
    key = f"{{{orders.name}}}:total"
    for wrong in (cache.pipeline(), redis.asyncio.Redis.from_url(redis_url), cache.connection_pool, None):
        with pytest.raises(TypeError, match="Resource takes a redis client"):
            orders.claim(wrong, 7)
        with pytest.raises(TypeError, match="Resource takes a redis client"):
            orders.set(wrong, 7, key, 1)
        with pytest.raises(TypeError, match="Resource takes a redis client"):
            probe(wrong)

    async def run() -> None:
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            for wrong in (cache, client.pipeline()):
                with pytest.raises(TypeError, match="AsyncResource takes"):
                    await AsyncResource(orders.name).claim(wrong, 7)

    asyncio.run(run())
    assert cache.exists(orders.mark) == 0


def test_a_server_that_evicts_is_refused(cache: redis.Redis) -> None:
    cache.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(OperatorNeeded, match="noeviction"):
            probe(cache)
    finally:
        cache.config_set("maxmemory-policy", "noeviction")


def test_asyncio(redis_url: str) -> None:
    async def run() -> None:
        orders = AsyncResource(f"orders-{uuid.uuid4().hex}")
        key = f"{{{orders.name}}}:total"
        async with redis.asyncio.Redis.from_url(redis_url) as cache:
            await orders.claim(cache, Pass(7, "a", "l"))
            await orders.set(cache, Pass(7, "a", "l"), key, 1)
            assert await orders.get(cache, Pass(8, "a", "l"), key) == b"1"
            with pytest.raises(Rejected) as other:
                await orders.claim(cache, Pass(9, "b", "l"))
            assert other.value.code == "wrong_authority"

    asyncio.run(run())
