"""Elections (rules E1 to E3 of docs/promise/rules.md), without I/O."""

from __future__ import annotations

from typing import Any, Optional

from ._hold import Hold
from ._model import Event, Leader, Malformed, integer, lock_info
from ._protocol import GONE, GrantRef, Reply, Steps, code_of, error_of, lock_path, lost, repeated, same
from .errors import Invalid

_MAX_VALUE = 256
#: The leader, and the latest change that the answer knows of.
Shown = tuple[Optional[Leader], int]


def shown(value: dict[str, Any]) -> Shown:
    info = lock_info(value)
    metadata = None if info.holder is None else info.holder.metadata
    if not isinstance(metadata, (str, type(None))):
        raise Malformed(f"metadata is {metadata!r}")
    revision = integer(value, "revision", high=2**64 - 1) if "revision" in value else 0
    # A shared lock has no leader.
    if info.holder is None or info.reader_count > 0:
        return None, revision
    return Leader(info.holder.client_id, info.holder.token, metadata or None), revision


class Observed:
    """Which changes are a reason to look, and which looks are news. It never goes back."""

    def __init__(self, name: str) -> None:
        lock_path(name)
        self._name, self._revision = name, 0
        self._last: Optional[tuple[Optional[Leader]]] = None

    def concerns(self, change: Optional[Event]) -> bool:
        """Whether to look now. None: the watch is open, so that no change falls between it and the first look."""
        if change is None:
            return self._last is None
        is_one = change.kind == "missed" or change.lock == self._name
        return is_one and (change.revision is None or change.revision > self._revision)

    def is_news(self, found: Shown) -> bool:
        leader, revision = found
        is_older = revision < self._revision
        self._revision = max(self._revision, revision)
        if is_older or self._last == (leader,):
            return False
        self._last = (leader,)
        return True


def checked(value: object) -> str:
    if not isinstance(value, str):
        raise Invalid("invalid", f"the value is {value!r}: a text is needed")
    if len(value.encode()) > _MAX_VALUE:
        raise Invalid("invalid", f"the value has {len(value.encode())} bytes; 0 to {_MAX_VALUE} are allowed")
    return value


def proclaim(grant: GrantRef, hold: Hold, value: str, until_ns: int) -> Steps[None]:
    name = grant.locks[0]

    def check(reply: Reply) -> None:
        if reply.status == 200:
            same(reply.value, "resource_id", name)
            same(reply.value, "fencing_token", grant.token)

    body = {**grant.body(), "value": value}
    reply = yield from repeated("POST", lock_path(name, "proclaim"), body, until_ns, check)
    if reply.status != 200 and code_of(reply) in GONE:
        hold.end(code_of(reply))
        raise lost(hold, grant)
    if reply.status != 200:
        raise error_of(reply)
