"""The files of a folder, on a local or shared POSIX file system.

    reports = Folder("/var/reports")
    reports.claim(grant)                                    # first: raises the fence
    text = reports.read(grant, "/report.csv")
    reports.append(grant, "/report.csv", b"2026-05,1204\\n", sequence=1)   # with a number it is safe to repeat

Beside the files the folder has `.palisade-lock` (flock), `.palisade-fence` (the state), and while a write is carried
out `.palisade-staged-N`. The format is that of the Rust fence: holders in both languages may share a folder. One rename
decides a write together with the fence; after a crash the next operation completes it. All calls block, for several
syncs. Code that writes a file without the fence is not stopped: let a separate user own the folder. A file with hard
links is put whole: an append would change the files of other folders."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Iterator, Optional, Union

from ..errors import Unavailable
from ._lock_holder import in_the_way
from ._reported import reported
from .errors import FenceLost, Rejected
from .rule import CLAIM, CLAIM_RULE, MAX_TOKEN, READ, Admitted, Operation, Pass, Record, Rule, decide, pass_of

Holder = Union[int, Pass, Any]

OWN = ".palisade-"
_LOCK, _STATE, _NEXT_STATE = ".palisade-lock", ".palisade-fence", ".palisade-fence-next"
_HEAD = "palisade-fence 1"
_KINDS = {"put": 1, "append": 2, "delete": 3}


@dataclass(frozen=True)
class _State:
    """The content of `.palisade-fence`."""

    #: Counts the writes of this file; part of the name of its staged file.
    revision: int = 0
    record: Record = field(default_factory=Record)
    #: The write that is decided: "put NAME", "append OFFSET NAME" or "delete NAME".
    pending: str = ""
    #: The file that was written last, with its length then: "LENGTH NAME".
    last: str = ""

    def encode(self) -> bytes:
        record = self.record
        written = "" if not record.written else "yes" if record.sequence is None else str(record.sequence)
        lines = [
            _HEAD,
            f"revision {self.revision}",
            f"token {_or_nothing(record.token)}",
            f"written {written}",
            f"digest {_or_nothing(record.digest)}",
            f"authority {_or_nothing(record.authority)}",
            f"lock {_or_nothing(record.lock)}",
            f"pending {self.pending}",
            f"length {self.last}",
        ]
        text = "\n".join(lines) + "\n"
        return f"{text}sum {zlib.crc32(text.encode()):08x}\n".encode()

    @staticmethod
    def decode(content: bytes) -> _State:
        """Raises ValueError for anything that `encode` does not write."""
        text = content.decode("utf-8")
        at = text.rindex("sum ")
        body, checksum = text[:at], text[at:]
        if checksum != f"sum {zlib.crc32(body.encode()):08x}\n" or not body.endswith("\n"):
            raise ValueError("the sum is wrong")
        lines = body[:-1].split("\n")
        names = ["revision", "token", "written", "digest", "authority", "lock", "pending", "length"]
        if lines[0] != _HEAD or len(lines) != len(names) + 1:
            raise ValueError(f"it is not a state of the form {_HEAD!r}")
        value: dict[str, str] = {}
        for name, line in zip(names, lines[1:], strict=True):
            found, blank, rest = line.partition(" ")
            if found != name or not blank:
                raise ValueError(f"no line {name!r} where it belongs")
            value[name] = rest
        written = value["written"]
        record = Record(
            authority=value["authority"] or None,
            lock=value["lock"] or None,
            token=_number(value["token"], 1),
            written=bool(written),
            sequence=None if written == "yes" else _number(written, 0),
            digest=_number(value["digest"], 0, 2**64 - 1),
        )
        return _State(_number(value["revision"], 0) or 0, record, value["pending"], value["length"])


def _or_nothing(value: Union[int, str, None]) -> str:
    return "" if value is None else str(value)


def _number(text: str, low: int, high: int = MAX_TOKEN) -> Optional[int]:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or not low <= int(text) <= high:
        raise ValueError(f"{text!r} is no number of {low} to {high}")
    return int(text)


class Folder:
    """A folder whose files are written under a fence. Any number of threads and processes may open it.

    `patience`: how long to wait for another process that is inside the fence, in seconds."""

    def __init__(self, path: Union[str, Path], rule: Rule = CLAIM_RULE, patience: float = 10.0) -> None:
        self._name, self._rule, self._patience = str(path), rule, patience
        # Held open: renaming the folder, or a symbolic link on the way, does not redirect it.
        self._folder = os.open(path, os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._folder)

    def claim(self, holder: Holder) -> None:
        """Raises the fence, before the first read: durable when this returns."""
        with self._enter() as (disk, state):
            self._raise(disk, state, self._decide(state.record, pass_of(holder), CLAIM, "claim").record)

    def read(self, holder: Holder, key: str) -> Optional[bytes]:
        """Reads a file in order to write; None if there is none. `key` is a slash and the file's name."""
        name = _file(key)
        with self._enter() as (disk, state):
            self._raise(disk, state, self._decide(state.record, pass_of(holder), READ, "read").record)
            return disk.read(name)

    def put(self, holder: Optional[Holder], key: str, content: bytes, sequence: Optional[int] = None) -> bool:
        """Replaces a file. Durable when this returns. True: this numbered write was carried out before. A holder of
        None is code without a token: refused once the folder is fenced."""
        return self._write(holder, key, "put", content, sequence)

    def append(self, holder: Optional[Holder], key: str, content: bytes, sequence: Optional[int] = None) -> bool:
        """As `put`, at the end of the file."""
        return self._write(holder, key, "append", content, sequence)

    def delete(self, holder: Optional[Holder], key: str, sequence: Optional[int] = None) -> bool:
        """As `put`; raises `Rejected` with the code `missing` if there is nothing to delete."""
        return self._write(holder, key, "delete", b"", sequence)

    def observe(self, key: str) -> Optional[bytes]:
        """A plain read for observers, which never waits. It may see part of an append that is in progress."""
        return _Disk(self._folder).read(_file(key))

    def _write(self, holder: Optional[Holder], key: str, kind: str, content: bytes, sequence: Optional[int]) -> bool:
        name = _file(key)
        digest = None if sequence is None else _digest(key, kind, content)
        presented = None if holder is None else pass_of(holder)
        with self._enter() as (disk, state):
            admitted = self._decide(state.record, presented, Operation("write", sequence, digest), kind)
            if not admitted.repeat:
                _carry_through(disk, replace(state, record=admitted.record), name, kind, content)
            return admitted.repeat

    def _decide(self, record: Record, presented: Optional[Pass], operation: Operation, kind: str) -> Admitted:
        with reported(presented, self._name, kind):
            return decide(record, presented, operation, self._rule)

    @contextlib.contextmanager
    def _enter(self) -> Iterator[tuple[_Disk, _State]]:
        """Takes the lock, completes a write that a crash interrupted, and checks that the folder is as it was left."""
        disk = _Disk(self._folder)
        lock = disk.lock(self._name, self._patience)
        try:
            state = self._load(disk)
            _finish(disk, state)
            self._check_unchanged(disk, state)
            yield disk, state
        finally:
            os.close(lock)

    def _load(self, disk: _Disk) -> _State:
        content = disk.read(_STATE)
        if content is None:
            if any(not name.startswith(OWN) for name in os.listdir(self._folder)):
                raise FenceLost(f"{self._name} has files and no fence: an operator must re-arm it with a floor")
            return _State()
        try:
            return _State.decode(content)
        except ValueError as error:
            raise FenceLost(f"{self._name}/{_STATE} is damaged: {error}") from None

    def _check_unchanged(self, disk: _Disk, state: _State) -> None:
        if not state.last:
            return
        length, _, name = state.last.partition(" ")
        found = disk.length(name)
        if found != int(length):
            is_now = "is missing" if found is None else f"has {found} bytes"
            message = f"{self._name}: {name} {is_now}, and the fence left it with {length}"
            raise FenceLost(f"{message}: something wrote it without the fence; an operator must look and re-arm it")

    def _raise(self, disk: _Disk, state: _State, record: Record) -> None:
        if record != state.record:
            _replace(disk, replace(state, record=record, pending=""))


def _carry_through(disk: _Disk, state: _State, name: str, kind: str, content: bytes) -> None:
    """Stages the write, decides it together with the fence by one rename, and carries it out."""
    before = disk.length(name)
    if kind == "delete" and before is None:
        raise Rejected("missing")
    if kind == "append" and before is not None and disk.has_other_names(name):
        problem = "has other names (hard links), and an append would change those files too: put it whole"
        raise ValueError(f"{name!r} {problem}")
    offset = (before or 0) if kind == "append" else 0
    stage = f"{OWN}staged-{state.revision + 1}"
    try:
        disk.write(stage, content, like=name)
        disk.sync_names()
    except OSError:
        # Nothing is decided yet.
        disk.remove(stage)
        raise
    pending = f"append {offset} {name}" if kind == "append" else f"{kind} {name}"
    last = "" if kind == "delete" else f"{offset + len(content)} {name}"
    _finish(disk, _replace(disk, replace(state, pending=pending, last=last)))


def _replace(disk: _Disk, state: _State) -> _State:
    """The step that decides."""
    state = replace(state, revision=state.revision + 1)
    disk.write(_NEXT_STATE, state.encode())
    disk.rename(_NEXT_STATE, _STATE)
    disk.sync_names()
    return state


def _finish(disk: _Disk, state: _State) -> None:
    """Carries out the decided and staged write, and removes a staged file that was never decided. Carrying a write out
    twice does no harm, and its staged file is removed last."""
    stage = f"{OWN}staged-{state.revision}"
    if state.pending and disk.length(stage) is not None:
        kind, _, rest = state.pending.partition(" ")
        if kind == "put":
            disk.rename(stage, rest)
            disk.sync_names()
        else:
            if kind == "append":
                offset, _, name = rest.partition(" ")
                disk.write_at(name, disk.read(stage) or b"", int(offset))
            else:
                disk.remove(rest)
            disk.sync_names()
            disk.remove(stage)
    disk.remove(f"{OWN}staged-{state.revision + 1}")


class _Disk:
    """Calls to the file system, relative to one open folder."""

    _FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

    def __init__(self, folder: int) -> None:
        self._folder = folder

    def lock(self, folder: str, patience: float) -> int:
        """Takes the lock; it ends with its holder's process, so it never has to be broken."""
        file = os.open(_LOCK, self._FLAGS | os.O_CREAT | os.O_RDWR, 0o666, dir_fd=self._folder)
        end, pause = time.monotonic() + patience, 0.0001
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                if time.monotonic() >= end:
                    busy = in_the_way(os.fstat(file), folder)
                    os.close(file)
                    message = f"{folder}: another process was inside the fence for {patience:.0f} s; {busy}"
                    raise Unavailable("unavailable", message) from None
            # A lock of the file system can be waited for with a bound only by asking again.
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def length(self, name: str) -> Optional[int]:
        try:
            found = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{name!r} exists and is not a regular file")
        return found.st_size

    def has_other_names(self, name: str) -> bool:
        """Whether a file has hard links: it may be a file of another folder, with another fence, or a fence."""
        return os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_nlink > 1

    def read(self, name: str) -> Optional[bytes]:
        if self.length(name) is None:
            return None
        try:
            file = os.open(name, self._FLAGS | os.O_RDONLY, dir_fd=self._folder)
        except FileNotFoundError:
            return None
        with os.fdopen(file, "rb") as opened:
            return opened.read()

    def write(self, name: str, content: bytes, like: Optional[str] = None) -> None:
        """Writes a file from its start and syncs it, with the permissions of `like`, if that exists."""
        flags = self._FLAGS | os.O_CREAT | os.O_TRUNC | os.O_WRONLY
        file = os.open(name, flags, 0o666, dir_fd=self._folder)
        try:
            if like is not None and self.length(like) is not None:
                os.fchmod(file, stat.S_IMODE(os.stat(like, dir_fd=self._folder).st_mode))
            self._write_all(file, content, 0)
        finally:
            os.close(file)

    def write_at(self, name: str, content: bytes, offset: int) -> None:
        """Makes a file end with these bytes at this offset, whatever followed it before, and syncs it."""
        file = os.open(name, self._FLAGS | os.O_CREAT | os.O_WRONLY, 0o666, dir_fd=self._folder)
        try:
            os.ftruncate(file, offset)
            self._write_all(file, content, offset)
        finally:
            os.close(file)

    def _write_all(self, file: int, content: bytes, offset: int) -> None:
        left = memoryview(content)
        while left:
            written = os.pwrite(file, left, offset)
            left, offset = left[written:], offset + written
        os.fsync(file)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._folder)

    def sync_names(self) -> None:
        os.fsync(self._folder)


def _file(key: str) -> str:
    """The name behind the slash: every file of a fenced folder is directly in the folder."""
    name, size = key[1:], len(key.encode())
    controls = any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in name)
    if not key.startswith("/") or name in ("", ".", "..") or "/" in name or controls or size > 256:
        raise ValueError(f"{key!r} is not a slash and the name of a file in the folder, 1 to 255 bytes")
    if _folded(name).startswith(OWN):
        raise ValueError(f"{name!r} belongs to the fence: names that begin with {OWN} are not data")
    return name


def _folded(name: str) -> str:
    """A name as a file system may compare it that ignores case, and characters that are not seen."""
    return name.replace("ſ", "s").encode("ascii", "ignore").decode().lower()


def _digest(key: str, kind: str, content: bytes) -> int:
    """A checksum of a write's content and length; the same in Rust."""
    checksum = zlib.crc32(content, zlib.crc32(bytes([_KINDS[kind]]), zlib.crc32(key.encode())))
    return checksum << 32 | len(content) & 0xFFFFFFFF
