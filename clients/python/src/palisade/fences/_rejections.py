"""Recognises the rejection of a fence in an error: the driver's own, or a framework's around it."""

from __future__ import annotations

import re
from typing import Callable, Optional

from ..errors import PalisadeError
from ._drivers import chain, driver_error
from .errors import Rejected, Stale

_STALE = re.compile(r"token (\d+) is stale: ")
_REDIS = re.compile(r"^PALISADE (\w+) (\S+): ")
# SQLSTATE, code, what the message of MySQL says, and the meaning of the numbers at its end.
_MYSQL: list[tuple[str, str, str, list[str]]] = [
    ("PF001", "stale", " is stale: ", ["token", "highest"]),
    ("PF002", "tokenless", " is fenced by resource ", ["highest"]),
    ("PF005", "wrong_authority", "the resource belongs to another authority: ", []),
    ("PF006", "wrong_lock", "the resource belongs to another lock: ", []),
    ("PF007", "jump", "no token is believed more than ", ["bound", "highest"]),
    ("PF008", "sequence_stale", "a later write of this grant was carried out", ["last"]),
    ("PF009", "sequence_reused", "another write of this grant has the sequence number", ["last"]),
    ("PF010", "already_written", "there was already a write under this token", []),
]
_POSTGRES: dict[str, Callable[[str], Rejected]] = {
    "PF002": lambda detail: Rejected("tokenless", highest=_number(detail)),
    "PF005": lambda detail: _of_another("wrong_authority", detail),
    "PF006": lambda detail: _of_another("wrong_lock", detail),
    "PF007": lambda detail: _jump(*detail.split()),
    "PF008": lambda detail: Rejected("sequence_stale", last=_number(detail)),
    "PF009": lambda detail: Rejected("sequence_reused", last=_number(detail)),
    "PF010": lambda detail: Rejected("already_written"),
}


def rejection(error: BaseException) -> Optional[Rejected]:
    """The rejection, if `error` says that a fence in PostgreSQL, MySQL, MariaDB, SQLite or Redis refused a statement,
    or None. It may be the driver's error, or that of SQLAlchemy or Django around it; a `Rejected` is returned as it
    is."""
    for one in chain(error):
        if isinstance(one, Rejected):
            return one
    found, state = driver_error(error)
    if state.startswith("PF") and not is_mysql(found):
        return _of_postgres(found, state, _detail(error))
    for one in chain(error):
        refused = _of_mysql(one) if is_mysql(one) else _of_sqlite(one) or _of_redis(one)
        if refused is not None:
            return refused
    return None


def said_by(error: BaseException) -> tuple[BaseException, str, str]:
    """The driver's error, its SQLSTATE, and its words on one line."""
    found, state = driver_error(error)
    if not state:
        found = next(filter(is_mysql, chain(error)), found)
    said = found.args[1] if is_mysql(found) and len(found.args) > 1 else found
    return found, state, str(said).replace("\n", " ")


def is_mysql(error: BaseException) -> bool:
    """Drivers of MySQL give the number of the error first."""
    return bool(error.args) and type(error.args[0]) is int and not isinstance(error, (OSError, PalisadeError))


def _of_postgres(found: BaseException, state: str, detail: str) -> Optional[Rejected]:
    if state == "PF001":
        said = _STALE.search(str(found))
        return Stale(int(said[1]) if said else None, int(detail)) if detail.isdigit() else None
    return _POSTGRES[state](detail) if state in _POSTGRES else None


def _of_mysql(found: BaseException) -> Optional[Rejected]:
    number, said = found.args[0], str(found.args[1]) if len(found.args) > 1 else ""
    # Older versions of PyMySQL, and mysqlclient, do not tell the SQLSTATE of a SIGNAL.
    state = getattr(found, "sqlstate", None)
    for its_state, code, words, names in _MYSQL:
        if state == its_state or (state is None and number == 1644 and words in said):
            numbers = [int(digits) for digits in re.findall(r"\d+", said)][-len(names) :] if names else []
            told = dict(zip(names, numbers, strict=False))
            if code == "stale":
                return Stale(told.get("token"), told.get("highest", 0))
            if code in ("wrong_authority", "wrong_lock"):
                return _of_another(code, said.partition(": ")[2])
            return Rejected(code, highest=told.get("highest") or None, last=told.get("last"), bound=told.get("bound"))
    return None


def _of_sqlite(found: BaseException) -> Optional[Rejected]:
    """What the triggers of a sticky table say, without numbers."""
    if type(found).__module__ != "sqlite3":
        return None
    said = str(found)
    if "palisade stale:" in said:
        return Stale(None, None)
    says = ("palisade tokenless:", "palisade unclaimed:", "no such function: palisade_token")
    return Rejected("tokenless") if any(words in said for words in says) else None


def _of_redis(found: BaseException) -> Optional[Rejected]:
    said = _REDIS.match(str(found))
    if said is None or not any(kind.__module__.startswith("redis") for kind in type(found).__mro__):
        return None
    code, value = said[1], said[2]
    if code == "stale":
        token = _STALE.search(str(found))
        return Stale(int(token[1]) if token else None, int(value))
    if code in ("sequence_stale", "sequence_reused"):
        return Rejected(code, last=_number(value))
    if code in ("wrong_authority", "wrong_lock"):
        return _of_another(code, value)
    return Rejected(code, highest=_number(value)) if code in ("jump", "already_written", "missing") else None


def _detail(error: BaseException) -> str:
    """The DETAIL of PostgreSQL: psycopg has it in `diag`, asyncpg in `detail`."""
    for one in chain(error):
        detail = getattr(getattr(one, "diag", None), "message_detail", None) or getattr(one, "detail", None)
        if isinstance(detail, str):
            return detail
    return ""


def _of_another(code: str, name: str) -> Rejected:
    return Rejected(code, authority=name) if code == "wrong_authority" else Rejected(code, lock=name)


def _number(text: str) -> Optional[int]:
    return int(text) if text.isdigit() else None


def _jump(highest: str, bound: str) -> Rejected:
    return Rejected("jump", highest=int(highest) or None, bound=int(bound))
