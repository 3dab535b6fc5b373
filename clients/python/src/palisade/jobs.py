"""Jobs that several machines start and one runs: for Celery, APScheduler, Django's commands, cron, or any function.

    @app.task                                    # Celery: below its own decorator
    @once("nightly")
    def nightly(grant): …

    scheduler.add_job(once("nightly")(nightly), "cron", hour=3)      # APScheduler

    class Command(BaseCommand):                  # Django
        @once("nightly")
        def handle(self, *args, grant, **options): …

The lock keeps a job from running twice at the same time. Clocks that differ would start it again as soon as a short run
is over: `at_least_for` keeps the lock closed for a period that the server counts. It does so also when the run fails:
leave it out where a failed run is to be tried again soon, as by Celery's `autoretry_for`.

A job that is paused past its lease continues while the next one runs. Its writes need a fence, so the function gets
the `grant` if it has a parameter of that name. Where no fence is possible, `lock_delay` leaves time for the late
writes of a crashed run to arrive."""

from __future__ import annotations

import functools
import inspect
import logging
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

from ._client import Client, Grant
from ._model import Duration
from ._process import this_process
from .errors import LockHeld

log = logging.getLogger("palisade")
Result = TypeVar("Result")


class Skipped(str):
    """The result of a job that did not run, because another client has the lock, or had it lately. It is false, and
    it is a string, so that Celery can send it as a result."""

    def __bool__(self) -> bool:
        return False


if TYPE_CHECKING:
    from typing import Protocol, overload

    from typing_extensions import Concatenate, ParamSpec

    Parameters = ParamSpec("Parameters")

    class Once(Protocol):
        """The decorated function: it has no first parameter if that was the grant. Types cannot express this for a
        grant in another position."""

        @overload
        def __call__(
            self, job: Callable[Concatenate[Grant, Parameters], Result]
        ) -> Callable[Parameters, Union[Result, Skipped]]: ...

        @overload
        def __call__(self, job: Callable[Parameters, Result]) -> Callable[Parameters, Union[Result, Skipped]]: ...


def once(
    name: Union[str, Callable[..., str]],
    *,
    client: Optional[Client] = None,
    ttl: Duration = "15s",
    wait: Duration = 0,
    permits: Optional[tuple[int, int]] = None,
    lock_delay: Duration = 0,
    at_least_for: Duration = 0,
) -> Once:
    """A decorator: the function runs while it holds the lock `name`, and is skipped if another client does.

    `name`: or a function that makes it of the job's arguments, `lambda customer: f"import/{customer}"`. `client`: by
    default one for `PALISADE_URL`, made at the first run of each process. `wait`: how long to wait for the lock before
    the run is skipped. `permits`: `(1, 3)` lets three run at a time. `lock_delay`: nobody runs it so long after a run
    that crashed, 0 – 60 s. `at_least_for`: nobody runs it again before so long after its beginning, 0 – 24 h.

    Without an answer from the server the job does not run: the exceptions are those of `Lock.acquire`. After a loss the
    function goes on until it asks `grant.check()` or a fence."""

    if not isinstance(name, str) and not callable(name):
        raise TypeError(f"the lock of a job is {name!r}: its name, or a function that makes it, is needed")
    if client is not None and not isinstance(client, Client):
        raise TypeError(f"client is a {type(client).__name__}: a palisade.Client is needed")

    def decorate(job: Callable[..., Result]) -> Callable[..., Union[Result, Skipped]]:
        if not callable(job):
            raise TypeError(f"once({name!r}) decorates a function, and not a {type(job).__name__}")
        if inspect.iscoroutinefunction(job):
            raise TypeError(f"{job.__name__} is a coroutine function: use `async with AsyncClient().lock(…)` in it")
        takes_grant = "grant" in inspect.signature(job).parameters
        kind: dict[str, Any] = {"permits": permits, "lock_delay": lock_delay, "at_least_for": at_least_for}

        @functools.wraps(job)
        def run(*arguments: Any, **named: Any) -> Any:
            lock = name if isinstance(name, str) else name(*arguments, **named)
            try:
                grant = (client or _default()).lock(lock, ttl=ttl, wait=wait, **kind).acquire()
            except LockHeld as held:
                why = f"{lock!r} ran lately" if held.code == "delayed" else f"another client holds {lock!r}"
                log.info("skipped: %s", why)
                return Skipped(f"skipped: {why}")
            with grant:
                return job(*arguments, **named, **({"grant": grant} if takes_grant else {}))

        # Frameworks read the parameters, and nobody but this decorator gives the grant.
        signature = inspect.signature(job)
        others = [parameter for parameter in signature.parameters.values() if parameter.name != "grant"]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate


@functools.cache
def _of_process(process: tuple[int, int]) -> Client:
    return Client()


def _default() -> Client:
    return _of_process(this_process())
