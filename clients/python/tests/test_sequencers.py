"""Signed tokens: every vector is decided alike, and a grant's sequencer is believed with the keys of its own server."""

from __future__ import annotations

import asyncio
import base64
import json
import pathlib
import sys
from typing import Any, Iterator

import pytest
from suite.servers import Palisade

from palisade import AsyncClient, Client, Invalid, LeaseLost
from palisade.fences.rule import Pass, pass_of
from palisade.fences.sequencer import BadSequencer, Keys, Sequencer

VECTORS = json.loads((pathlib.Path(__file__).resolve().parents[3] / "vectors" / "sequencers.json").read_text())
JWKS = json.dumps(VECTORS["jwks"])
KEY = VECTORS["jwks"]["keys"][0]


@pytest.fixture
def client(server: Palisade) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def keys_of(server: Palisade) -> Keys:
    return Keys(json.dumps(server.ask("GET", "/.well-known/jwks.json")))


def answer(keys: Keys, case: dict[str, Any]) -> Any:
    try:
        return keys.check(case["sequencer"], case["resource"], writes=case["writes"])
    except BadSequencer as bad:
        return bad.code


def expected(case: dict[str, Any]) -> Any:
    if case["verdict"] != "admit":
        return case["verdict"]
    told = case["claims"]
    slots = tuple(told.get("slots", ()))
    return Sequencer(told["iss"], told["lock"], told["mode"], told["token"], slots, told.get("sub"))


def differing(keys: Keys) -> list[str]:
    return [case["name"] for case in VECTORS["cases"] if answer(keys, case) != expected(case)]


def test_every_vector_is_decided_alike() -> None:
    assert len(VECTORS["cases"]) > 50
    assert differing(Keys(JWKS)) == []
    assert differing(Keys(JWKS.encode())) == []


def test_a_verifier_that_believes_every_signature_is_found() -> None:
    class Gullible:
        def verify(self, signature: bytes, data: bytes) -> None:
            pass

    keys = Keys(JWKS)
    keys._keys = dict.fromkeys(keys._keys, Gullible())  # type: ignore[arg-type]
    assert "forged: another payload under the signature" in differing(keys)


@pytest.mark.parametrize(
    "text",
    [b'{"a":' + b"[" * 2_995, b' {"alg":"EdDSA","kid":"k1","typ":"palisade-sequencer"}'],
    ids=["nested deeply", "a blank before it"],
)
def test_a_header_of_another_form_is_refused(text: bytes) -> None:
    header = base64.urlsafe_b64encode(text).decode().rstrip("=")
    with pytest.raises(BadSequencer, match="its header") as bad:
        Keys(JWKS).verify(f"{header}.e30.AAAA")
    assert bad.value.code == "bad_sequencer"


@pytest.mark.parametrize(
    ("jwks", "says"),
    [
        ("", "not a set"),
        ("[]", "not a set"),
        (b"\xff{}", "not a set"),
        (json.dumps({"issuer": "a", "keys": [1]}), "not a set"),
        (json.dumps({"keys": [KEY]}), "issuer is None"),
        (json.dumps({"issuer": "a\n", "keys": [KEY]}), "issuer"),
        (json.dumps({"issuer": "a", "keys": []}), "no key for Ed25519"),
        (json.dumps({"issuer": "a", "keys": [{**KEY, "crv": "Ed448"}]}), "no key for Ed25519"),
        (json.dumps({"issuer": "a", "keys": [KEY, KEY]}), "two keys are called 'k1'"),
        (json.dumps({"issuer": "a", "keys": [{**KEY, "x": KEY["x"][:-2]}]}), "32 bytes"),
        (json.dumps({"issuer": "a", "keys": [{**KEY, "kid": None}]}), "no kid"),
    ],
)
def test_what_is_no_set_of_keys_is_refused(jwks: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says) as bad:
        Keys(jwks)
    assert "/.well-known/jwks.json" in str(bad.value)


def test_without_cryptography_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(ImportError, match=r"pip install 'palisade-client\[sequencer\]'"):
        Keys(JWKS)


def test_a_grants_sequencer_is_believed_with_the_keys_of_its_own_server(
    server: Palisade, client: Client, binary: str
) -> None:
    keys = keys_of(server)
    grant = client.lock("orders").acquire()
    sequencer = keys.check(grant.sequencer(), "orders", writes=True)
    assert (sequencer.lock, sequencer.mode, sequencer.slots) == ("orders", "exclusive", ())
    assert pass_of(sequencer) == pass_of(grant) == Pass(grant.token, grant.authority, "orders")
    with Palisade(binary) as other, Client(other.url) as elsewhere:
        foreign = elsewhere.lock("orders").acquire().sequencer()
        assert keys_of(other).check(foreign, "orders", writes=True).token == 1
        with pytest.raises(BadSequencer, match="names the key") as bad:
            keys.verify(foreign)
        assert bad.value.code == "bad_sequencer"


def test_permits_readers_and_several_locks_have_sequencers(server: Palisade, client: Client) -> None:
    keys = keys_of(server)
    permits = client.lock("gpu", permits=(2, 3)).acquire()
    for resource in permits.slot_keys:
        assert keys.check(permits.sequencer(), resource, writes=True).slots == permits.slots
    with pytest.raises(BadSequencer, match="gpu~1, gpu~2") as bad:
        keys.check(permits.sequencer(), "gpu~3", writes=True)
    assert bad.value.code == "wrong_lock"
    readers = [client.lock("report", shared=True).acquire() for _ in range(2)]
    for reader in readers:
        assert keys.check(reader.sequencer(), "report", writes=False).token == reader.token
        with pytest.raises(BadSequencer, match="reader"):
            keys.check(reader.sequencer(), "report", writes=True)
    both = client.locks("a", "b").acquire()
    for name in both.locks:
        assert keys.check(both.sequencer(name), name, writes=True).token == both.token
    with pytest.raises(Invalid, match="'a', 'b'"):
        both.sequencer()
    both.release_part("b")
    with pytest.raises(LeaseLost, match="'b'"):
        both.sequencer("b")


def test_a_sequencer_of_a_grant_that_is_over_is_not_asked_for_twice(server: Palisade, client: Client) -> None:
    grant = client.lock("orders", ttl="60s").acquire()
    server.lock("orders", "break", fencing_token=grant.token, reason="the test")
    with pytest.raises(LeaseLost) as lost:
        grant.sequencer()
    assert (lost.value.code, lost.value.lock) == ("revoked", "orders")
    assert not grant.held
    assert grant.lost.is_set()
    server.stop()
    with pytest.raises(LeaseLost):
        grant.sequencer()


def test_asyncio(server: Palisade) -> None:
    async def run() -> None:
        async with AsyncClient(server.url) as client, client.lock("orders") as grant:
            assert keys_of(server).check(await grant.sequencer(), "orders", writes=True).token == grant.token
            await client.break_lock("orders", grant.token)
            with pytest.raises(LeaseLost):
                await grant.sequencer()

    asyncio.run(run())
