"""Until when a holder may believe (rules H1 – H4 of docs/promise/rules.md). No I/O here."""

from __future__ import annotations

from typing import Callable, Optional

from ._clock import now_ns
from ._process import Guard, this_process

# Either clock may run 1 % wrong: (1 - e) / (1 + e), as a fraction so that nothing is rounded up.
_SURE = (99, 101)


def deadline_ns(t0_ns: int, valid_for_ms: int, margin_ns: int) -> int:
    """`t0_ns` was read before the request that was answered was sent. Rounded down."""
    sure = valid_for_ms * 1_000_000 * _SURE[0] // _SURE[1]
    return t0_ns + max(0, sure - margin_ns)


class Hold:
    """The deadline of one grant. `announce` is called once, when it is lost; not when it is released or handed over."""

    def __init__(self, deadline: int, announce: Callable[[], None]) -> None:
        self._deadline = deadline
        self._over: Optional[str] = None
        self._reason: Optional[str] = None
        self._announce = announce
        self._guard = Guard()
        self._upgrading = False
        self._process = this_process()

    @property
    def deadline(self) -> int:
        return self._deadline

    @property
    def is_here(self) -> bool:
        """Whether this process acquired it. A child that was forked from it holds nothing, and changes nothing."""
        return this_process() == self._process

    @property
    def over(self) -> Optional[str]:
        """Why it is over: a code, "released", "handed_over", or "forked" in a child of the process that acquired it."""
        return self._over if self.is_here else "forked"

    @property
    def reason(self) -> Optional[str]:
        """The operator's, of a lease that was revoked, if the server told it."""
        return self._reason

    def holds(self) -> bool:
        """Whether the holder may act now. Once the clock has passed the deadline, it stays false."""
        if not self.is_here:
            return False
        if self._over is None and now_ns() >= self._deadline:
            self.end("expired")
        return self._over is None

    def remaining_ns(self) -> int:
        return max(0, self._deadline - now_ns()) if self.holds() else 0

    def renewed(self, deadline: int) -> None:
        """An acknowledged renewal: forward only, and no revival."""
        if self.holds():
            with self._guard:
                self._deadline = max(self._deadline, deadline)

    def end(self, code: str, reason: Optional[str] = None) -> bool:
        """Not held from now on. The first reason stays. Tells whether this was it."""
        if not self.is_here:
            return False
        with self._guard:
            if self._over is not None:
                return False
            self._over, self._reason = code, reason
        if code not in ("released", "handed_over"):
            self._announce()
        return True

    def begin_upgrade(self) -> bool:
        """Whether no upgrade of the grant is under way. From now on one is."""
        with self._guard:
            began, self._upgrading = not self._upgrading, True
        return began

    def end_upgrade(self) -> None:
        self._upgrading = False

    def expects(self, code: str) -> bool:
        """Whether a renewal that is answered so is no loss yet: an upgrade supersedes the reader's grant, and the
        answer to the upgrade may be the later one. Nothing is extended meanwhile."""
        return self._upgrading and code == "superseded"
