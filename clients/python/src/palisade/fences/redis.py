"""Redis: one script checks and writes, in one round trip on your own connection (redis-py).

    orders = Resource("orders", guarding=["{orders}:total"])
    probe(connection)                       # once for each server: could it evict fences?
    orders.claim(connection, grant)         # first: raises the fence
    total = orders.get(connection, grant, "{orders}:total")
    orders.set(connection, grant, "{orders}:total", int(total or 0) + 5)

The name of the resource is the hash tag of its keys. The script and its stored data are those of the Rust fence, so
holders in both languages share one fence. Redis cannot stop code that writes with a plain SET, and answers before data
is on disk: see docs/use/fences.md for what a crash or a failover can lose."""

from __future__ import annotations

import hashlib
import importlib.resources
import zlib
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence, Union

from redis.exceptions import NoScriptError

from ..errors import Invalid, OperatorNeeded, UnknownOutcome
from ._reported import reported
from .errors import FenceLost, Rejected, Stale
from .rule import CLAIM_RULE, Operation, Pass, Rule, pass_of

Holder = Union[int, Pass, Any]
Value = Union[str, bytes, int, float]

MARKS = "palisade:fence:"
#: The largest number of arguments to one command.
MAX_ARGUMENTS = 4_000
_FENCE = importlib.resources.files(__package__).joinpath("fence.lua").read_text("utf-8")


class Script:
    """Your own Lua script, which runs after the check in the same step. It is written as for EVAL, with its own KEYS
    and ARGV."""

    def __init__(self, lua: str) -> None:
        if lua.startswith("#!"):
            raise ValueError("a guarded script must not begin with #!: it runs inside the fence's script")
        self._set(f"local function effect(KEYS, ARGV)\n{lua}\nend\n{_FENCE}")

    def _set(self, text: str) -> None:
        self.text = text
        self.hash = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class _Plain(Script):
    def __init__(self) -> None:
        self._set(_FENCE)


_PLAIN = _Plain()


@dataclass(frozen=True)
class Done:
    """`repeat`: this numbered write was carried out before; `value` is then its first result."""

    value: Any
    repeat: bool


@dataclass(frozen=True)
class _Call:
    script: Script
    kind: str
    keys: list[str]
    arguments: list[bytes]
    presented: Optional[Pass]
    operation: str


class _Resource:
    """Several keys under one fence. `guarding`: keys that are looked at if there is no fence; if one of them has data,
    the fence was lost, and nothing is admitted."""

    def __init__(self, name: str, guarding: Sequence[str] = (), rule: Rule = CLAIM_RULE) -> None:
        if not 1 <= len(name) <= 255 or not all(" " <= letter <= "~" for letter in name) or set(name) & set("{}"):
            raise ValueError(f"{name!r} is not the name of a resource: 1 to 255 printable ASCII characters, no braces")
        self.name, self.rule = name, rule
        self.mark = f"{MARKS}{{{name}}}"
        self._check_keys(guarding)
        self._guarding = list(guarding)

    def _check_keys(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key.startswith(MARKS):
                raise ValueError(f"key {key!r} belongs to a fence: keys that begin with {MARKS} are not data")
            # Another resource may have the same slot of a cluster: only the tag says whose the key is.
            if _tag(key) != self.name:
                raise ValueError(
                    f"key {key!r} does not have the tag of resource {self.name}: call it {{{self.name}}}:…"
                )

    def _call(
        self,
        holder: Optional[Holder],
        operation: Operation,
        kind: str,
        keys: Sequence[str] = (),
        arguments: Sequence[Value] = (),
        script: Script = _PLAIN,
    ) -> _Call:
        self._check_keys(keys)
        given = [_encoded(argument) for argument in arguments]
        if len(given) > MAX_ARGUMENTS:
            raise ValueError(f"{len(given)} arguments in one command; 0 to {MAX_ARGUMENTS} are allowed")
        presented = None if holder is None else pass_of(holder)
        number = "" if operation.sequence is None else str(operation.sequence)
        asked = [
            "strict" if self.rule.strict else "claim",
            "" if self.rule.max_jump is None else str(self.rule.max_jump),
            operation.kind if presented else "tokenless",
            str(presented.token) if presented else "",
            (presented and presented.authority) or "",
            (presented and presented.lock) or "",
            number,
            str(_digest(script, keys, given)) if number else "",
            kind,
        ]
        count = [str(len(keys)).encode()] if kind == "script" else []
        all_keys = [self.mark, *keys, *self._guarding]
        return _Call(
            script, kind, all_keys, [word.encode() for word in asked] + count + given, presented, operation.kind
        )

    def _answer(self, call: _Call, reply: Any) -> Done:
        words = [_word(part) for part in reply]
        how, what, bound = [*words, "", "", ""][:3]
        if how in ("admit", "repeat"):
            return Done(reply[2] if len(reply) > 2 else None, how == "repeat")
        if how == "reject":
            token = call.presented.token if call.presented else None
            with reported(call.presented, self.name, call.operation):
                raise _rejected(what, bound, [*words, "", "", "", ""][3], token)
        if how == "failed":
            said = "the script failed; its earlier writes stay" if call.kind == "script" else "nothing was written"
            raise Invalid("invalid", f"{self.name}: {said}: {what}")
        if how == "lost":
            raise FenceLost(f"{self.name}: there is data without its fence; an operator must re-arm it with a floor")
        if how == "unarmed":
            raise Rejected("tokenless")
        if how == "corrupt":
            raise FenceLost(f"{self.name}: {what!r} is not the state of a fence")
        raise UnknownOutcome("unknown_outcome", f"{self.name}: the script never answers {reply!r}")


class Resource(_Resource):
    """See `_Resource`; `connection` is a `redis.Redis`. Every method raises `Stale` if a newer holder has claimed."""

    def claim(self, connection: Any, holder: Holder) -> None:
        """Raises the fence, before the first read."""
        self._send(connection, self._call(holder, Operation("claim"), "none"))

    def get(self, connection: Any, holder: Holder, key: str) -> Any:
        """Reads in order to write."""
        return self._send(connection, self._call(holder, Operation("read"), "command", [key], ["GET"])).value

    def hget(self, connection: Any, holder: Holder, key: str, field: str) -> Any:
        call = self._call(holder, Operation("read"), "command", [key], ["HGET", field])
        return self._send(connection, call).value

    def set(
        self, connection: Any, holder: Optional[Holder], key: str, value: Value, sequence: Optional[int] = None
    ) -> Done:
        """With a `sequence` number it is safe to repeat. A holder of None is code without a token: refused."""
        call = self._call(holder, Operation("write", sequence), "command", [key], ["SET", value])
        return self._send(connection, call)

    def hset(
        self,
        connection: Any,
        holder: Optional[Holder],
        key: str,
        fields: Mapping[str, Value],
        sequence: Optional[int] = None,
    ) -> Done:
        arguments = ["HSET", *(part for pair in fields.items() for part in pair)]
        return self._send(connection, self._call(holder, Operation("write", sequence), "command", [key], arguments))

    def append(
        self, connection: Any, holder: Optional[Holder], key: str, value: Value, sequence: Optional[int] = None
    ) -> Done:
        call = self._call(holder, Operation("write", sequence), "command", [key], ["APPEND", value])
        return self._send(connection, call)

    def delete(self, connection: Any, holder: Optional[Holder], key: str, sequence: Optional[int] = None) -> Done:
        """Raises `Rejected` with the code `missing` if there is nothing to delete."""
        return self._send(connection, self._call(holder, Operation("write", sequence), "deleting", [key], ["DEL"]))

    def run(
        self,
        connection: Any,
        holder: Optional[Holder],
        script: Script,
        keys: Sequence[str] = (),
        arguments: Sequence[Value] = (),
        sequence: Optional[int] = None,
    ) -> Done:
        """Runs your script. The fence is raised before it runs, and Redis rolls nothing back if it fails."""
        call = self._call(holder, Operation("write", sequence), "script", keys, arguments, script)
        return self._send(connection, call)

    def _send(self, connection: Any, call: _Call) -> Done:
        keys_and_arguments = [*call.keys, *call.arguments]
        connection = _checked(connection, is_async=False)
        try:
            reply = connection.evalsha(call.script.hash, len(call.keys), *keys_and_arguments)
        except NoScriptError:
            reply = connection.eval(call.script.text, len(call.keys), *keys_and_arguments)
        return self._answer(call, reply)


class AsyncResource(_Resource):
    """As `Resource`, with a `redis.asyncio.Redis`."""

    async def claim(self, connection: Any, holder: Holder) -> None:
        await self._send(connection, self._call(holder, Operation("claim"), "none"))

    async def get(self, connection: Any, holder: Holder, key: str) -> Any:
        return (await self._send(connection, self._call(holder, Operation("read"), "command", [key], ["GET"]))).value

    async def set(
        self, connection: Any, holder: Optional[Holder], key: str, value: Value, sequence: Optional[int] = None
    ) -> Done:
        call = self._call(holder, Operation("write", sequence), "command", [key], ["SET", value])
        return await self._send(connection, call)

    async def run(
        self,
        connection: Any,
        holder: Optional[Holder],
        script: Script,
        keys: Sequence[str] = (),
        arguments: Sequence[Value] = (),
        sequence: Optional[int] = None,
    ) -> Done:
        call = self._call(holder, Operation("write", sequence), "script", keys, arguments, script)
        return await self._send(connection, call)

    async def _send(self, connection: Any, call: _Call) -> Done:
        keys_and_arguments = [*call.keys, *call.arguments]
        connection = _checked(connection, is_async=True)
        try:
            reply = await connection.evalsha(call.script.hash, len(call.keys), *keys_and_arguments)
        except NoScriptError:
            reply = await connection.eval(call.script.text, len(call.keys), *keys_and_arguments)
        return self._answer(call, reply)


def probe(connection: Any) -> None:
    """Refuses a server that may evict fences, or that is a replica."""
    connection = _checked(connection, is_async=False)
    policy = str(connection.info("memory").get("maxmemory_policy", "unknown"))
    if policy != "noeviction" and not policy.startswith("volatile-"):
        message = f"maxmemory-policy is {policy}: it evicts keys that never expire, fences among them; set noeviction"
        raise OperatorNeeded("refused", message)
    if connection.info("replication")["role"] != "master":
        raise OperatorNeeded("refused", "this server is a replica; a fence needs the primary")


def _rejected(code: str, what: str, bound: str, token: Optional[int]) -> Rejected:
    if code == "stale":
        return Stale(token, int(what))
    number = int(what) if what.isdigit() else None
    if code in ("sequence_stale", "sequence_reused"):
        return Rejected(code, last=number)
    if code == "wrong_authority":
        return Rejected(code, authority=what)
    if code == "wrong_lock":
        return Rejected(code, lock=what)
    return Rejected(code, highest=number, bound=int(bound) if bound.isdigit() else None)


def _word(part: Any) -> str:
    if isinstance(part, bytes):
        return part.decode("utf-8", "replace")
    return part if isinstance(part, str) else ""


def _encoded(value: Value) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _digest(script: Script, keys: Sequence[str], arguments: Sequence[bytes]) -> int:
    """A checksum of the whole content, each part with its length; the same in Rust."""
    checksum = length = 0
    for part in [script.hash.encode(), *(key.encode() for key in keys), *arguments]:
        checksum = zlib.crc32(part, zlib.crc32(len(part).to_bytes(8, "little"), checksum))
        length += len(part)
    return checksum << 32 | length & 0xFFFFFFFF


def _tag(key: str) -> Optional[str]:
    """The text in the first braces, from which a cluster computes the slot. None without one."""
    _, _, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if closed and tag else None


def _checked(connection: Any, is_async: bool) -> Any:
    """A client whose answers are those of the commands, and come when they are needed."""
    kinds = type(connection).__mro__
    is_pipeline = any(kind.__name__.endswith("Pipeline") for kind in kinds)
    found_async = any(kind.__module__.startswith("redis.asyncio") for kind in kinds)
    if is_pipeline or not hasattr(connection, "evalsha") or found_async != is_async:
        takes = "AsyncResource takes a redis.asyncio client" if is_async else "Resource takes a redis client"
        advice = ""
        if is_pipeline:
            advice = "; a pipeline answers later: for several commands in one step, run a Script"
        elif found_async:
            advice = "; for redis.asyncio there is AsyncResource"
        name = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise TypeError(f"{takes}, and a {name} was given{advice}")
    return connection
