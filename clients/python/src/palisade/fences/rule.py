"""The decision of every fence, without I/O: the stored record, the presented operation, and the answer.

The repository's `vectors/fence.json` has the same decision as data; a test compares the two. Carry an admitted
operation out and store the next record in one atomic, durable step, and only then answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Optional, TypeVar, Union

from .errors import Rejected, Stale

#: The default bound on how far a token may be above the highest one: the most by which a restore raises the token
#: counter until 2032.
MAX_JUMP = 2**46
MAX_TOKEN = 2**53 - 1


@dataclass(frozen=True)
class Pass:
    """A holder's proof: its token and, where they are known, the authority and the lock of that token."""

    token: int
    authority: Optional[str] = None
    lock: Optional[str] = None
    #: The grant that it is of, if that is known: it is told of a refusal. It is no field, because it is no proof.
    _grant: ClassVar[Optional[Any]] = None

    def __post_init__(self) -> None:
        if type(self.token) is not int or not 1 <= self.token <= MAX_TOKEN:
            raise ValueError(f"{self.token!r} is not a fencing token: 1 to {MAX_TOKEN} are allowed")


@dataclass(frozen=True)
class Record:
    """The record that a resource stores. The default is a resource that never saw a token."""

    authority: Optional[str] = None
    lock: Optional[str] = None
    token: Optional[int] = None
    #: Whether something was written under that token, and the highest number of such a write.
    written: bool = False
    sequence: Optional[int] = None
    #: Of the write with that number.
    digest: Optional[int] = None
    result: Optional[bytes] = None


@dataclass(frozen=True)
class Operation:
    """`claim`, `read` or `write`; a write may have a number and a digest of its content."""

    kind: str
    sequence: Optional[int] = None
    digest: Optional[int] = None

    def __post_init__(self) -> None:
        if self.sequence is not None and not 0 <= self.sequence <= MAX_TOKEN:
            raise ValueError(f"the sequence number {self.sequence} is out of range: 0 to {MAX_TOKEN} are allowed")


CLAIM, READ, WRITE = Operation("claim"), Operation("read"), Operation("write")


@dataclass(frozen=True)
class Rule:
    """One rule for the whole life of a resource. `strict`: one write for each grant, for records that are published
    once. `max_jump`: how far one token is believed; None believes any."""

    strict: bool = False
    max_jump: Optional[int] = MAX_JUMP


CLAIM_RULE = Rule()


@dataclass(frozen=True)
class Admitted:
    """`record` is the record that the resource stores from now on. `repeat`: the write was carried out before,
    nothing changes, and the answer is the recorded result."""

    record: Record
    repeat: bool = False


def decide(record: Record, presented: Optional[Pass], operation: Operation, rule: Rule = CLAIM_RULE) -> Admitted:
    """Raises `Rejected`, after which nothing may change. `presented` is None for a write by code without a token."""
    if presented is None:
        if record.token is not None:
            raise Rejected("tokenless", highest=record.token)
        return Admitted(record)
    _own(record, presented)
    token, highest = presented.token, record.token or 0
    if token < highest:
        raise Stale(token, highest)
    if token == highest:
        if operation.kind == "write" and record.written and _is_repeat(record, operation, rule):
            return Admitted(record, repeat=True)
        return Admitted(_then(_bound(record, presented), operation))
    if rule.max_jump is not None and token - highest > rule.max_jump:
        raise Rejected("jump", highest=record.token, bound=rule.max_jump)
    raised = Record(token=token, authority=record.authority, lock=record.lock)
    return Admitted(_then(_bound(raised, presented), operation))


def _own(record: Record, presented: Pass) -> None:
    """A token of another authority or lock is no number to compare."""
    if record.authority is not None and presented.authority != record.authority:
        raise Rejected("wrong_authority", authority=record.authority)
    if record.lock is not None and presented.lock != record.lock:
        raise Rejected("wrong_lock", lock=record.lock)


def _is_repeat(record: Record, operation: Operation, rule: Rule) -> bool:
    """The same holder writes again: only its own earlier writes count."""
    number, last = operation.sequence, record.sequence
    if number is not None and number == last:
        if operation.digest != record.digest:
            raise Rejected("sequence_reused", last=last)
        return True
    if rule.strict:
        raise Rejected("already_written")
    if number is not None and last is not None and number < last:
        raise Rejected("sequence_stale", last=last)
    return False


def _bound(record: Record, presented: Pass) -> Record:
    return replace(record, authority=record.authority or presented.authority, lock=record.lock or presented.lock)


def _then(record: Record, operation: Operation) -> Record:
    if operation.kind != "write":
        return record
    if operation.sequence is None:
        return replace(record, written=True)
    return replace(record, written=True, sequence=operation.sequence, digest=operation.digest, result=None)


Presented = TypeVar("Presented", bound=Pass)


def granted_by(presented: Presented, grant: Optional[Any]) -> Presented:
    object.__setattr__(presented, "_grant", grant)
    return presented


def pass_of(holder: Union[int, Pass, Any]) -> Pass:
    """A fence accepts a grant, which has token, authority and lock, a `Pass`, or a bare token. If the holder has a
    method `check`, as a grant has, it is called first, so a holder that lost or released its lease sends nothing."""
    if isinstance(holder, int) and not isinstance(holder, bool):
        return Pass(holder)
    if isinstance(holder, bool) or not hasattr(holder, "token"):
        name, near = type(holder).__qualname__, ""
        if hasattr(holder, "acquire"):
            near = ": acquire the lock first"
        elif hasattr(holder, "__await__"):
            near = ": await it first"
        raise TypeError(f"a fence takes a grant, a Pass or a token, and not {name}{near}")
    check = getattr(holder, "check", None)
    if check is not None:
        check()
    # A grant of several locks has no one name.
    return granted_by(Pass(holder.token, holder.authority, holder.lock or None), getattr(holder, "_grant", None))
