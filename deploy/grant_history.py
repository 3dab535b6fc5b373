"""The grants that clients received, and the rules that they must satisfy: for check_upgrade.py and soak.py."""

from __future__ import annotations

import collections
import copy
import dataclasses
from typing import Callable, Iterator

from check_package import must


@dataclasses.dataclass
class Grant:
    """A grant as its client received it, on this machine's clock."""

    lock: str
    token: int
    #: When it was first asked for, and when it was acknowledged.
    asked: float
    answered: float
    #: Until when the client may believe that it holds the lock.
    until: float


@dataclasses.dataclass
class Loss:
    """A grant that a client learned was over."""

    grant: Grant
    at: float
    code: str


class History:
    def __init__(self) -> None:
        self.grants: list[Grant] = []
        self.losses: list[Loss] = []

    def since(self, began: float, now: float) -> tuple[int, float]:
        """How many grants there were between the two, and the longest time without one, in seconds."""
        work = sorted(grant.answered for grant in self.grants if began < grant.answered <= now)
        return len(work), max(after - before for before, after in zip([began, *work], [*work, now]))

    def problems(self) -> Iterator[str]:
        first: dict[int, Grant] = {}
        for grant in self.grants:
            other = first.setdefault(grant.token, grant)
            if other is not grant:
                yield f"token {grant.token} was given twice: for {other.lock} and for {grant.lock}"
        # There is one counter: a later request gets a higher token, for any lock.
        acknowledged = sorted(self.grants, key=lambda grant: grant.answered)
        highest, at = 0, 0
        for grant in sorted(self.grants, key=lambda grant: grant.asked):
            while at < len(acknowledged) and acknowledged[at].answered <= grant.asked:
                highest, at = max(highest, acknowledged[at].token), at + 1
            if grant.token < highest:
                yield f"{grant.lock} was granted with token {grant.token} after token {highest}"
        last: dict[str, Grant] = {}
        for grant in acknowledged:
            before = last.get(grant.lock)
            if before is not None and grant.answered < before.until:
                early = (before.until - grant.answered) * 1000
                yield f"{grant.lock} had two holders for {early:.1f} ms: tokens {before.token} and {grant.token}"
            if before is not None and grant.token < before.token:
                yield f"the tokens of {grant.lock} fall from {before.token} to {grant.token}"
            if before is None or before.until < grant.until:
                last[grant.lock] = grant
        for loss in self.losses:
            if loss.at < loss.grant.until:
                left = (loss.grant.until - loss.at) * 1000
                lost = f"{loss.grant.lock} with token {loss.grant.token}"
                yield f"{lost} was lost ({loss.code}), {left:.0f} ms before its lease ends"


def damages(history: History) -> Iterator[tuple[str, History]]:
    """Damaged copies, and the message that each must cause."""
    locks = collections.defaultdict(list)
    for at, grant in enumerate(history.grants):
        locks[grant.lock].append(at)
    before, after = next(places for places in locks.values() if len(places) > 1)[:2]

    def damaged(change: Callable[[History, Grant, Grant], None]) -> History:
        damaged = copy.deepcopy(history)
        change(damaged, damaged.grants[before], damaged.grants[after])
        return damaged

    def repeat(_: History, one: Grant, other: Grant) -> None:
        other.token = one.token

    def swap(_: History, one: Grant, other: Grant) -> None:
        one.token, other.token = other.token, one.token

    def early(_: History, one: Grant, other: Grant) -> None:
        other.answered = (one.answered + one.until) / 2
        other.asked = min(other.asked, other.answered)

    def lose(damaged: History, one: Grant, _: Grant) -> None:
        damaged.losses.append(Loss(one, (one.answered + one.until) / 2, "not_held"))

    yield "was given twice", damaged(repeat)
    yield "fall from", damaged(swap)
    yield "had two holders", damaged(early)
    yield "was lost", damaged(lose)


def judge(history: History) -> None:
    """The history is right, and the judge would see it if it were not."""
    problems = list(history.problems())
    must(not problems, "\n  ".join(problems[:20]))
    for wanted, damaged in damages(history):
        found = list(damaged.problems())
        must(any(wanted in problem for problem in found), f"a history in which a grant {wanted} passes: {found}")


def self_test() -> None:
    history = History()
    for turn in range(60):
        at = float(turn)
        history.grants.append(Grant(f"lock-{turn % 3}", turn + 1, at, at + 0.1, at + 2.9))
    judge(history)
