"""The deadline, by the vectors of all clients: `vectors/deadline.json`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import ROOT

from palisade import _protocol as protocol
from palisade._hold import deadline_ns

VECTORS = json.loads((ROOT / "vectors" / "deadline.json").read_text())
#: How much earlier than the exact deadline a client may stop, for rounding.
ROUNDING_NS = 1_000_000


def deadline(vector: dict[str, Any], field: str = "valid_for_ms") -> int:
    """As from the answer to an acquire."""
    answer = {
        "fencing_token": 1,
        "lock_token": "0123456789abcdef" * 2,
        "authority": "a",
        "valid_for_ms": vector[field],
        "waited_ms": vector["waited_ms"],
        "remaining_ms": vector["valid_for_ms"] - vector["waited_ms"],
    }
    wish = protocol.Wish(("orders",), "c", 10_000, 0, None, 0)
    granted = protocol._granted(vector["sent_ns"], vector["sent_ns"], answer, wish)
    return deadline_ns(granted.t0_ns, granted.valid_for_ms, vector["margin_ms"] * 1_000_000)


@pytest.mark.parametrize("vector", VECTORS)
def test_every_vector_has_this_deadline(vector: dict[str, Any]) -> None:
    assert vector["drift_ppm"] == 10_000
    assert 0 <= vector["deadline_ns"] - deadline(vector) < ROUNDING_NS


def test_another_rule_is_found() -> None:
    """A client that takes the lease's length for the time that is left."""
    found = [vector for vector in VECTORS if deadline(vector, "lease_duration_ms") > vector["deadline_ns"]]
    assert len(found) >= 9
