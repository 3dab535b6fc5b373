"""What the sync and the async client make of their arguments."""

from __future__ import annotations

import os
import socket
import urllib.parse
import uuid
from typing import Any, Optional, Sequence, Union

from ._clock import MILLISECOND
from ._endpoints import Endpoints
from ._hold import deadline_ns
from ._model import Duration, milliseconds
from ._protocol import Fault, Wish, error_of, fault_of, lock_path, read_reply
from ._sse import Position
from ._transport import Settings
from .errors import Invalid

_DAY_MS = 86_400_000
_MAX_LOCK_DELAY_MS = 60_000
_MAX_METADATA = 256
_MAX_LOCKS = 64


class Requests:
    def __init__(
        self,
        url: Union[str, Sequence[str], None],
        patience: Duration,
        margin: Duration,
        token: Optional[str],
        verify: Any,
        cert: Any,
    ) -> None:
        self.endpoints = Endpoints(url)
        self.settings = Settings(self.endpoints, token, verify, cert)
        self.patience_ns = milliseconds(patience, "patience", 1, _DAY_MS) * MILLISECOND
        self.margin_ns = milliseconds(margin, "margin", 0, _DAY_MS) * MILLISECOND
        # For people: where a client runs. What makes it unique is drawn for each request.
        self._name = f"{socket.gethostname()[:64]}-{os.getpid()}"

    def wish(
        self,
        names: tuple[str, ...],
        ttl: Duration,
        wait: Duration,
        client_id: Optional[str],
        metadata: Optional[str],
        shared: bool,
        permits: Optional[tuple[int, int]],
        lock_delay: Duration,
        at_least_for: Duration,
    ) -> Wish:
        for name in names:
            lock_path(name)
        if not 1 <= len(names) <= _MAX_LOCKS:
            raise Invalid("invalid", f"{len(names)} locks are named; 1 ..= {_MAX_LOCKS} are allowed")
        locks = tuple(sorted(names))
        for one, following in zip(locks, locks[1:]):
            if one == following:
                raise Invalid("invalid", f"the lock {one!r} is named twice")
        try:
            ttl_ms = milliseconds(ttl, "ttl", 100, _DAY_MS)
            wait_ms = milliseconds(wait, "wait", 0, _DAY_MS)
            delays = (
                milliseconds(lock_delay, "lock_delay", 0, _MAX_LOCK_DELAY_MS),
                milliseconds(at_least_for, "at_least_for", 0, _DAY_MS),
            )
        except ValueError as error:
            raise Invalid("invalid", str(error)) from None
        if metadata is not None and len(metadata.encode()) > _MAX_METADATA:
            raise Invalid("invalid", f"metadata has {len(metadata.encode())} bytes; 0 ..= {_MAX_METADATA} are allowed")
        if shared and permits is not None:
            raise Invalid("invalid", "a lock is shared by readers, or has permits: not both")
        client = f"{self._name}-{uuid.uuid4().hex}" if client_id is None else client_id
        return Wish(locks, client, ttl_ms, wait_ms, metadata, self.patience_ns, shared, permits, *delays)

    def deadline(self, t0_ns: int, valid_for_ms: int) -> int:
        return deadline_ns(t0_ns, valid_for_ms, self.margin_ns)

    def page(self, prefix: str, cursor: Optional[str]) -> str:
        parameters = {"prefix": prefix, "limit": "1000"}
        if cursor is not None:
            parameters["cursor"] = cursor
        return "/v1/locks?" + urllib.parse.urlencode(parameters, quote_via=urllib.parse.quote)

    def watch_refused(self, url: str, status: int, body: bytes, position: Position) -> None:
        """A watch was not opened: raises unless connecting again may help."""
        try:
            reply = read_reply(status, body)
        except Fault:
            self.endpoints.failed(url)
            return
        if self.endpoints.answered(url, reply):
            return
        if fault_of(reply) is not None:
            self.endpoints.failed(url)
            return
        if position.after is None:
            raise error_of(reply)
        position.lost()
