"""Leases with fencing tokens: the client of Palisade.

No lock service can stop two processes from both believing they hold a lock. The lease saves work; the fence keeps data
safe: hand `grant.token` to one of `palisade.fences`."""

from ._async import AsyncClient, AsyncGrant, AsyncLock
from ._client import Client, Grant, Lock
from ._model import Duration, Event, Holder, Leader, LockInfo, Status, slot_key
from ._notices import Notice
from ._options import GrantOptions
from .errors import (
    Invalid,
    LeaseLost,
    LockHeld,
    NotAcquired,
    OperatorNeeded,
    PalisadeError,
    Unavailable,
    UnknownOutcome,
)

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncGrant",
    "AsyncLock",
    "Client",
    "Duration",
    "Event",
    "Grant",
    "GrantOptions",
    "Holder",
    "Invalid",
    "Leader",
    "LeaseLost",
    "Lock",
    "LockHeld",
    "LockInfo",
    "NotAcquired",
    "Notice",
    "OperatorNeeded",
    "PalisadeError",
    "Status",
    "Unavailable",
    "UnknownOutcome",
    "slot_key",
]
