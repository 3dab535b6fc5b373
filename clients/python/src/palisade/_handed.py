"""A lease as a text, which goes to another process (rule H6 of docs/promise/rules.md)."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any, Callable, Optional

from ._clock import now_ns
from ._hold import Hold
from ._model import MAX_TOKEN, Malformed, integer
from ._protocol import (
    GONE,
    Backoff,
    Fault,
    Granted,
    GrantRef,
    Mode,
    Reply,
    Send,
    Steps,
    Wish,
    attempt_ns,
    code_of,
    error_of,
    fault_of,
    lock_path,
    lost,
)
from .errors import Invalid, LeaseLost

_FORM = "palisade-lease/1."
_DAY_MS = 86_400_000
_MODES: dict[Any, Mode] = {None: "exclusive", "shared": "shared", "update": "update"}


def export(wish: Wish, granted: Granted, ref: GrantRef, hold: Hold) -> str:
    """Ends the hold without a release. It has no deadline: that of this machine's clock means nothing on another one's.
    The caller has checked that it holds, and keeps upgrades out."""
    held = list(ref.held)
    told: dict[str, Any] = {
        "lock": held[0],
        "authority": granted.authority,
        "fencing_token": granted.token,
        "lock_token": granted.lease_key,
        "ttl_ms": wish.ttl_ms,
        "client_id": wish.client_id,
    }
    if len(wish.locks) > 1:
        told["parts"] = held
    if wish.shared:
        told |= {"mode": wish.mode, "grant_id": granted.number}
    if wish.permits is not None:
        told |= {"slots": list(granted.slots), "permits": wish.permits[1]}
    if wish.metadata:
        told["metadata"] = wish.metadata
    text = json.dumps(told, ensure_ascii=False).encode()
    if not hold.end("handed_over"):
        raise lost(hold, ref)
    # What is left to release: parts that were given up, and whose release nobody acknowledged.
    ref.unreleased[:] = [name for name in ref.unreleased if name not in held]
    return _FORM + base64.urlsafe_b64encode(text).decode().rstrip("=")


def read(text: object, patience_ns: int) -> tuple[Wish, Granted]:
    """The lease of an exported text. No error repeats it: it is a secret."""
    value = _decoded(text)
    try:
        return _read(value, patience_ns)
    except _Wrong as wrong:
        raise _invalid(str(wrong)) from None
    # These name what they found.
    except (Malformed, Invalid, KeyError, TypeError, ValueError):
        raise _invalid("a field is missing, of another kind, or out of range") from None


class _Wrong(Exception):
    """What is wrong with a text, without what it contains."""


def _invalid(why: str) -> Invalid:
    return Invalid("invalid", f"the text is not that of an exported lease: {why}")


def _decoded(text: object) -> dict[str, Any]:
    if not isinstance(text, str):
        raise _invalid(f"it is a {type(text).__name__}")
    encoded = text.strip()
    if not encoded.startswith(_FORM):
        raise _invalid(f"it does not begin with {_FORM!r}")
    encoded = encoded.removeprefix(_FORM)
    try:
        if not re.fullmatch("[A-Za-z0-9_-]+", encoded):
            raise ValueError
        value = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _invalid("it is damaged")
    return value


def _read(value: dict[str, Any], patience_ns: int) -> tuple[Wish, Granted]:
    named = value.get("parts", [value["lock"]])
    if not isinstance(named, list) or not 1 <= len(named) <= 64:
        raise _Wrong("lock or parts are missing or out of range")
    for name in named:
        lock_path(name)
    locks = tuple(sorted(named))
    if len(set(locks)) != len(locks) or locks[0] != value["lock"]:
        raise _Wrong("lock is not the first of parts, or one of them is there twice")
    if value.get("mode") not in _MODES:
        raise _Wrong("mode is none of a lease")
    mode = _MODES[value.get("mode")]
    token = integer(value, "fencing_token", 1, MAX_TOKEN)
    number = token if mode == "exclusive" else integer(value, "grant_id", 1, MAX_TOKEN)
    texts = [value[name] for name in ("lock_token", "authority", "client_id")]
    if not all(isinstance(each, str) and each for each in texts):
        raise _Wrong("lock_token, authority or client_id is missing")
    metadata = value.get("metadata")
    if not isinstance(metadata, (str, type(None))) or len((metadata or "").encode()) > 256:
        raise _Wrong("metadata is no text, or too long")
    slots = value.get("slots", [])
    in_range = all(type(slot) is int and 1 <= slot <= 64 for slot in slots)
    if not in_range or slots != sorted(set(slots)):
        raise _Wrong("slots are out of range")
    permits = (len(slots), integer(value, "permits", len(slots), 64)) if slots else None
    ttl_ms = integer(value, "ttl_ms", 100, _DAY_MS)
    wish = Wish(locks, texts[2], ttl_ms, 0, metadata, patience_ns, mode, permits)
    granted = Granted(0, token, number, texts[0], texts[1], 0, 0, "", tuple(slots))
    return wish, granted


def adopt(ref: GrantRef, until_ns: int, deadline_of: Callable[[int, int], int]) -> Steps[tuple[int, int]]:
    """Renews each lock. Only what is acknowledged counts, from before it was sent: returns when the one was sent whose
    deadline is the earliest, and how long it is valid. Raises `LeaseLost` with the name of a lock that is over."""
    earliest: Optional[tuple[int, int]] = None
    for lock in ref.locks:
        backoff, check = Backoff(until_ns), ref.check(lock, is_renewal=True)
        while True:
            t0 = now_ns()
            timeout = attempt_ns(until_ns - t0, 0, until_ns - t0)
            outcome = yield Send("POST", lock_path(lock, "renew"), ref.body(), timeout, check)
            fault = fault_of(outcome)
            if fault is None:
                break
            # A renewal that may have happened leaves nothing behind: the same text may be tried again.
            yield backoff.after(Fault(str(fault), unknown=False, silent=fault.silent))
        assert isinstance(outcome, Reply)
        if code_of(outcome) in GONE and outcome.status != 200:
            ref.unreleased.remove(lock)
            raise LeaseLost(code_of(outcome), lock, ref.token)
        if outcome.status != 200:
            raise error_of(outcome)
        valid = t0, integer(outcome.value, "valid_for_ms")
        earliest = min(earliest or valid, valid, key=lambda each: deadline_of(*each))
    assert earliest is not None
    return earliest
