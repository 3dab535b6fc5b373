"""A fence's record with the ids of its last writes, for stores whose one atomic step is "replace this if it is still
what I read". A writer that finds its own id knows that its write took effect, although the answer was lost.

docs/reference/fence-formats.md of the repository describes the stored form."""

from __future__ import annotations

import json
import secrets
from typing import Any, Optional

from ..errors import UnknownOutcome
from .rule import MAX_TOKEN, Record

IDS = 64
#: How often an operation is decided again because other writers were faster, and how often one write is repeated.
ATTEMPTS, SAME_WRITE_TRIES = 32, 5


def fresh_id() -> str:
    return secrets.token_hex(16)


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def fence_object(record: Record, ids: tuple[str, ...]) -> dict[str, Any]:
    digest, result = record.digest, record.result
    guard = {
        "authority": record.authority,
        "lock": record.lock,
        "token": record.token,
        "written": record.written,
        "sequence": record.sequence,
        "recorded": {
            "digest": digest - 2**64 if digest is not None and digest >= 2**63 else digest,
            "result": None if result is None else list(result),
        },
    }
    return {"format": 1, "guard": guard, "ids": list(ids)}


def read_fence(value: Any) -> tuple[Record, tuple[str, ...]]:
    """Raises ValueError or TypeError for anything that no fence writes."""
    fence = object_with(value, {"format", "guard", "ids"})
    if fence["format"] != 1:
        raise ValueError(f"format {fence['format']!r}; only 1 is known")
    guard = object_with(fence["guard"], {"authority", "lock", "token", "written", "sequence", "recorded"})
    recorded = object_with(guard["recorded"], {"digest", "result"})
    token, sequence, digest = guard["token"], guard["sequence"], recorded["digest"]
    if not (_is_number(token, 1) and _is_number(sequence, 0) and isinstance(guard["written"], bool)):
        raise ValueError(f"the guard is {guard!r}")
    result = None if recorded["result"] is None else bytes(recorded["result"])
    unsigned = None if digest is None else digest % 2**64
    record = Record(guard["authority"], guard["lock"], token, guard["written"], sequence, unsigned, result)
    return record, tuple(fence["ids"])


def took_effect(ids: tuple[str, ...], id: str, base: tuple[str, ...]) -> bool:
    """Whether the write `id`, made on top of `base`, is in a later state's history; raises if that is too short."""
    if id in ids:
        return True
    if base[-1] in ids if base else len(ids) < IDS:
        return False
    raise UnknownOutcome("unknown_outcome", "too many other writes happened to know whether this one took effect")


def object_with(value: Any, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != names:
        raise ValueError(f"it is not an object with {sorted(names)}")
    return value


def error_code(error: Optional[Exception]) -> str:
    """The code of botocore's errors, without depending on it."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _is_number(value: Any, low: int) -> bool:
    return value is None or (type(value) is int and low <= value <= MAX_TOKEN)
