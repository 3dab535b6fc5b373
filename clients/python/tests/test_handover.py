"""A lease that goes to another process: `grant.export()` and `client.adopt(text)`."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from typing import Any

import pytest
from served import Served
from suite.clock import until
from suite.servers import Palisade

from palisade import Client, Invalid, LeaseLost, Unavailable
from palisade._clock import SECOND, now_ns

FORM = "palisade-lease/1."
FULL = {
    "lock": "orders",
    "authority": "a",
    "fencing_token": 7,
    "lock_token": "s3cret",
    "ttl_ms": 1000,
    "client_id": "me",
}


def fields(text: str) -> dict[str, Any]:
    encoded = text.removeprefix(FORM)
    assert "=" not in encoded
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    return found


def text_of(told: object) -> str:
    return FORM + base64.urlsafe_b64encode(json.dumps(told).encode()).decode().rstrip("=")


def test_a_lease_that_was_handed_over_is_held_by_the_adopter_alone(served: Served) -> None:
    with served.client() as client, served.client() as other:
        with client.lock("orders", ttl="20s", client_id="me", metadata="why") as first:
            text = first.export()
            for act in (first.check, first.release, lambda: first.release_part("orders"), first.export):
                with pytest.raises(LeaseLost, match="handed over") as over:
                    act()
                assert over.value.code == "handed_over"
            assert not first.held
            assert not first.lost.is_set()
        # The end of the block released nothing.
        shown = client.show("orders").holder
        assert shown is not None
        assert (shown.token, shown.metadata) == (first.token, "why")
        with other.adopt(text + "\n") as second:
            second.check()
            same = "token", "grant_id", "authority", "lock", "client_id"
            assert [getattr(second, name) for name in same] == [getattr(first, name) for name in same]
            assert 15 < second.remaining < 20
        assert client.show("orders").holder is None
        # A lease that is over is not adopted.
        with pytest.raises(LeaseLost) as gone:
            other.adopt(text)
        assert gone.value.code == "not_held"
        with pytest.raises(LeaseLost):
            second.export()


def test_an_adopted_lease_is_renewed(served: Served) -> None:
    with served.client() as client:
        adopted = client.adopt(client.lock("orders", ttl="1500ms").acquire().export())
        first = adopted.remaining
        end = now_ns() + 3 * SECOND
        until(lambda: now_ns() > end, timeout_s=60)  # twice the lease
        adopted.check()
        assert first < 1.5
        assert adopted.release() == "released"


def test_every_kind_of_lease_is_handed_over(served: Served) -> None:
    with served.client() as client, served.client() as other:
        several = client.locks("a", "b", "c").acquire()
        several.release_part("a")
        rest = other.adopt(several.export())
        assert (rest.locks, rest.token) == (("b", "c"), several.token)
        assert rest.part("b").lock == "b"
        rest.release()
        assert [client.show(name).holder for name in "abc"] == [None] * 3

        permits = client.lock("gpu", permits=(2, 3)).acquire()
        adopted = other.adopt(permits.export())
        assert adopted.slot_keys == ("gpu~1", "gpu~2")
        adopted.release()

        reader = client.lock("report", shared=True).acquire()
        beside = client.lock("report", update=True).acquire()
        assert other.adopt(reader.export()).release() == "released"
        reads = other.adopt(beside.export())
        assert (reads.shared, reads.update, reads.grant_id) == (True, True, beside.grant_id)
        writer = reads.upgrade(wait="10s")
        assert not writer.shared
        again = other.adopt(writer.export())
        assert again.downgrade().shared


def test_of_several_locks_one_is_over(served: Served) -> None:
    with served.client() as client, served.client() as other:
        both = client.locks("a", "b").acquire()
        text = both.export()
        client.break_lock("b", both.token, "the test")
        with pytest.raises(LeaseLost, match="'b'") as over:
            other.adopt(text)
        assert (over.value.code, over.value.lock) == ("revoked", "b")
        # The other one is useless without it.
        until(lambda: client.show("a").holder is None, timeout_s=60)


def test_without_an_answer_nothing_is_held_and_the_text_may_be_tried_again(served: Served) -> None:
    with served.client() as client, served.client(patience="1s") as other:
        text = client.lock("orders", ttl="60s").acquire().export()
        served.stop()
        with pytest.raises(Unavailable):
            other.adopt(text)
        served.resume()
        # The control: an answer makes it held.
        other.adopt(text).check()


def test_asyncio(served: Served) -> None:
    async def run() -> None:
        async with served.async_client() as client, served.async_client() as other:
            async with client.lock("orders", ttl="1500ms") as first:
                text = first.export()
                for act in (first.release, lambda: first.release_part("orders")):
                    with pytest.raises(LeaseLost, match="handed over"):
                        await act()
            second = await other.adopt(text)
            end = now_ns() + 3 * SECOND
            while now_ns() < end:
                await asyncio.sleep(0.05)  # real time: twice the lease
            second.check()
            assert not first.lost.is_set()
            assert (second.token, await second.release()) == (first.token, "released")
            both = await client.locks("a", "b").acquire()
            text = both.export()
            await client.break_lock("b", both.token)
            with pytest.raises(LeaseLost, match="'b'"):
                await other.adopt(text)
            async with asyncio.timeout(60):
                while (await client.show("a")).holder is not None:
                    await asyncio.sleep(0.01)  # real time: asked again, up to a deadline

    asyncio.run(run())


def test_another_process_adopts(server: Palisade) -> None:
    program = """
import sys
from palisade import Client
grant = Client(sys.argv[1]).adopt(sys.stdin.read())
print(grant.token, grant.held)
"""
    with Client(server.url) as client:
        first = client.lock("orders", ttl="60s").acquire()
        told = subprocess.run(
            [sys.executable, "-c", program, server.url],
            input=first.export(),
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.split() == [str(first.token), "True"]


def test_the_fields_are_those_of_the_page(served: Served) -> None:
    with served.client() as client:
        plain = client.lock("orders", ttl="20s", client_id="me").acquire()
        told = fields(plain.export())
        key = told.pop("lock_token")
        # No field tells a deadline: an adopter could not count from the exporter's.
        assert told == {
            "lock": "orders",
            "authority": plain.authority,
            "fencing_token": plain.token,
            "ttl_ms": 20_000,
            "client_id": "me",
        }
        assert key
        reader = client.lock("r", update=True, metadata="é").acquire()
        told = fields(reader.export())
        assert (told["mode"], told["grant_id"], told["metadata"]) == ("update", reader.grant_id, "é")
        permits = fields(client.lock("p", permits=(2, 5)).acquire().export())
        assert (permits["slots"], permits["permits"]) == ([1, 2], 5)
        assert fields(client.locks("b", "a").acquire().export())["parts"] == ["a", "b"]


@pytest.mark.parametrize(
    "changed",
    [
        {"lock": None},
        {"lock": "."},
        {"lock": "ä"},
        {"parts": ["a", "orders"]},
        {"parts": []},
        {"parts": ["orders", "orders"]},
        {"parts": 5},
        {"fencing_token": 0},
        {"fencing_token": "7"},
        {"fencing_token": True},
        {"lock_token": ""},
        {"authority": None},
        {"client_id": 5},
        {"ttl_ms": 99},
        {"ttl_ms": 86_400_001},
        {"mode": "upgrade"},
        {"mode": ["shared"]},
        {"mode": "shared"},
        {"slots": [2, 1], "permits": 3},
        {"slots": [1, 2], "permits": 1},
        {"slots": [1]},
        {"slots": 5, "permits": 5},
        {"metadata": "x" * 257},
        {"metadata": 5},
    ],
)
def test_a_text_of_another_form_is_refused_and_not_repeated(changed: dict[str, Any]) -> None:
    told = {name: value for name, value in {**FULL, **changed}.items() if value is not None}
    with pytest.raises(Invalid, match="not that of an exported lease") as refused:
        Client("http://127.0.0.1:1").adopt(text_of(told))
    for secret in ("s3cret", text_of(told), "orders"):
        assert secret not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


@pytest.mark.parametrize(
    "text", ["", "palisade-lease/1.", "palisade-lease/1.!", text_of([1]), "palisade-lease/2.e30", 5, None]
)
def test_no_text_of_a_lease_is_refused(text: Any) -> None:
    with pytest.raises(Invalid, match="not that of an exported lease"):
        Client("http://127.0.0.1:1").adopt(text)


def test_fields_of_later_versions_are_ignored() -> None:
    # It is read, and nobody is there.
    with pytest.raises(Unavailable):
        Client("http://127.0.0.1:1", patience="100ms").adopt(text_of({**FULL, "later": 1}))


def test_nothing_is_exported_while_an_upgrade_is_under_way(served: Served) -> None:
    with served.client() as client:
        reader = client.lock("report", update=True).acquire()
        assert reader._hold.begin_upgrade()
        with pytest.raises(Invalid, match="an upgrade"):
            reader.export()
        reader._hold.end_upgrade()
        # The control.
        assert reader.export()
