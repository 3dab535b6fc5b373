"""Celery's beat on several machines: one of them publishes, the others stand by.

    celery -A shop beat --scheduler palisade.celery:Scheduler

The scheduler leads while it holds the lock `celery-beat` (setting `palisade_beat_lock`); `PALISADE_URL` is the server.
It publishes nothing without it, and a broker cannot refuse the message of one that was paused. So each message has the
token of its sender in the header `palisade`, and a task gives it to a fence:

    @app.task(bind=True)
    def nightly(self):
        with postgres.transact(db, "nightly", sender(self.request)):  # refuses what an older beat has published
            …

A beat that takes over sends what is due by its own schedule file, as one that was restarted does: with
`at_least_for`, `@once` drops what the last one had sent already. For the tasks themselves see `palisade.jobs`."""

from __future__ import annotations

import copy
from typing import Any, Callable, Optional

from celery.beat import PersistentScheduler

from ._client import Client, Grant
from .errors import LockHeld, PalisadeError
from .fences.rule import Pass

HEADER = "palisade"


def sender(request: Any) -> Pass:
    """The proof of the beat that published the message of a task: `sender(self.request)` in a bound task. Raises
    LookupError if no such beat did."""
    found = request.get(HEADER) or (request.get("headers") or {}).get(HEADER)
    if not found:
        raise LookupError("this message was not published by palisade.celery:Scheduler")
    return Pass(found["token"], found["authority"], found["lock"])


class Scheduler(PersistentScheduler):  # type: ignore[misc]
    """Publishes while it leads."""

    #: How often a scheduler that stands by asks for the lock, in seconds.
    stand_by = 5.0

    def __init__(self, *arguments: Any, client: Callable[[], Client] = Client, **named: Any) -> None:
        self._client_of = client
        self._client: Optional[Client] = None
        self._grant: Optional[Grant] = None
        super().__init__(*arguments, **named)

    def tick(self, *arguments: Any, **named: Any) -> float:
        """The seconds to the next call."""
        if not self._leads():
            return self.stand_by
        # A third of the lease, so that a loss is noticed between two schedules.
        return float(min(super().tick(*arguments, **named), self.stand_by))

    def apply_async(self, entry: Any, *arguments: Any, **named: Any) -> Any:
        if not self._leads():
            raise RuntimeError("this beat does not lead any more: the message is not published")
        assert self._grant is not None
        proof = {"token": self._grant.token, "authority": self._grant.authority, "lock": self._grant.lock}
        # A copy: the entry goes to the schedule's file.
        sent = copy.copy(entry)
        sent.options = {**entry.options, "headers": {**(entry.options.get("headers") or {}), HEADER: proof}}
        return super().apply_async(sent, *arguments, **named)

    def close(self) -> None:
        """Gives the lock back. Celery may call `tick` again afterwards."""
        grant, self._grant = self._grant, None
        client, self._client = self._client, None
        if grant is not None:
            grant.release()
        if client is not None:
            client.close()
        super().close()

    def _leads(self) -> bool:
        if self._grant is not None and self._grant.held:
            return True
        if self._client is None:
            self._client = self._client_of()
        lock = self.app.conf.get("palisade_beat_lock", "celery-beat")
        try:
            self._grant = self._client.lock(lock, wait=0).acquire()
        except LockHeld:
            self._grant = None
        except PalisadeError as error:
            self._grant = None
            self.logger.warning("palisade: nobody leads as far as this beat knows: %s", error)
        return self._grant is not None
