"""The server's answers as values."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Any, Optional, Union

MAX_TOKEN = 2**53 - 1
Duration = Union[str, float, int, datetime.timedelta]

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


@dataclass(frozen=True)
class Holder:
    """The client that has a lock."""

    client_id: str
    token: int
    #: Until its lease is over unless it is renewed, in seconds.
    remaining: float
    metadata: Optional[str] = None
    #: The server's wall clock at the grant, for people.
    acquired_at: Optional[str] = None
    #: Of a reader: the number that names its grant, for `break_lock`. Only where one lock is shown.
    grant_id: Optional[int] = None
    #: The slots of a semaphore that it has.
    slots: tuple[int, ...] = ()


@dataclass(frozen=True)
class Leader:
    """The leader of an election, as of one moment. It is news, not proof: a leader writes through a fence, with its
    token."""

    client_id: str
    #: That of its grant, which rises with each leader.
    token: int
    #: What it announces.
    value: Optional[str] = None


@dataclass(frozen=True)
class LockInfo:
    """A lock; `holder` is None while it is free, and the oldest of several."""

    lock: str
    holder: Optional[Holder]
    waiters: int
    #: How many readers, or holders of permits, have it; 0 if it is held alone.
    reader_count: int = 0
    #: The oldest of them, at most 64. Only where one lock is shown.
    readers: tuple[Holder, ...] = ()
    #: How many permits a semaphore has; None for another lock.
    permits: Optional[int] = None


@dataclass(frozen=True)
class Status:
    """The server's description of itself."""

    authority: str
    incarnation: str
    next_token: Optional[int]
    locks: int
    leases: int
    waiters: int
    version: str


@dataclass(frozen=True)
class Event:
    """One change of a lock: `granted`, `proclaimed`, `opened`, `released`, `expired`, `revoked` or `superseded`. Or
    `missed`: `missed` changes did not arrive (None: nobody knows how many), so list the locks again."""

    kind: str
    revision: Optional[int]
    lock: str = ""
    client_id: str = ""
    token: int = 0
    missed: Optional[int] = None
    reason: Optional[str] = None
    #: Of a shared grant: the number that names it.
    grant_id: Optional[int] = None
    #: The server's wall clock at the change, for people.
    time: Optional[str] = None


def slot_key(lock: str, slot: int) -> str:
    """The resource id under which a fence keeps the tokens of one slot of a semaphore."""
    return f"{lock}~{slot}"


class Malformed(Exception):
    """An answer in the wrong form: the outcome is unknown."""


def milliseconds(duration: Duration, what: str, low: int, high: int) -> int:
    """A duration: seconds as a number, a timedelta, or a text such as "500ms", "10s", "2m", "1h". Parts of a
    millisecond are rounded up. Out of range is a ValueError that names the range."""
    if isinstance(duration, datetime.timedelta):
        exact = duration / datetime.timedelta(milliseconds=1)
    elif isinstance(duration, str):
        text = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", duration.strip())
        if not text:
            raise ValueError(f"{what} is {duration!r}: write a duration such as '500ms', '10s', '2m' or '1h'")
        exact = float(text[1]) * _UNITS_MS[text[2]]
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        exact = duration * 1_000.0
    else:
        raise ValueError(f"{what} is {duration!r}: a number of seconds, a timedelta or a text is needed")
    if not low <= exact <= high:
        raise ValueError(f"{what} is {duration!r}: {low} ms to {high} ms are allowed")
    return -int(-exact // 1)


def integer(value: dict[str, Any], name: str, low: int = 0, high: int = MAX_TOKEN) -> int:
    number = value.get(name)
    if type(number) is not int or not low <= number <= high:
        raise Malformed(f"{name} is {number!r}")
    return number


def text(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise Malformed(f"{name} is {found!r}")
    return found


def token(value: dict[str, Any], name: str = "fencing_token") -> int:
    return integer(value, name, low=1)


def slots(value: dict[str, Any]) -> tuple[int, ...]:
    found = value.get("slots", [])
    if not isinstance(found, list) or any(type(slot) is not int or not 1 <= slot <= 64 for slot in found):
        raise Malformed(f"slots is {found!r}")
    if found != sorted(set(found)):
        raise Malformed(f"slots is {found!r}")
    return tuple(found)


def holder(value: Any) -> Optional[Holder]:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Malformed(f"holder is {value!r}")
    remaining = integer(value, "remaining_ms") / 1_000
    more = value.get("metadata"), value.get("acquired_at"), value.get("grant_id")
    return Holder(text(value, "client_id"), token(value), remaining, *more, slots=slots(value))


def lock_info(value: Any) -> LockInfo:
    if not isinstance(value, dict):
        raise Malformed(f"a lock is {value!r}")
    found = value.get("readers", [])
    if not isinstance(found, list):
        raise Malformed(f"readers is {found!r}")
    readers = tuple(reader for reader in map(holder, found) if reader is not None)
    count = integer(value, "reader_count") if "reader_count" in value else 0
    permits = integer(value, "permits") if "permits" in value else None
    first, waiters = holder(value.get("holder")), integer(value, "waiters")
    return LockInfo(text(value, "resource_id"), first, waiters, count, readers, permits)


def page(value: dict[str, Any]) -> tuple[list[LockInfo], Optional[str]]:
    """A part of a listing, and the cursor of the next one."""
    locks, cursor = value.get("locks"), value.get("next_cursor")
    if not isinstance(locks, list) or not isinstance(cursor, (str, type(None))):
        raise Malformed(f"locks is {type(locks).__name__}, next_cursor is {cursor!r}")
    return [lock_info(lock) for lock in locks], cursor


def status(value: dict[str, Any]) -> Status:
    following = None if value.get("next_token") is None else token(value, "next_token")
    return Status(
        authority=text(value, "authority"),
        incarnation=text(value, "incarnation"),
        next_token=following,
        locks=integer(value, "locks"),
        leases=integer(value, "leases"),
        waiters=integer(value, "waiters"),
        version=text(value, "version"),
    )
