"""HTTP: headers for an API behind `palisade gateway` or a service with Palisade's tower layer.

client = httpx.Client(headers=headers(grant))
client.post(url, headers=claim(grant))        # first: raises the fence
answer = client.put(url, json=order, headers=headers(grant, sequence=1))
raise_for_fence(answer)                       # Stale, if a newer holder has claimed"""

from __future__ import annotations

import contextlib
import urllib.parse
import weakref
from typing import Any, Optional, Union

from ..errors import Invalid, Unavailable, UnknownOutcome
from .errors import Rejected, Stale
from .rule import MAX_TOKEN, Pass, pass_of

Holder = Union[int, Pass, Any]

_REJECTIONS = frozenset(
    {
        "wrong_authority",
        "wrong_lock",
        "jump",
        "tokenless",
        "sequence_stale",
        "sequence_reused",
        "already_written",
        "missing",
    }
)


#: The grants whose headers were made, by what these say: an answer has its request, and no grant.
_grants: weakref.WeakValueDictionary[tuple[str, Optional[str], Optional[str]], Any] = weakref.WeakValueDictionary()


def headers(holder: Holder, sequence: Optional[int] = None) -> dict[str, str]:
    """The headers of a read or write. With `sequence`, the number of this write among those of the grant, a write is
    safe to repeat."""
    presented = pass_of(holder)
    if presented._grant is not None:
        _grants[str(presented.token), presented.authority, presented.lock] = presented._grant
    found = {"X-Fencing-Token": str(presented.token)}
    if presented.authority is not None:
        found["X-Fencing-Authority"] = presented.authority
    if presented.lock is not None:
        found["X-Fencing-Lock"] = presented.lock
    if sequence is not None:
        if not 0 <= sequence <= MAX_TOKEN:
            raise ValueError(f"the sequence number {sequence} is out of range: 0 to {MAX_TOKEN} are allowed")
        found["X-Fencing-Sequence"] = str(sequence)
    return found


def claim(holder: Holder) -> dict[str, str]:
    """The headers of a request that raises the fence and does nothing else."""
    return {**headers(holder), "X-Fencing-Operation": "claim"}


def raise_for_fence(answer: Any) -> None:
    """Raises if the fence, or a proxy in front of the service, refused the request. `answer` has `status_code` and
    `json()`, as in httpx and requests. Other answers are the service's own, and are left alone."""
    if answer.status_code < 400:
        return
    try:
        told = answer.json()["error"]
        code, message = str(told["code"]), str(told.get("message", ""))
    except (ValueError, KeyError, TypeError):
        return
    if code == "stale" and type(told.get("highest")) is int:
        # A report never fails its caller, also with an answer of an unknown library.
        with contextlib.suppress(Exception):
            _report(answer.request, told["highest"])
        raise Stale(told.get("token"), told["highest"])
    if code in _REJECTIONS:
        numbers = {name: told.get(name) for name in ("highest", "last", "bound")}
        raise Rejected(code, **numbers)
    if code == "unavailable":
        raise Unavailable(code, message)
    if code == "unknown_outcome":
        raise UnknownOutcome(code, message)
    if code in ("invalid", "no_route"):
        raise Invalid(code, message)


def _report(request: Any, highest: int) -> None:
    """`request` is that of httpx or requests. The query of its address may be a secret."""
    token, authority, lock = (request.headers.get(f"X-Fencing-{name}") for name in ("Token", "Authority", "Lock"))
    grant, url = _grants.get((token, authority, lock)), urllib.parse.urlsplit(str(request.url))
    if grant is not None:
        is_claim = request.headers.get("X-Fencing-Operation") == "claim"
        operation = "claim" if is_claim else f"{request.method} {url.path}"
        grant._refused(lock, url.netloc.rpartition("@")[2], operation, highest)
