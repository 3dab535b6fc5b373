"""The clock that drivers and the suite share: time since boot, suspension included, in milliseconds."""

import time
from typing import Callable, TypeVar

Found = TypeVar("Found")

# The share of `valid_for_ms` that a deadline keeps, and the milliseconds that rounding may add.
SURE = 0.99 / 1.01
ROUNDING = 2.0


def now_ms() -> float:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6


def until(condition: Callable[[], Found], timeout_s: float = 10.0) -> Found:
    """The first true value of the condition, or its last value when the time is over."""
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.005)  # real time: asked again, up to a deadline


def pause(ms: float) -> None:
    """Lets real time pass, for rules about the passing of time."""
    time.sleep(max(0.0, ms) / 1e3)  # real time: the caller says what for
