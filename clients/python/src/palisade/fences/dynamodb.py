"""DynamoDB, with your own boto3 client: an item that carries its own fence, in the attribute `palisade_fence`.

    seat = Item(boto3.client("dynamodb"), "seats", {"seat": {"S": "12A"}})
    seat.claim(grant)                                           # first: raises the fence
    booked = seat.read(grant)                                   # then read, consistently
    seat.write(grant, {"passenger": {"S": "Alice"}})            # Stale: nothing was written

Each write puts the whole item under the condition that its fence is the one that was read: check and effect are one
request. The format is that of the Rust fence: holders in both languages share an item. Reads that feed writes go
through `read`: DynamoDB's default, an index, a cache or another region may show a state from before a claim. An emptied
item stays, with its fence, and must have no time to live."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Union

from ..errors import Unavailable, UnknownOutcome
from ._reported import reported
from ._stamped import (
    ATTEMPTS,
    IDS,
    SAME_WRITE_TRIES,
    error_code,
    fence_object,
    fresh_id,
    read_fence,
    to_json,
    took_effect,
)
from .errors import FenceLost, Rejected
from .rule import CLAIM, CLAIM_RULE, READ, Operation, Pass, Record, Rule, decide, pass_of

Holder = Union[int, Pass, Any]
#: As boto3's client has them: {"passenger": {"S": "Alice"}}.
Attributes = dict[str, Any]
#: Gets the attributes as they are, and returns those that are to be; None: there is nothing to change.
Change = Callable[[Attributes], Optional[Attributes]]

FENCE = "palisade_fence"
_SEEN = ":palisade_seen"
_REFUSED = frozenset({"ConditionalCheckFailedException", "TransactionConflictException"})


@dataclass(frozen=True)
class _Seen:
    """An item as it was read. `text` is its fence as it is stored."""

    exists: bool
    text: Optional[str]
    record: Record
    ids: tuple[str, ...]
    attributes: Attributes


class Item:
    """One item. Methods raise `Stale` if a newer holder has claimed it. Reads and writes do not include the attributes
    of the key."""

    def __init__(self, client: Any, table: str, key: Attributes, rule: Rule = CLAIM_RULE) -> None:
        if not 1 <= len(key) <= 2:
            raise ValueError(f"the key has {len(key)} attributes; 1 to 2 are allowed")
        if FENCE in key:
            # A put would write the fence into the key, and so another item than the one that was read.
            raise ValueError(
                f"the table's key is called {FENCE}, as the attribute of the fence: use a table with another key"
            )
        self._client, self._table, self._key, self._rule = client, table, dict(key), rule
        values = ",".join(f"{name}={next(iter(value.values()))}" for name, value in sorted(key.items()))
        self.name = f"{table}/{values}"

    def claim(self, holder: Holder) -> None:
        """Raises the fence, before the first read."""
        self._carry_out(pass_of(holder), CLAIM, None)

    def read(self, holder: Holder) -> Attributes:
        """Reads in order to write; empty if there is nothing."""
        return self._carry_out(pass_of(holder), READ, None)[1]

    def write(
        self,
        holder: Optional[Holder],
        change: Union[Mapping[str, Any], Change],
        sequence: Optional[int] = None,
        digest: Optional[int] = None,
    ) -> bool:
        """Replaces the attributes by others, or by the result of a function of them. The function may be called again
        if other writers were faster; if it returns None nothing is written, and `Rejected` has the code `missing`. An
        attribute `palisade_fence`, or one of the key with another value, is a ValueError. True: this numbered write
        was carried out before. `digest`, any 64 bits, is a checksum of a numbered write's content. A holder of None
        has no token."""
        following: Change = change if callable(change) else lambda before: dict(change)
        presented = None if holder is None else pass_of(holder)
        return self._carry_out(presented, Operation("write", sequence, digest), following)[0]

    def _carry_out(
        self, presented: Optional[Pass], operation: Operation, change: Optional[Change]
    ) -> tuple[bool, Attributes]:
        """Decides on the item that was read and puts it, again if another writer was faster."""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(random.random() * (1 << min(attempt, 7)) / 1_000)
            seen = self._load()
            if seen.exists and seen.text is None:
                raise FenceLost(f"{self.name} has data and no fence: an operator must re-arm it with a floor")
            with reported(presented, self.name, operation.kind):
                admitted = decide(seen.record, presented, operation, self._rule)
            if admitted.repeat:
                return True, seen.attributes
            if change is None and admitted.record == seen.record:
                return False, seen.attributes
            following = dict(seen.attributes) if change is None else change(dict(seen.attributes))
            if following is None:
                raise Rejected("missing")
            if FENCE in following:
                raise ValueError(f"{FENCE} is the attribute of the fence: give your attribute another name")
            for name in self._key:
                if following.get(name, self._key[name]) != self._key[name]:
                    raise ValueError(f"{name} belongs to the key of {self.name}: leave it out, or use the other Item")
            if self._put(seen, admitted.record, following):
                return False, seen.attributes
        raise Unavailable("unavailable", f"{self.name}: other writers were faster {ATTEMPTS} times")

    def _load(self) -> _Seen:
        item = self._client.get_item(TableName=self._table, Key=self._key, ConsistentRead=True).get("Item")
        if not item:
            return _Seen(False, None, Record(), (), {})
        fence = item.get(FENCE)
        attributes = {name: value for name, value in item.items() if name != FENCE and name not in self._key}
        if fence is None:
            return _Seen(True, None, Record(), (), attributes)
        try:
            text = fence["S"]
            return _Seen(True, text, *read_fence(json.loads(text)), attributes)
        except (ValueError, TypeError, KeyError) as error:
            raise FenceLost(f"{self.name}: its {FENCE} is damaged: {error}") from None

    def _put(self, seen: _Seen, record: Record, attributes: Attributes) -> bool:
        """Whether the put took effect. While the fence that was read is still there the put may still arrive, so only
        repeating the same put settles it; afterwards the ids tell."""
        id = fresh_id()
        fence = to_json(fence_object(record, (*seen.ids, id)[-IDS:]))
        item = {**attributes, **self._key, FENCE: {"S": fence}}
        if seen.text is None:
            condition: dict[str, Any] = {
                "ConditionExpression": "attribute_not_exists(#palisade_key)",
                "ExpressionAttributeNames": {"#palisade_key": min(self._key)},
            }
        else:
            condition = {
                "ConditionExpression": f"{FENCE} = {_SEEN}",
                "ExpressionAttributeValues": {_SEEN: {"S": seen.text}},
            }
        failed: Optional[Exception] = None
        for _ in range(SAME_WRITE_TRIES + 1):
            try:
                self._client.put_item(TableName=self._table, Item=item, **condition)
                return True
            except Exception as error:
                failed = error
            now = self._load()
            if now.text != seen.text or now.exists != seen.exists:
                return took_effect(now.ids, id, seen.ids)
            if failed is not None and error_code(failed) not in _REFUSED and not _may_pass(failed):
                raise failed
        raise UnknownOutcome("unknown_outcome", f"{self.name}: {failed}") from failed


def _may_pass(error: Exception) -> bool:
    """No answer, or one of a server that may have done it."""
    response = getattr(error, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500) if isinstance(response, dict) else 500
    return int(status) >= 500
