"""The table of rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional

from .trial import Trial

Check = Callable[[Trial], None]


@dataclass(frozen=True)
class Rule:
    id: str
    says: str
    check: Check
    # "http": it needs requests that the suite can read, or a scripted answer.
    wire: Optional[str] = None


RULES: list[Rule] = []


def rule(id: str, says: str, wire: Optional[str] = None) -> Callable[[Check], Check]:
    def enter(check: Check) -> Check:
        RULES.append(Rule(id, says, check, wire))
        return check

    return enter
