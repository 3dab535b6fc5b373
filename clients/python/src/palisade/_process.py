"""State that belongs to one process. After a fork (gunicorn --preload, Celery, multiprocessing) the child has a copy of
the parent's memory: its connections, its grants, and its locks as another thread had them at that moment.

The process id is compared at each use. A hook of `os.register_at_fork` would not do: uWSGI forks without calling it."""

from __future__ import annotations

import os
import threading


class Guard:
    """A lock for each process: in a child it is free, even if a thread had it in the parent."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        # `setdefault` is one step, also among threads.
        self._locks.setdefault(os.getpid(), threading.Lock()).acquire()

    def __exit__(self, *_: object) -> None:
        self._locks[os.getpid()].release()
