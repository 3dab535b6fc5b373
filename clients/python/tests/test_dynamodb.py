"""The fence of an item in DynamoDB: boto3 against moto."""

from __future__ import annotations

import json
import threading
from typing import Any, Iterator

import boto3
import pytest
from conftest import ROOT
from moto.dynamodb.models import DynamoDBBackend
from moto.server import ThreadedMotoServer
from test_rule import operation, record

from palisade.fences import FenceLost, Pass, Rejected, Stale
from palisade.fences._stamped import fence_object, to_json
from palisade.fences.dynamodb import FENCE, Item
from palisade.fences.rule import Rule

KEY = {"seat": {"S": "12A"}}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    # DynamoDB checks a condition and puts in one step, moto in two.
    guard, in_two_steps = threading.Lock(), DynamoDBBackend.put_item

    def put_item(*arguments: Any, **named: Any) -> Any:
        with guard:
            return in_two_steps(*arguments, **named)

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DynamoDBBackend, "put_item", put_item)
        yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def client(endpoint: str) -> Iterator[Any]:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    made = boto3.client("dynamodb", endpoint_url=endpoint, **keys)
    made.create_table(
        TableName="seats",
        KeySchema=[{"AttributeName": "seat", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "seat", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    yield made
    made.delete_table(TableName="seats")
    made.close()


def test_a_newer_holder_shuts_the_older_one_out(client: Any) -> None:
    seat = Item(client, "seats", KEY)
    seat.claim(33)
    assert seat.read(33) == {}
    seat.write(33, {"passenger": {"S": "Alice"}})
    seat.claim(34)
    assert seat.read(34) == {"passenger": {"S": "Alice"}}
    for late in (lambda: seat.write(33, {}), lambda: seat.read(33), lambda: seat.claim(33)):
        with pytest.raises(Stale) as stale:
            late()
        assert stale.value.highest == 34
    assert seat.read(34) == {"passenger": {"S": "Alice"}}


def test_repeats_and_denials(client: Any) -> None:
    seat, holder = Item(client, "seats", KEY), Pass(7, "authority", "lock")
    assert not seat.write(holder, {"n": {"N": "1"}}, sequence=1, digest=2**64 - 1)
    assert seat.write(holder, {"n": {"N": "2"}}, sequence=1, digest=2**64 - 1)
    assert seat.read(holder) == {"n": {"N": "1"}}
    with pytest.raises(Rejected) as reused:
        seat.write(holder, {}, sequence=1, digest=5)
    assert reused.value.code == "sequence_reused"
    with pytest.raises(Rejected) as missing:
        seat.write(holder, lambda before: None)
    assert missing.value.code == "missing"
    with pytest.raises(Rejected) as forgot:
        seat.write(None, {})
    assert forgot.value.code == "tokenless"
    with pytest.raises(ValueError, match="key"):
        Item(client, "seats", {})


def test_the_attribute_of_the_fence_is_not_the_callers(client: Any) -> None:
    # As a key it would be written by each put: every claim would make another item, and none would see another one.
    for key in ({FENCE: {"S": "12A"}}, {**KEY, FENCE: {"S": "12A"}}):
        with pytest.raises(ValueError, match="another key"):
            Item(client, "seats", key)
    seat, lower = Item(client, "seats", KEY), {FENCE: {"S": "{}"}}
    seat.write(9, {"n": {"N": "1"}})
    changes: tuple[Any, ...] = (lower, lambda before: {**before, **lower})
    for change in changes:
        with pytest.raises(ValueError, match="attribute of the fence"):
            seat.write(9, change)
    with pytest.raises(ValueError, match="belongs to the key"):
        seat.write(9, {"n": {"N": "2"}, next(iter(KEY)): {"S": "12B"}})
    assert seat.read(9) == {"n": {"N": "1"}}
    # The control: the key as it is.
    seat.write(9, {"n": {"N": "2"}, **KEY})
    assert seat.read(9) == {"n": {"N": "2"}}


def test_racing_writers_lose_nothing(client: Any) -> None:
    seat = Item(client, "seats", KEY)
    seat.claim(7)

    def add() -> None:
        for _ in range(5):
            seat.write(7, lambda before: {"n": {"N": str(int(before.get("n", {"N": "0"})["N"]) + 1)}})

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seat.read(7) == {"n": {"N": "20"}}


def test_a_put_whose_answer_is_lost_is_recognised(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seat = Item(client, "seats", KEY)
    seat.claim(7)
    real, lose = client.put_item, [True]

    def put(**request: Any) -> Any:
        answer = real(**request)
        if lose:
            lose.pop()
            raise OSError("the answer is lost")
        return answer

    monkeypatch.setattr(client, "put_item", put)
    count: Any = lambda before: {"n": {"N": str(int(before.get("n", {"N": "0"})["N"]) + 1)}}  # noqa: E731
    seat.write(7, count)
    assert seat.read(7) == {"n": {"N": "1"}}
    assert not lose


def test_data_without_its_fence_is_refused(client: Any) -> None:
    seat = Item(client, "seats", KEY)
    client.put_item(TableName="seats", Item={**KEY, "passenger": {"S": "Bob"}})
    with pytest.raises(FenceLost, match="re-arm"):
        seat.claim(8)
    client.put_item(TableName="seats", Item={**KEY, FENCE: {"S": "{}"}})
    with pytest.raises(FenceLost, match="damaged"):
        seat.claim(8)


def test_an_item_decides_as_the_vectors_say(client: Any) -> None:
    wrong = []
    for number, case in enumerate(json.loads((ROOT / "vectors" / "fence.json").read_text())):
        presented, asked = operation(case["operation"])
        key = {"seat": {"S": str(number)}}
        before = record(case["record"])
        if case["record"]:
            client.put_item(TableName="seats", Item={**key, FENCE: {"S": to_json(fence_object(before, ()))}})
        item = Item(client, "seats", key, Rule(strict=case["mode"] == "strict", max_jump=case.get("max_jump")))
        verdict = "admit"
        try:
            if asked.kind == "claim":
                item.claim(presented)
            elif asked.kind == "read":
                item.read(presented)
            elif item.write(presented, {}, asked.sequence, asked.digest):
                verdict = "repeat"
        except Rejected as no:
            verdict = no.code
        expected = record(case["next"]) if "next" in case else before
        if verdict != case["verdict"] or item._load().record != expected:
            wrong.append((case, verdict))
    assert wrong == []
