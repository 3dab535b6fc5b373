"""State that belongs to one process. After a fork (gunicorn --preload, Celery, multiprocessing) the child has a copy of
the parent's memory: its connections, its grants, and its locks as another thread had them at that moment.

The process is compared at each use: by its id, because uWSGI forks without calling the hooks of `os.register_at_fork`;
and by how often the hook was called, because a child in another PID namespace may have its parent's id."""

from __future__ import annotations

import os
import threading
from typing import Callable, Generic, NoReturn, SupportsIndex, TypeVar

_forks = 0


def _forked() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def this_process() -> tuple[int, int]:
    """Differs between a process and those that were forked from it."""
    return os.getpid(), _forks


class OfOneProcess:
    """Neither copied nor sent to another process. By default the error is about a lock of threads somewhere inside."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} is neither copied nor sent to another process: make a client there, and send "
            "names of locks, or tokens of grants"
        )


Made = TypeVar("Made")


class Begun:
    """Whether a thread that never ends was begun."""

    def __init__(self, name: str, run: Callable[[], object]) -> None:
        self._name, self._run, self._is = name, run, False

    def begin(self) -> None:
        """Call it without the locks for which the new thread would wait."""
        if self._is:
            return
        self._is = True
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except BaseException:
            self._is = False
            raise


class PerProcess(Generic[Made]):
    """One for each process: a child has none of its parent's threads, and a copy of their locks."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._made: dict[tuple[int, int], Made] = {}

    def here(self) -> Made:
        process = this_process()
        # `setdefault` is one step, also among threads.
        return self._made.get(process) or self._made.setdefault(process, self._make())


class Guard:
    """A lock for each process: in a child it is free, even if a thread had it in the parent."""

    def __init__(self) -> None:
        self._locks: dict[tuple[int, int], threading.Lock] = {}

    def __enter__(self) -> None:
        # `setdefault` is one step, also among threads.
        self._locks.setdefault(this_process(), threading.Lock()).acquire()

    def __exit__(self, *_: object) -> None:
        self._locks[this_process()].release()
