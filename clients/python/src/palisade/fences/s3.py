"""S3-compatible object stores, with your own boto3 client.

    store = Store(boto3.client("s3"), "bucket", "fenced")    # tests that the store honours conditional puts
    orders = store.resource("orders")
    orders.claim(grant)                                      # first: raises the fence
    total = int(orders.read(grant, "/total") or 0)
    orders.put(grant, "/total", str(total + 1).encode())

A resource has one small object, `ROOT/resources/RESOURCE/fence.json`, the only one that is ever changed: it holds the
fence and names the immutable objects `data/TOKEN-ID` of each key. It is replaced by a conditional put, which is check
and effect in one step. The format is that of the Rust fence: holders in both languages share a resource. Do not put a
cache in front of the bucket, and re-arm the fence after an older manifest was restored."""

from __future__ import annotations

import json
import random
import time
import zlib
from dataclasses import dataclass, field, replace
from typing import Any, Optional, Union

from ..errors import Invalid, OperatorNeeded, Unavailable, UnknownOutcome
from ._reported import reported
from ._stamped import (
    ATTEMPTS,
    IDS,
    SAME_WRITE_TRIES,
    error_code,
    fence_object,
    fresh_id,
    object_with,
    read_fence,
    to_json,
    took_effect,
)
from .errors import FenceLost, Rejected
from .rule import CLAIM, CLAIM_RULE, READ, Operation, Pass, Record, Rule, decide, pass_of

Holder = Union[int, Pass, Any]

_MAX_PARTS = 1_000
_KINDS = {"put": 1, "append": 2, "delete": 3}
# The characters that the Rust fence's object_store library encodes; it keeps the rest of a name.
_ENCODED = frozenset('/\\{^}%`]">[~<#|*?')
_CHANGED, _MISSING = frozenset({"PreconditionFailed", "412"}), frozenset({"NoSuchKey", "404", "NotFound"})


@dataclass(frozen=True)
class _Manifest:
    record: Record = field(default_factory=Record)
    #: Of the last puts of this manifest, newest last: a writer that finds its own knows that its put took effect.
    ids: tuple[str, ...] = ()
    keys: dict[str, list[str]] = field(default_factory=dict)

    def encode(self) -> bytes:
        keys = {name: self.keys[name] for name in sorted(self.keys, key=str.encode)}
        return to_json({"fence": fence_object(self.record, self.ids), "keys": keys}).encode()

    @staticmethod
    def decode(content: bytes) -> _Manifest:
        """Raises ValueError for anything that no fence writes."""
        whole = object_with(json.loads(content), {"fence", "keys"})
        record, ids = read_fence(whole["fence"])
        keys = {str(name): [str(part) for part in parts] for name, parts in whole["keys"].items()}
        return _Manifest(record, ids, keys)

    def took_effect(self, id: str, base: Optional[_Manifest]) -> bool:
        """Whether the put `id` on top of `base` is in this later state's history; raises if that is too short."""
        return took_effect(self.ids, id, base.ids if base else ())


class Store:
    """The fenced part of a bucket: everything below one root. `client` is a boto3 client for S3."""

    def __init__(self, client: Any, bucket: str, root: str, rule: Rule = CLAIM_RULE, probe: bool = True) -> None:
        self._client, self._bucket, self._root, self._rule = client, bucket, root.strip("/"), rule
        if probe:
            self._probe()

    def resource(self, name: str) -> Resource:
        """One resource; nothing is read or written yet."""
        if not 1 <= len(name) <= 255 or not all(" " <= letter <= "~" for letter in name):
            raise ValueError(f"{name!r} is not the name of a resource: 1 to 255 printable ASCII characters")
        return Resource(self, name, f"{self._root}/resources/{_part(name)}", self._rule)

    def _probe(self) -> None:
        """A store that ignores the condition of a put would make the fence useless."""
        at = f"{self._root}/probe/{fresh_id()}"
        try:
            first = self.put(at, b"1", {"IfNoneMatch": "*"})
            if first is None or self.put(at, b"2", {"IfNoneMatch": "*"}) is not None:
                raise OperatorNeeded("refused", "this store ignores the condition of a put: create-if-absent")
            second = self.put(at, b"3", {"IfMatch": first})
            if second is None or self.put(at, b"4", {"IfMatch": first}) is not None:
                raise OperatorNeeded("refused", "this store ignores the condition of a put: replace-this-version")
        finally:
            self._client.delete_object(Bucket=self._bucket, Key=at)

    def put(self, key: str, content: bytes, condition: dict[str, str]) -> Optional[str]:
        """The new version's ETag, or None if the condition was false."""
        try:
            put = self._client.put_object(Bucket=self._bucket, Key=key, Body=content, **condition)
        except Exception as error:
            if error_code(error) in _CHANGED:
                return None
            raise
        return str(put["ETag"])

    def get(self, key: str) -> Optional[tuple[bytes, str]]:
        try:
            got = self._client.get_object(Bucket=self._bucket, Key=key)
        except Exception as error:
            if error_code(error) in _MISSING:
                return None
            raise
        return got["Body"].read(), str(got["ETag"])

    def is_empty(self, prefix: str) -> bool:
        listed = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, MaxKeys=1)
        return not listed.get("Contents")


class Resource:
    """Keys in the form of absolute paths, under one fence. Methods raise `Stale` if a newer holder has claimed."""

    def __init__(self, store: Store, name: str, folder: str, rule: Rule) -> None:
        self._store, self.name, self._folder, self._rule = store, name, folder, rule

    def claim(self, holder: Holder) -> None:
        """Raises the fence, before the first read."""
        self._carry_out(pass_of(holder), CLAIM, None, None)

    def read(self, holder: Holder, key: str) -> Optional[bytes]:
        """Reads in order to write; None if there is nothing."""
        _checked(key)
        return self._carry_out(pass_of(holder), READ, ("read", key), None)[1]

    def put(self, holder: Optional[Holder], key: str, content: bytes, sequence: Optional[int] = None) -> bool:
        """Replaces a key. True: this numbered write was carried out before. A holder of None has no token."""
        return self._write(holder, "put", key, content, sequence)

    def append(self, holder: Optional[Holder], key: str, content: bytes, sequence: Optional[int] = None) -> bool:
        """As `put`, at the end. A key takes 1,000 appends; then it must be put whole."""
        return self._write(holder, "append", key, content, sequence)

    def delete(self, holder: Optional[Holder], key: str, sequence: Optional[int] = None) -> bool:
        """As `put`; raises `Rejected` with the code `missing` if there is nothing to delete."""
        return self._write(holder, "delete", key, b"", sequence)

    def _write(self, holder: Optional[Holder], kind: str, key: str, content: bytes, sequence: Optional[int]) -> bool:
        _checked(key)
        checksum = zlib.crc32(content, zlib.crc32(bytes([_KINDS[kind]]), zlib.crc32(key.encode())))
        digest = None if sequence is None else checksum << 32 | len(content) & 0xFFFFFFFF
        presented = None if holder is None else pass_of(holder)
        return self._carry_out(presented, Operation("write", sequence, digest), (kind, key), content)[0]

    def _carry_out(
        self,
        presented: Optional[Pass],
        operation: Operation,
        effect: Optional[tuple[str, str]],
        content: Optional[bytes],
    ) -> tuple[bool, Optional[bytes]]:
        """Decides on the manifest that was read and replaces it, again if another writer was faster."""
        uploaded: list[str] = []
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(random.random() * (1 << min(attempt, 7)) / 1_000)
            seen = self._load()
            if seen is None:
                self._first(presented)
                continue
            manifest = seen[0]
            with reported(presented, self.name, effect[0] if effect else operation.kind):
                admitted = decide(manifest.record, presented, operation, self._rule)
            if admitted.repeat:
                return True, None
            following = replace(manifest, record=admitted.record)
            if operation.kind == "write" and effect is not None and content is not None:
                following = self._place(following, presented, effect, content, uploaded)
            changed = operation.kind == "write" or admitted.record != manifest.record
            if changed and not self._replace(seen, following):
                continue
            if operation.kind != "read" or effect is None:
                return False, None
            found = self._fetch(manifest, effect[1])
            if found is not _AGAIN:
                return False, found
        raise Unavailable("unavailable", f"{self.name}: other writers were faster {ATTEMPTS} times")

    def _load(self) -> Optional[tuple[_Manifest, str]]:
        got = self._store.get(f"{self._folder}/fence.json")
        if got is None:
            return None
        try:
            return _Manifest.decode(got[0]), got[1]
        except (ValueError, TypeError) as error:
            raise FenceLost(f"{self.name}: its fence.json is damaged: {error}") from None

    def _first(self, presented: Optional[Pass]) -> None:
        """Creates the manifest, with the claim in it, before any data is uploaded."""
        if not self._store.is_empty(f"{self._folder}/data/"):
            if self._load() is None:
                raise FenceLost(f"{self.name} has data and no fence: an operator must re-arm it with a floor")
            return
        operation = CLAIM if presented else Operation("write")
        self._replace(None, _Manifest(decide(Record(), presented, operation, self._rule).record))

    def _replace(self, seen: Optional[tuple[_Manifest, str]], following: _Manifest) -> bool:
        """Whether the put took effect. While the base is still there the put may still arrive, so only repeating the
        same put settles it; once the base is gone, the ids of the new manifest tell."""
        id = fresh_id()
        content = replace(following, ids=(*following.ids, id)[-IDS:]).encode()
        condition = {"IfMatch": seen[1]} if seen else {"IfNoneMatch": "*"}
        base = seen[0] if seen else None
        for tries in range(SAME_WRITE_TRIES + 1):
            failed: Optional[Exception] = None
            try:
                if self._store.put(f"{self._folder}/fence.json", content, condition) is not None:
                    return True
            except Exception as error:
                failed = error
            now = self._load()
            if now is not None and (seen is None or now[1] != seen[1]):
                return now[0].took_effect(id, base)
            if tries == SAME_WRITE_TRIES and failed is not None:
                raise UnknownOutcome("unknown_outcome", f"{self.name}: {failed}") from failed
        raise UnknownOutcome("unknown_outcome", f"{self.name}: the store refuses a put on the version that it shows")

    def _place(
        self,
        manifest: _Manifest,
        presented: Optional[Pass],
        effect: tuple[str, str],
        content: bytes,
        uploaded: list[str],
    ) -> _Manifest:
        """Uploads the new data once, and names it in the manifest."""
        kind, key = effect
        keys = dict(manifest.keys)
        if kind == "delete":
            if keys.pop(key, None) is None:
                raise Rejected("missing")
            return replace(manifest, keys=keys)
        before = keys.get(key, []) if kind == "append" else []
        if len(before) >= _MAX_PARTS:
            raise Invalid("invalid", f"{key} has {len(before)} parts, which is the limit: put it whole")
        if not uploaded:
            part = f"{presented.token if presented else 0}-{fresh_id()}"
            self._store.put(f"{self._folder}/data/{part}", content, {})
            uploaded.append(part)
        return replace(manifest, keys={**keys, key: [*before, uploaded[0]]})

    def _fetch(self, manifest: _Manifest, key: str) -> Any:
        parts = manifest.keys.get(key)
        if parts is None:
            return None
        whole = []
        for part in parts:
            got = self._store.get(f"{self._folder}/data/{part}")
            if got is None:
                now = self._load()
                if now is not None and now[0].keys.get(key) == parts:
                    raise FenceLost(f"{self.name}: data of {key} is gone")
                return _AGAIN
            whole.append(got[0])
        return b"".join(whole)


_AGAIN = object()


def _checked(key: str) -> None:
    segments = key[1:].split("/")
    controls = any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in key)
    if not key.startswith("/") or controls or len(key.encode()) > 1_024 or any(s in ("", ".", "..") for s in segments):
        raise ValueError(f"{key!r} is not a key: an absolute path of at most 1024 bytes without empty segments")


def _part(name: str) -> str:
    if name in (".", ".."):
        return name.replace(".", "%2E")
    return "".join(f"%{ord(letter):02X}" if letter in _ENCODED else letter for letter in name)
