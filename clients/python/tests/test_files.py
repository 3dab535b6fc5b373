"""The fence of a folder."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from palisade import Unavailable
from palisade.fences import FenceLost, Rejected, Stale, files
from palisade.fences.files import Folder
from palisade.fences.rule import MAX_TOKEN, Record


def test_a_newer_holder_shuts_the_older_one_out(tmp_path: pathlib.Path) -> None:
    reports = Folder(tmp_path)
    reports.claim(34)
    assert reports.read(34, "/report.csv") is None
    reports.append(34, "/report.csv", b"one\n")
    reports.claim(35)
    with pytest.raises(Stale) as stale:
        reports.append(34, "/report.csv", b"late\n")
    assert stale.value.highest == 35
    with pytest.raises(Stale):
        reports.read(34, "/report.csv")
    assert reports.observe("/report.csv") == b"one\n"


def test_writes_and_repeats(tmp_path: pathlib.Path) -> None:
    reports = Folder(tmp_path)
    assert not reports.append(34, "/a", b"one\n", sequence=1)
    assert reports.append(34, "/a", b"one\n", sequence=1)
    assert reports.read(34, "/a") == b"one\n"
    with pytest.raises(Rejected) as reused:
        reports.append(34, "/a", b"two\n", sequence=1)
    assert reused.value.code == "sequence_reused"
    (tmp_path / "a").chmod(0o640)
    reports.put(34, "/a", b"whole")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    reports.delete(34, "/a")
    with pytest.raises(Rejected) as missing:
        reports.delete(34, "/a")
    assert missing.value.code == "missing"
    assert sorted(os.listdir(tmp_path)) == [".palisade-fence", ".palisade-lock"]


def test_the_format_is_that_of_the_rust_fence() -> None:
    """The text of `the_text_format_is_unchanged` in crates/palisade-fence/src/files/sidecar.rs."""
    text = (
        b"palisade-fence 1\nrevision 7\ntoken 9007199254740991\nwritten 9007199254740991\n"
        b"digest 18446744073709551615\nauthority a:0f3c\nlock nightly\npending append 120 a file 5\n"
        b"length 140 sum 1\nsum 97923cbe\n"
    )
    record = Record("a:0f3c", "nightly", MAX_TOKEN, True, MAX_TOKEN, 2**64 - 1)
    state = files._State(7, record, "append 120 a file 5", "140 sum 1")
    assert state.encode() == text
    assert files._State.decode(text) == state
    for at in range(len(text)):
        bad = bytearray(text)
        bad[at] ^= 1
        for broken in (text[:at], bytes(bad)):
            with pytest.raises(ValueError):
                files._State.decode(broken)


def test_what_is_lost_damaged_or_changed_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "old").write_bytes(b"data")
    reports = Folder(tmp_path)
    with pytest.raises(FenceLost, match="re-arm"):
        reports.claim(34)
    (tmp_path / "old").unlink()
    reports.put(34, "/a", b"12345")
    (tmp_path / "a").write_bytes(b"1234")
    with pytest.raises(FenceLost, match="has 4 bytes, .* without the fence"):
        reports.claim(35)
    (tmp_path / "a").unlink()
    with pytest.raises(FenceLost, match="a is missing"):
        reports.claim(35)
    (tmp_path / ".palisade-fence").write_bytes(b"nonsense")
    with pytest.raises(FenceLost, match="damaged"):
        reports.claim(35)


#: As a file system without case, or without characters that are not seen, spells the fence's own files.
SPELLINGS = [
    "/.PALISADE-fence",
    "/.Palisade-lock",
    "/.pali\u017fade-fence",
    "/.pal\u200cisade-fence",
    "/.palisade-fence. ",
]


@pytest.mark.parametrize("key", ["a", "/", "/..", "/a/b", "/.palisade-fence", "/a\n", "/" + 256 * "x", *SPELLINGS])
def test_a_name_outside_is_refused(tmp_path: pathlib.Path, key: str) -> None:
    with pytest.raises(ValueError, match="folder|fence"):
        Folder(tmp_path).put(34, key, b"")
    assert not (tmp_path / ".palisade-fence").exists()


def test_another_process_inside_the_fence_is_waited_for_with_a_bound(tmp_path: pathlib.Path) -> None:
    disk = files._Disk(os.open(tmp_path, os.O_DIRECTORY))
    held = disk.lock("it", 1)
    with pytest.raises(Unavailable, match="inside the fence"):
        Folder(tmp_path, patience=0.05).claim(34)
    os.close(held)
    Folder(tmp_path, patience=0.05).claim(34)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/locks is Linux's")
def test_the_process_that_has_the_lock_is_named_with_what_to_type(tmp_path: pathlib.Path) -> None:
    code = "import sys; from palisade.fences import files; disk = files._Disk(int(sys.argv[1]))"
    code += "; held = disk.lock('it', 1); print('held', flush=True); sys.stdin.read()"
    folder = os.open(tmp_path, os.O_DIRECTORY)
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdin=-1, stdout=-1, pass_fds=[folder]) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
            holder.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
            with pytest.raises(Unavailable) as busy:
                Folder(tmp_path, patience=0.05).claim(34)
            assert re.search(rf"; process {holder.pid} \(\S+, stopped\) has its lock", str(busy.value))
            end = f"palisade fence unblock {tmp_path.name} --url file://{tmp_path.parent} --yes"
            assert str(busy.value).endswith(end)
        finally:
            holder.kill()
    os.close(folder)
    Folder(tmp_path, patience=0.05).claim(34)


def test_an_append_changes_no_file_of_another_folder_and_no_fence(tmp_path: pathlib.Path) -> None:
    other, mine = tmp_path / "other", tmp_path / "mine"
    other.mkdir()
    mine.mkdir()
    Folder(other).put(9, "/a", b"theirs")
    reports = Folder(mine)
    reports.claim(34)
    for name in ("a", ".palisade-fence"):
        os.link(other / name, mine / f"linked{name}")
        before = (other / name).read_bytes()
        with pytest.raises(ValueError, match="hard links"):
            reports.append(34, f"/linked{name}", b"more")
        assert (other / name).read_bytes() == before
        # A put makes a file of its own.
        reports.put(34, f"/linked{name}", b"mine")
        reports.append(34, f"/linked{name}", b", all")
        assert (other / name).read_bytes() == before
        assert reports.read(34, f"/linked{name}") == b"mine, all"


KILLED = """
import os, signal, sys
from palisade.fences import files
folder, at = sys.argv[1], int(sys.argv[2])
reports = files.Folder(folder)
reports.append(34, "/a", b"one\\n", sequence=1)
steps = 0
def watched(call):
    def step(*arguments, **named):
        global steps
        steps += 1
        if steps == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **named)
    return step
for name in ("fsync", "rename", "unlink", "pwrite", "ftruncate"):
    setattr(os, name, watched(getattr(os, name)))
reports.append(34, "/a", b"two\\n", sequence=2)
"""


def test_killed_before_any_call_a_write_is_whole_or_not_there(tmp_path: pathlib.Path) -> None:
    outcomes = set()
    for at in range(1, 40):
        folder = tmp_path / str(at)
        folder.mkdir()
        ended = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(at)], check=False)
        reports = Folder(folder)
        repeat = reports.append(34, "/a", b"two\n", sequence=2)
        assert reports.read(34, "/a") == b"one\ntwo\n"
        outcomes.add((ended.returncode, repeat))
        if ended.returncode == 0:
            break
    assert outcomes == {(-signal.SIGKILL, False), (-signal.SIGKILL, True), (0, True)}
