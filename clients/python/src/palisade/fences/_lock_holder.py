"""The processes that have a lock on a file, as Linux lists them in `/proc`: for the message to a caller that waits.

A process in another container, or on another machine, is not listed. Neither is one on a file system whose locks have
another device number than its files (Btrfs, some overlays)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional


def in_the_way(file: os.stat_result, folder: str) -> str:
    """Names the processes that hold the `flock` of this file, and the command that ends them."""
    names = [name for process in _holders(file) if (name := _look_at(process)) is not None]
    if not names:
        return "the process that has its lock cannot be seen from here"
    parent, slash, resource = folder.rstrip("/").rpartition("/")
    command = f"palisade fence unblock {resource} --url file://{parent if slash else '.'} --yes"
    return f"{' and '.join(names)} has its lock: let it go on, or end it with: {command}"


def _holders(file: os.stat_result) -> list[int]:
    """From lines like `1: FLOCK  ADVISORY  WRITE 4711 fe:00:131 0 EOF`; one with `->` is a process that waits."""
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return []
    found = (int(line[4]) for line in lines if len(line) == 8 and line[1] == "FLOCK" and line[5] == place)
    return sorted({process for process in found if process > 0})


def _look_at(process: int) -> Optional[str]:
    try:
        stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name is in parentheses, and may contain some.
    before, _, after = stat.rpartition(") ")
    stopped = ", stopped" if after[:1] in ("T", "t") else ""
    return f"process {process} ({before.partition(' (')[2]}{stopped})"
