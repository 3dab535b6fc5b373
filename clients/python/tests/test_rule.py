"""The decision of the fence is that of all vectors."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from palisade.fences import Pass, Rejected, Stale
from palisade.fences.rule import Operation, Record, Rule, decide

VECTORS = pathlib.Path(__file__).resolve().parents[3] / "vectors" / "fence.json"


def record(value: dict[str, Any]) -> Record:
    digest, result = value.get("digest"), value.get("result")
    return Record(
        authority=value.get("authority"),
        lock=value.get("lock"),
        token=value.get("token"),
        written=value.get("written", False),
        sequence=value.get("sequence"),
        digest=None if digest is None else int(digest),
        result=None if result is None else result.encode(),
    )


def operation(value: dict[str, Any]) -> tuple[Any, Operation]:
    digest = value.get("digest")
    number = None if digest is None else int(digest)
    presented = Pass(value["token"], value.get("authority"), value.get("lock")) if "token" in value else None
    return presented, Operation(value["kind"], value.get("sequence"), number)


def answer(case: dict[str, Any]) -> dict[str, Any]:
    before = record(case["record"])
    rule = Rule(strict=case["mode"] == "strict", max_jump=case.get("max_jump"))
    try:
        admitted = decide(before, *operation(case["operation"]), rule)
    except Rejected as no:
        told = {"highest": no.highest, "last": no.last, "bound": no.bound, "authority": no.authority, "lock": no.lock}
        return {"verdict": no.code, **{name: value for name, value in told.items() if value is not None}}
    if admitted.repeat:
        return {"verdict": "repeat"}
    next_record = {} if admitted.record == before else {"next": admitted.record}
    return {"verdict": "admit", **next_record}


def differing(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def expected(case: dict[str, Any]) -> dict[str, Any]:
        told = {name: value for name, value in case.items() if name not in ("mode", "max_jump", "record", "operation")}
        return {**told, "next": record(told["next"])} if "next" in told else told

    return [case for case in cases if answer(case) != expected(case)]


def test_every_vector_is_decided_alike() -> None:
    cases = json.loads(VECTORS.read_text())
    assert len(cases) > 1000
    assert differing(cases) == []


def test_a_stale_token_is_named_beside_the_newest() -> None:
    with pytest.raises(Stale, match="token 7 is stale: 7 < 8; a newer holder has claimed this resource: give up"):
        decide(Record(token=8), Pass(7), Operation("write"))


def test_a_wrong_vector_is_found() -> None:
    cases = json.loads(VECTORS.read_text())
    admitted = next(case for case in cases if case["verdict"] == "stale")
    assert differing([{**admitted, "highest": admitted["highest"] + 1}])


@pytest.mark.parametrize("token", [0, -1, 2**53, 1.0, True])
def test_what_is_no_token_is_refused(token: Any) -> None:
    with pytest.raises(ValueError, match="fencing token"):
        Pass(token)
