"""Checks arguments and turns them into requests, for the sync and the async client."""

from __future__ import annotations

import os
import socket
import urllib.parse
import uuid
from itertools import pairwise
from typing import Any, Optional, Sequence, Union

from . import _handed
from ._bearer import Bearer
from ._clock import MILLISECOND, now_ns
from ._endpoints import Endpoints
from ._hold import deadline_ns
from ._model import Duration
from ._options import DAY_MS, GrantOptions, fields, in_milliseconds
from ._protocol import (
    Fault,
    Granted,
    GrantRef,
    Mode,
    Steps,
    Wish,
    code_of,
    error_of,
    fault_of,
    lock_path,
    read_reply,
    release,
)
from ._sse import Position
from ._transport import Settings, identity_may_be_over
from .errors import Invalid

#: How long an acquire waits in the queue.
WAIT = "30s"
_MAX_METADATA = 256
_MAX_LOCKS = 64


class Requests:
    def __init__(
        self,
        url: Union[str, Sequence[str], None],
        patience: Duration,
        margin: Duration,
        bearer: Bearer,
        verify: Any,
        cert: Any,
    ) -> None:
        self.endpoints = Endpoints(url, secret=bearer.is_set)
        self.settings = Settings(self.endpoints, bearer, verify, cert)
        self.patience_ns = in_milliseconds(patience, "patience", 1, DAY_MS) * MILLISECOND
        self.margin_ns = in_milliseconds(margin, "margin", 0, DAY_MS) * MILLISECOND
        # The host that a client runs on, for people. Each request adds random characters,
        # which make it unique.
        self._name = f"{socket.gethostname()[:64]}-{os.getpid()}"

    def wish(
        self,
        names: tuple[str, ...],
        ttl: Duration,
        wait: Optional[Duration],
        otherwise: Duration,
        client_id: Optional[str],
        metadata: Optional[str],
        shared: bool = False,
        update: bool = False,
        permits: Optional[tuple[int, int]] = None,
        options: Optional[GrantOptions] = None,
    ) -> Wish:
        """`otherwise`: how long it waits if nobody said so."""
        for name in names:
            lock_path(name)
        if not 1 <= len(names) <= _MAX_LOCKS:
            raise Invalid("invalid", f"{len(names)} locks are named; 1 to {_MAX_LOCKS} are allowed")
        locks = tuple(sorted(names))
        for one, following in pairwise(locks):
            if one == following:
                raise Invalid("invalid", f"the lock {one!r} is named twice")
        ttl_ms = in_milliseconds(ttl, "ttl", 100, DAY_MS)
        of_grant = fields(options or {})
        for what, text in (("client_id", client_id), ("metadata", metadata)):
            if text is not None and not isinstance(text, str):
                raise Invalid("invalid", f"{what} is {text!r}: a text is needed")
        if permits is not None and not (isinstance(permits, (tuple, list)) and len(permits) == 2):
            raise Invalid("invalid", f"permits is {permits!r}: two numbers are needed, such as (2, 5) for two of five")
        if metadata is not None and len(metadata.encode()) > _MAX_METADATA:
            raise Invalid("invalid", f"metadata has {len(metadata.encode())} bytes; 0 to {_MAX_METADATA} are allowed")
        if (shared or update) and permits is not None:
            raise Invalid("invalid", "ask for a shared lock or for permits, not both")
        if shared and update:
            raise Invalid("invalid", "ask for shared or for update, not both")
        mode: Mode = "update" if update else "shared" if shared else "exclusive"
        client = f"{self._name}-{uuid.uuid4().hex}" if client_id is None else client_id
        wait_ms = self.wait_ms(otherwise if wait is None else wait)
        return Wish(locks, client, ttl_ms, wait_ms, metadata, self.patience_ns, mode, permits, of_grant)

    def wait_ms(self, wait: Duration) -> int:
        return in_milliseconds(wait, "wait", 0, DAY_MS)

    def adopts(self, text: str) -> tuple[Wish, Granted, GrantRef, Steps[tuple[int, int]]]:
        """The lease in an exported text, and the steps that take it over."""
        wish, granted = _handed.read(text, self.patience_ns)
        ref = GrantRef(wish, granted)
        return wish, granted, ref, _handed.adopt(ref, now_ns() + self.patience_ns, self.deadline)

    def gives_back(self, wish: Wish, ref: GrantRef) -> Steps[str]:
        """Releases what is left of a lease."""
        return release(ref, now_ns() + 2 * wish.ttl_ms * MILLISECOND)

    def deadline(self, t0_ns: int, valid_for_ms: int) -> int:
        return deadline_ns(t0_ns, valid_for_ms, self.margin_ns)

    def page(self, prefix: str, cursor: Optional[str]) -> str:
        _check(prefix, str, "prefix", "a text")
        parameters = {"prefix": prefix, "limit": "1000"}
        if cursor is not None:
            parameters["cursor"] = cursor
        return "/v1/locks?" + urllib.parse.urlencode(parameters, quote_via=urllib.parse.quote)

    def watched(self, prefix: str, after: Optional[int]) -> Position:
        _check(prefix, str, "prefix", "a text")
        if after is not None:
            _check(after, int, "after", "the revision of an event")
        return Position(prefix, after)

    def breaks(self, token: int, reason: str) -> dict[str, Any]:
        _check(token, int, "token", "the holder's token, as `show` has it,")
        _check(reason, str, "reason", "a text")
        return {"fencing_token": token, "reason": reason}

    def resizes(self, permits: int) -> dict[str, Any]:
        _check(permits, int, "permits", "a number")
        return {"of": permits}

    def watch_refused(self, url: str, status: int, body: bytes, position: Position) -> bool:
        """A watch was not opened: raises unless connecting again may help. True: on a new connection, at once."""
        try:
            reply = read_reply(status, body)
        except Fault:
            self.endpoints.failed(url)
            return False
        if self.endpoints.answered(url, reply):
            return False
        if fault_of(reply) is not None:
            self.endpoints.failed(url)
            return False
        if identity_may_be_over(url, status, code_of(reply)) and not position.reconnects:
            position.reconnects = True
            return True
        if position.after is None:
            raise error_of(reply)
        position.lost()
        return False


def _check(value: object, kind: type, what: str, wanted: str) -> None:
    # A `bool` is an `int`.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Invalid("invalid", f"{what} is {value!r}: {wanted} is needed")
