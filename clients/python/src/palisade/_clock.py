"""The holder's clock: time since boot, suspension included, in nanoseconds."""

from __future__ import annotations

import sys
import time

if sys.platform.startswith("linux"):

    def now_ns() -> int:
        """CLOCK_BOOTTIME: it cannot be set, and goes on while the machine is suspended."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

elif sys.platform == "win32":
    import ctypes

    def now_ns() -> int:
        """Interrupt time, which includes suspension on Windows."""
        units = ctypes.c_ulonglong()
        ctypes.windll.kernel32.QueryInterruptTime(ctypes.byref(units))
        return units.value * 100

elif sys.platform == "darwin":

    def now_ns() -> int:
        """CLOCK_MONOTONIC, which includes suspension on macOS; Python's own clock does not."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

else:

    def now_ns() -> int:
        """The monotonic clock, which may stop in suspension."""
        return time.monotonic_ns()


MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND
