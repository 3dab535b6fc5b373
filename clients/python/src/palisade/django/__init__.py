"""Fences every transaction of a Django connection.

    with client.lock("orders") as grant, fenced("orders", grant):
        with transaction.atomic():                                   # claims before its first statement
            Order.objects.update(total=F("total") + 1)

Each outermost `atomic` in the block claims once. A statement outside of `atomic` gets one of its own, unless it is a
SELECT. A rejection arrives as Django's `DatabaseError`: `palisade.fences.rejection(error)` says whether it is one, and
why. The block counts for the connection of this thread. PostgreSQL, MySQL and MariaDB.

With "palisade.django" in INSTALLED_APPS, `manage.py fenced schema migrate` runs a command while it holds a lock, and
fences all that it writes."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from ..fences import _drivers
from ..fences._claims import claims
from ..fences.rule import CLAIM_RULE, Rule


@contextlib.contextmanager
def fenced(resource: str, holder: Any, using: str = DEFAULT_DB_ALIAS, rule: Rule = CLAIM_RULE) -> Iterator[None]:
    """Each transaction of the database `using` claims the resource before its first statement."""
    connection = connections[using]
    if connection.in_atomic_block:
        raise ValueError("enter `fenced` outside of `atomic`: this transaction may have read already")
    own = _drivers.sync(connection)
    with connection.execute_wrapper(_Claiming(own, resource, holder, rule)):
        try:
            yield
        finally:
            if own.system == "mysql" and connection.connection is not None:
                # MariaDB's bound on idle transactions is the session's.
                with contextlib.suppress(Exception):
                    own.run_raw("CALL palisade_end(FALSE)")


class _Claiming:
    """A wrapper of Django's `execute`."""

    def __init__(self, own: _drivers.Sync, resource: str, holder: Any, rule: Rule) -> None:
        self._own, self._resource, self._holder, self._rule = own, resource, holder, rule
        self._claims = False
        self._mark = lambda: None

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        connection = context["connection"]
        # On SQLite the beginning of a transaction comes this way, too.
        if self._claims or sql == "BEGIN":
            return execute(sql, params, many, context)
        if not connection.in_atomic_block:
            if str(sql).lstrip(" \n\t(").upper().startswith("SELECT"):
                return execute(sql, params, many, context)
            with transaction.atomic(using=connection.alias):
                self._claim(connection)
                return execute(sql, params, many, context)
        self._claim(connection)
        return execute(sql, params, many, context)

    def _claim(self, connection: Any) -> None:
        # Django drops this mark with the transaction, and with a savepoint that is rolled back together with the claim.
        if any(hook[1] is self._mark for hook in connection.run_on_commit):
            return
        self._claims = True
        try:
            # The error stays Django's.
            _drivers.run(self._own, claims(self._own, {self._resource: self._holder}, self._rule), lambda error: None)
        finally:
            self._claims = False
        connection.on_commit(self._mark)
