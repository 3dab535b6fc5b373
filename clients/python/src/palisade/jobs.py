"""Jobs that several machines start and one runs: for Celery, APScheduler, Django's commands, cron, or any function.

    @app.task                                    # Celery: below its own decorator
    @once("nightly")
    def nightly(grant): …

    scheduler.add_job(once("nightly")(nightly), "cron", hour=3)      # APScheduler, also with `async def`

    class Command(BaseCommand):                  # Django
        @once("nightly")
        def handle(self, *args, grant, **options): …

A coroutine function gets an `AsyncGrant`. The lock keeps a job from running twice at the same time. Clocks that differ
would start it again as soon as a short run is over: `at_least_for` keeps the lock closed for a period that the server
counts. It does so also when the run fails: leave it out where a failed run is to be tried again soon, as by Celery's
`autoretry_for`.

A job that is paused past its lease continues while the next one runs. Its writes need a fence, so the function gets
the `grant` if it has a parameter of that name. Where no fence is possible, `lock_delay` leaves time for the late
writes of a crashed run to arrive."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Optional, TypeVar, Union, Unpack

from ._async import AsyncClient, AsyncGrant
from ._client import Client, Grant
from ._model import Duration
from ._options import GrantOptions, known
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
            self, job: Callable[Concatenate[AsyncGrant, Parameters], Coroutine[Any, Any, Result]]
        ) -> Callable[Parameters, Coroutine[Any, Any, Union[Result, Skipped]]]: ...

        @overload
        def __call__(
            self, job: Callable[Concatenate[Grant, Parameters], Result]
        ) -> Callable[Parameters, Union[Result, Skipped]]: ...

        @overload
        def __call__(
            self, job: Callable[Parameters, Coroutine[Any, Any, Result]]
        ) -> Callable[Parameters, Coroutine[Any, Any, Union[Result, Skipped]]]: ...

        @overload
        def __call__(self, job: Callable[Parameters, Result]) -> Callable[Parameters, Union[Result, Skipped]]: ...


def once(
    name: Union[str, Callable[..., str]],
    *,
    client: Union[Client, AsyncClient, Callable[[], Union[Client, AsyncClient]], None] = None,
    ttl: Duration = "15s",
    wait: Duration = 0,
    permits: Optional[tuple[int, int]] = None,
    raises: Optional[Callable[[str], BaseException]] = None,
    **options: Unpack[GrantOptions],
) -> Once:
    """A decorator: the function runs while it holds the lock `name`, and is skipped if another client does.

    `name`: or a function that makes it of the job's arguments, `lambda customer: f"import/{customer}"`. `client`: or a
    function that returns it, called at each run, so that a module can be imported before its settings are there; by
    default one for `PALISADE_URL`, made at the first run of each process. A coroutine function needs an `AsyncClient`;
    its default is one for each run.
    `wait`: how long to wait for the lock before the run is skipped. `permits`: `(1, 3)` lets three run at a time.
    `lock_delay`: nobody runs it so long after a run that crashed, 0 – 60 s. `at_least_for`: nobody runs it again before
    so long after its beginning, 0 – 24 h. `raises`: what a skipped run raises instead of returning `Skipped`, such as
    `celery.exceptions.Ignore` or Airflow's `AirflowSkipException`.

    Without an answer from the server the job does not run: the exceptions are those of `Lock.acquire`. After a loss the
    function goes on until it asks `grant.check()` or a fence."""

    known(options)
    if not isinstance(name, str) and not callable(name):
        raise TypeError(f"the lock of a job is {name!r}: its name, or a function that makes it, is needed")
    if client is not None and not isinstance(client, (Client, AsyncClient)) and not callable(client):
        raise TypeError(f"client is a {type(client).__name__}: a client, or a function that makes one, is needed")

    def decorate(job: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(job):
            raise TypeError(f"once({name!r}) decorates a function, and not a {type(job).__name__}")
        signature = inspect.signature(job)
        place = list(signature.parameters).index("grant") if "grant" in signature.parameters else None
        is_async = inspect.iscoroutinefunction(job)

        def lock(made: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[str, Any]:
            own = name if isinstance(name, str) else name(*arguments, **named)
            asked = made if isinstance(made, (Client, AsyncClient)) else made()
            if isinstance(asked, AsyncClient) is not is_async:
                needs = "an AsyncClient" if is_async else "a Client"
                raise TypeError(f"{job.__name__} needs {needs}, and got {type(asked).__name__}")
            return own, asked.lock(own, ttl=ttl, wait=wait, permits=permits, **options)

        def call(arguments: tuple[Any, ...], named: dict[str, Any], grant: Any) -> Any:
            """The caller does not count the grant among the positions."""
            if place is None:
                return job(*arguments, **named)
            if len(arguments) > place:
                return job(*arguments[:place], grant, *arguments[place:], **named)
            return job(*arguments, **named, grant=grant)

        def skipped(own: str, held: LockHeld) -> Skipped:
            why = f"{own!r} ran lately" if held.code == "delayed" else f"another client holds {own!r}"
            log.info("skipped: %s", why)
            if raises is not None:
                raise raises(f"skipped: {why}") from held
            return Skipped(f"skipped: {why}")

        @functools.wraps(job)
        def run(*arguments: Any, **named: Any) -> Any:
            own, request = lock(client or _default(), arguments, named)
            try:
                grant = request.acquire()
            except LockHeld as held:
                return skipped(own, held)
            with grant:
                return call(arguments, named, grant)

        @functools.wraps(job)
        async def arun(*arguments: Any, **named: Any) -> Any:
            # A client of its own keeps no connections of an event loop that ends with this run.
            async with AsyncClient() if client is None else contextlib.nullcontext(client) as made:
                own, request = lock(made, arguments, named)
                try:
                    grant = await request.acquire()
                except LockHeld as held:
                    return skipped(own, held)
                async with grant:
                    return await call(arguments, named, grant)

        # Frameworks read the parameters, and nobody but this decorator gives the grant.
        others = [parameter for parameter in signature.parameters.values() if parameter.name != "grant"]
        chosen: Callable[..., Any] = arun if is_async else run
        chosen.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return chosen

    return decorate


@functools.cache
def _of_process(process: tuple[int, int]) -> Client:
    return Client()


def _default() -> Client:
    return _of_process(this_process())
