"""The steps of a claim, for whichever database a connection is to."""

from __future__ import annotations

from typing import Any, Mapping

from . import mysql, postgres
from ._drivers import Steps, Sync
from .rule import Rule


def claims(own: Sync, holders: Mapping[str, Any], rule: Rule) -> Steps[Any]:
    if own.system == "sqlite":
        # Not every Python has the module sqlite3.
        from . import sqlite  # noqa: PLC0415

        return sqlite.claims(own, holders, rule)
    steps: Steps[Any] = (mysql if own.system == "mysql" else postgres)._claims(holders, rule)
    return steps
