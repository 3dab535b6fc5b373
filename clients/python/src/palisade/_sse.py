"""Server-sent events, without I/O."""

from __future__ import annotations

import json
import re
import urllib.parse
from typing import Any, Iterator, Optional

from ._model import Event, Malformed, integer, text, token

_KINDS = frozenset({"granted", "proclaimed", "opened", "released", "expired", "revoked", "superseded"})


class Position:
    """Where a watch stands; it goes on from there after a break."""

    def __init__(self, prefix: str, after: Optional[int]) -> None:
        self.prefix, self.after = prefix, after
        self._kind, self._id, self._data = "", "", ""
        self._opened = False
        #: Whether it is being opened anew because its certificate may be over.
        self.reconnects = False

    def path(self) -> str:
        return "/v1/watch?" + urllib.parse.urlencode(self.parameters(), quote_via=urllib.parse.quote)

    def parameters(self) -> dict[str, str]:
        self._kind, self._id, self._data = "", "", ""
        after = {} if self.after is None else {"after_revision": str(self.after)}
        return {"prefix": self.prefix, **after}

    def opened(self) -> Iterator[Event]:
        """A connection is open. Without a position, the changes since the last connection are
        unknown."""
        if self._opened and self.after is None:
            yield Event("missed", None)
        self._opened, self.reconnects = True, False

    def lost(self) -> None:
        """The position is of another authority: begin anew."""
        self.after = None

    def line(self, line: str) -> Optional[Event]:
        """Takes the next line; an empty one ends an event."""
        if line:
            name, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "event":
                self._kind = value
            elif name == "id":
                self._id = value
            elif name == "data":
                self._data += value
            return None
        kind, revision, data = self._kind, self._id, self._data
        self._kind, self._id, self._data = "", "", ""
        if re.fullmatch("[0-9]{1,19}", revision):
            self.after = int(revision)
        return self._event(kind, data) if data else None

    def _event(self, kind: str, data: str) -> Optional[Event]:
        try:
            value = json.loads(data)
            if not isinstance(value, dict):
                return None
            if kind == "missed":
                return Event(kind, self.after, missed=integer(value, "missed"))
            if kind not in _KINDS:
                return None
            about = text(value, "resource_id"), text(value, "client_id"), token(value)
            more: dict[str, Any] = {name: value.get(name) for name in ("reason", "grant_id", "time")}
            return Event(kind, self.after, *about, **more)
        except (ValueError, RecursionError, Malformed):
            return None
