"""The options of an exclusive grant. A new one is a field of `GrantOptions` and a row of `_FIELDS`."""

from __future__ import annotations

from typing import Any, Callable, Mapping, TypedDict

from ._model import Duration, milliseconds
from .errors import Invalid

DAY_MS = 86_400_000


class GrantOptions(TypedDict, total=False):
    """Further arguments of `lock`, of exclusive grants."""

    #: How long nobody is granted the lock after this grant expires or is revoked, 0 – 60 s.
    lock_delay: Duration
    #: How long nobody else is granted it from this grant on, also after its release, 0 – 24 h.
    at_least_for: Duration


def in_milliseconds(duration: Duration, what: str, low: int, high: int) -> int:
    try:
        return milliseconds(duration, what, low, high)
    except ValueError as error:
        raise Invalid("invalid", str(error)) from None


def _time(high: int) -> Callable[[Any, str], int]:
    return lambda value, what: in_milliseconds(value, what, 0, high)


#: The field of the request for each option, and how its value is read; 0 stands for "not asked for".
_FIELDS: dict[str, tuple[str, Callable[[Any, str], int]]] = {
    "lock_delay": ("lock_delay_ms", _time(60_000)),
    "at_least_for": ("at_least_for_ms", _time(DAY_MS)),
}


def known(options: Mapping[str, Any]) -> None:
    """Raises `TypeError` for an argument that is no option."""
    for name in options:
        if name not in _FIELDS:
            raise TypeError(f"unexpected keyword argument {name!r}")


def fields(options: Mapping[str, Any]) -> dict[str, int]:
    """The fields of a request with these options."""
    read = {field: of(options[name], name) for name, (field, of) in _FIELDS.items() if name in options}
    return {field: value for field, value in read.items() if value}
