"""Errors, grouped by the caller's next step."""

from __future__ import annotations

from typing import Optional

from ._model import Holder


class PalisadeError(Exception):
    """The base of all errors. `code` is the name in the server's table of codes (docs/reference/errors.md).

    `args` are the constructor's arguments, because pools and queues send an error to another process by them."""

    def __init__(self, code: str, message: str) -> None:
        self.code, self._message = code, message

    def __str__(self) -> str:
        return self._message


class NotAcquired(PalisadeError):
    """The lock was not granted, and nothing is held. Trying again later is safe."""


class LockHeld(NotAcquired):
    """Another client has the lock, and kept it for as long as the caller was willing to wait. Or nobody has it, and its
    last grant keeps it closed (code "delayed"): `holder` is None then."""

    def __init__(self, code: str, message: str, holder: Optional[Holder], retry_after: Optional[float]) -> None:
        super().__init__(code, message)
        self.holder = holder
        #: When the holder's lease is over unless it is renewed, or when the lock opens, in seconds.
        self.retry_after = retry_after


class LeaseLost(PalisadeError):
    """The lease is over: stop the work. The next grant has another token. `reason`: the operator's, if a notice had
    it."""

    def __init__(self, code: str, lock: str, token: int, reason: Optional[str] = None) -> None:
        why = _WHY.get(code, code) + (f" ({reason})" if reason else "")
        code = "not_held" if code == "forked" else code
        super().__init__(code, f"the lease of {lock!r} (fencing token {token}) is lost: {why}")
        self.lock = lock
        self.token = token
        self.reason = reason


class Unavailable(PalisadeError):
    """Nobody could answer, and nothing happened: the same call may be made again."""


class UnknownOutcome(PalisadeError):
    """No answer came, and the call may have taken effect. An acquire is being abandoned in the background."""


class Invalid(PalisadeError, ValueError):
    """The call is wrong, and repeating it does not help. The message names the field and its range."""


class OperatorNeeded(PalisadeError):
    """Only an operator can help."""


_WHY = {
    "expired": "no renewal was acknowledged in time",
    "not_held": "it was released",
    "handed_over": "it was handed over to another process",
    "forked": "the parent of this process acquired it before the fork; acquire the lock in this process",
    "revoked": "an operator revoked it",
    "superseded": "the same client id acquired the lock again",
    "stale": "the lock is held with another token",
}
