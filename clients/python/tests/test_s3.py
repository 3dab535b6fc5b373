"""The fence of an S3-compatible store: boto3 against moto."""

from __future__ import annotations

import threading
from typing import Any, Iterator

import boto3
import pytest
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

from palisade import OperatorNeeded
from palisade.fences import FenceLost, Pass, Rejected, Stale, s3
from palisade.fences.rule import Record
from palisade.fences.s3 import Store


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    # S3 checks a condition and puts in one step, moto in two.
    guard, in_two_steps = threading.Lock(), S3Response.put_object

    def put_object(*arguments: Any) -> Any:
        with guard:
            return in_two_steps(*arguments)

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Response, "put_object", put_object)
        yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def client(endpoint: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    made = boto3.client("s3", endpoint_url=endpoint, **keys)
    made.create_bucket(Bucket="bucket")
    yield made
    for found in made.list_objects_v2(Bucket="bucket").get("Contents", []):
        made.delete_object(Bucket="bucket", Key=found["Key"])
    made.close()


def test_a_newer_holder_shuts_the_older_one_out(client: Any) -> None:
    orders = Store(client, "bucket", "fenced").resource("orders")
    orders.claim(33)
    assert orders.read(33, "/total") is None
    orders.put(33, "/total", b"11")
    orders.claim(34)
    assert orders.read(34, "/total") == b"11"
    with pytest.raises(Stale) as stale:
        orders.put(33, "/total", b"late")
    assert stale.value.highest == 34
    with pytest.raises(Stale):
        orders.read(33, "/total")
    orders.append(34, "/total", b"5")
    assert orders.read(34, "/total") == b"115"


def test_repeats_and_denials(client: Any) -> None:
    orders = Store(client, "bucket", "fenced").resource("or/ders ~")
    holder = Pass(7, "authority", "lock")
    assert not orders.append(holder, "/a", b"one", sequence=1)
    assert orders.append(holder, "/a", b"one", sequence=1)
    assert orders.read(holder, "/a") == b"one"
    with pytest.raises(Rejected) as reused:
        orders.append(holder, "/a", b"two", sequence=1)
    assert reused.value.code == "sequence_reused"
    orders.delete(holder, "/a")
    with pytest.raises(Rejected) as missing:
        orders.delete(holder, "/a")
    assert missing.value.code == "missing"
    with pytest.raises(Rejected) as forgot:
        orders.put(None, "/a", b"x")
    assert forgot.value.code == "tokenless"
    names = [found["Key"] for found in client.list_objects_v2(Bucket="bucket")["Contents"]]
    assert "fenced/resources/or%2Fders %7E/fence.json" in names


def test_racing_writers_lose_nothing(client: Any, endpoint: str) -> None:
    orders = Store(client, "bucket", "fenced", probe=False).resource("race")
    orders.claim(7)

    def append() -> None:
        for _ in range(5):
            orders.append(7, "/log", b"x")

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert orders.read(7, "/log") == b"x" * 20


def test_a_put_whose_answer_is_lost_is_recognised(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(client, "bucket", "fenced")
    orders = store.resource("orders")
    orders.claim(7)
    real, lose = store.put, [True]

    def put(key: str, content: bytes, condition: dict[str, str]) -> Any:
        answer = real(key, content, condition)
        if condition and lose.pop():
            raise OSError("the answer is lost")
        return answer

    monkeypatch.setattr(store, "put", put)
    orders.append(7, "/log", b"x")
    assert orders.read(7, "/log") == b"x"
    assert not lose


def test_a_lost_or_damaged_manifest_is_refused(client: Any) -> None:
    orders = Store(client, "bucket", "fenced").resource("orders")
    orders.put(7, "/a", b"x")
    client.put_object(Bucket="bucket", Key="fenced/resources/orders/fence.json", Body=b"{}")
    with pytest.raises(FenceLost, match="damaged"):
        orders.claim(8)
    client.delete_object(Bucket="bucket", Key="fenced/resources/orders/fence.json")
    with pytest.raises(FenceLost, match="re-arm"):
        orders.claim(8)


def test_a_store_that_ignores_conditions_is_refused(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Store.put
    monkeypatch.setattr(Store, "put", lambda self, key, content, condition: real(self, key, content, {}))
    with pytest.raises(OperatorNeeded, match="ignores"):
        Store(client, "bucket", "fenced")


def test_the_stored_form_is_fixed() -> None:
    record = Record("a:0f3c", "nightly", 34, True, 3, 2**64 - 1, b"ok")
    manifest = s3._Manifest(record, ("00", "01"), {"/b": ["34-01"], "/a": []})
    text = (
        b'{"fence":{"format":1,"guard":{"authority":"a:0f3c","lock":"nightly","token":34,"written":true,'
        b'"sequence":3,"recorded":{"digest":-1,"result":[111,107]}},"ids":["00","01"]},'
        b'"keys":{"/a":[],"/b":["34-01"]}}'
    )
    assert manifest.encode() == text
    assert s3._Manifest.decode(text) == manifest
    for broken in (text.replace(b'"format":1', b'"format":2'), text.replace(b'"ids"', b'"idz"'), b"[]", b"{"):
        with pytest.raises(ValueError):
            s3._Manifest.decode(broken)
