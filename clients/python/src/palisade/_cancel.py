"""Ends a request of another thread."""

from __future__ import annotations

import threading
from typing import Callable


class Cancel:
    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_set = False
        self._wake: Callable[[], object] = lambda: None

    @property
    def is_set(self) -> bool:
        return self._is_set

    def wakes(self, wake: Callable[[], object]) -> None:
        """It ends what the request waits for: at once, if it is cancelled already. A later one replaces it."""
        with self._guard:
            self._wake = wake
            if self._is_set:
                wake()

    def cancel(self) -> None:
        with self._guard:
            self._is_set = True
            self._wake()
