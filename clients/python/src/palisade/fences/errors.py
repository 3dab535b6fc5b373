"""The answers of a fence that rejects an operation."""

from __future__ import annotations

from typing import Optional

from ..errors import OperatorNeeded, PalisadeError


class Rejected(PalisadeError):
    """The fence refuses the operation, and nothing changed: roll back, and write nothing more. `code` says why:
    `stale`, `wrong_authority`, `wrong_lock`, `jump`, `sequence_stale`, `sequence_reused`, `already_written`,
    `tokenless`, `missing`."""

    def __init__(
        self,
        code: str,
        *,
        token: Optional[int] = None,
        highest: Optional[int] = None,
        last: Optional[int] = None,
        bound: Optional[int] = None,
        authority: Optional[str] = None,
        lock: Optional[str] = None,
    ) -> None:
        self.token, self.highest, self.last, self.bound = token, highest, last, bound
        self.authority, self.lock = authority, lock
        if code == "stale" and token is not None:
            super().__init__(code, f"token {token} is stale: {token} < {highest}; {_SAYS[code]}")
            return
        told = {"highest": highest, "last": last, "bound": bound, "authority": authority, "lock": lock}
        details = ", ".join(f"{name}: {value}" for name, value in told.items() if value is not None)
        super().__init__(code, _SAYS[code] + (f" ({details})" if details else ""))


class Stale(Rejected):
    """A newer holder has claimed the resource: give up. `token` is the one that is refused, `highest` the newest, as
    far as the resource says."""

    def __init__(self, token: Optional[int], highest: Optional[int]) -> None:
        super().__init__("stale", token=token, highest=highest)


class FenceLost(OperatorNeeded):
    """There is data without the state of its fence, or the state is damaged. An operator re-arms the fence with a
    floor: `palisade fence rearm`."""

    def __init__(self, message: str) -> None:
        super().__init__("fence_lost", message)


class FenceNotInstalled(OperatorNeeded):
    """The fence's tables or functions are missing."""

    def __init__(self, message: str) -> None:
        super().__init__("not_installed", message)


_SAYS = {
    "stale": "a newer holder has claimed this resource: give up, and write nothing more",
    "wrong_authority": "the resource has an authority that this token does not name: pass the grant, not its number",
    "wrong_lock": "the resource belongs to another lock",
    "jump": "the token is too far above the highest that this resource has seen",
    "sequence_stale": "a later write of this grant was already carried out: this is a late duplicate",
    "sequence_reused": "this sequence number was used for another write of this grant",
    "already_written": "there was already a write under this token",
    "tokenless": "the resource is fenced, and this write has no fencing token",
    "missing": "there is nothing to change",
}
