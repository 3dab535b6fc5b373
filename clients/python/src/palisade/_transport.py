"""Attempts, and the exchanges over httpx: one sync, one async. After a failure the pool of connections is replaced,
because a connection through which nothing comes back looks alive."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
import weakref
from typing import Any, AsyncIterator, Iterator, Mapping, Optional

import httpx

from ._bearer import Bearer
from ._bounded import Transport, bounded
from ._clock import SECOND, now_ns
from ._endpoints import Endpoints
from ._exchange import AsyncExchange, AsyncStream, Exchange, Stream, believed
from ._process import Guard, this_process
from ._protocol import LEAST_TIME, Fault, Outcome, Reply, Send, attempt_ns, code_of
from ._tls import Certificates
from .errors import Invalid

WATCH_SILENCE_S = 45.0
#: httpx's own time-outs come first, because they tell whether anything was sent.
SLACK_S = 0.1
NONCE = "Palisade-Nonce"


class Settings:
    """How to reach a server; `verify` and `cert` as in `Certificates`."""

    def __init__(self, endpoints: Endpoints, bearer: Bearer, verify: Any, cert: Any) -> None:
        self.endpoints = endpoints
        if verify is True and cert is None and all(url.startswith("http:") for url in endpoints.urls):
            # Loading the certificates of authorities takes longer than everything else here.
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=16)
        self._certificates = Certificates(verify, cert)
        # A proxy of the environment would keep connections and time-outs of its own.
        self.options: dict[str, Any] = {
            "auth": bearer,
            "verify": self._certificates,
            "limits": limits,
            "trust_env": False,
        }

    def fault(self, url: str, error: Exception) -> Fault:
        """Why an attempt got no answer."""
        fault = _fault(url, error)
        ended = self._certificates.ended() if url.startswith("https:") else None
        return fault if ended is None else Fault(f"{fault}. Perhaps because {ended}", fault.unknown, fault.silent)


class _Pool:
    """Connections that are closed when they are retired and nobody uses them any more."""

    def __init__(self) -> None:
        self.users = 0
        self.retired = False
        self._guard = Guard()

    def enter(self) -> bool:
        """False if it was retired in this moment: there is another one."""
        with self._guard:
            if self.retired:
                return False
            self.users += 1
            return True

    def retire(self) -> None:
        """Nobody enters it any more."""
        with self._guard:
            self.retired = True

    def leave(self) -> bool:
        """Whether it is to be closed now."""
        with self._guard:
            self.users -= 1
            return self.retired and self.users == 0


class _SyncPool(_Pool):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        transport = Transport(settings.options["verify"], settings.options["limits"])
        self.client = httpx.Client(transport=transport, **settings.options)
        # For a program that does not close its client.
        weakref.finalize(self, _close_here, self.client, this_process())


def _close_here(client: httpx.Client, process: tuple[int, int]) -> None:
    """A child of the process leaves its parent's connections alone, and locks that another thread may have had."""
    if this_process() == process:
        client.close()


class _AsyncPool(_Pool):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.client = httpx.AsyncClient(**settings.options)


def _fault(url: str, error: Exception) -> Fault:
    why = f"{url}: {type(error).__name__}: {error}".rstrip(": ")
    silent = isinstance(error, httpx.TimeoutException)
    if not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
        return Fault(why, unknown=True, silent=silent)
    server = "a server with TLS" if url.startswith("https:") else "a server"
    advice = "start one with `palisade serve`, or name another address (PALISADE_URL)"
    return Fault(f"{why}. Is {server} running there? If not, {advice}", unknown=False, silent=silent)


def identity_may_be_over(url: str, status: int, code: str) -> bool:
    """Whether the answer may be about the certificate of the connection that it came on. Nothing happened. A new
    connection uses the current files."""
    return status == 401 and code == "unauthenticated" and url.startswith("https:")


def _timeout(until_ns: int) -> float:
    return max(0.001, (until_ns - now_ns()) / SECOND)


def _watch_timeout(patience_ns: int) -> httpx.Timeout:
    """Until a watch is open, it has the time of an attempt."""
    return httpx.Timeout(attempt_ns(patience_ns, 0, patience_ns) / SECOND)


def _is_open(answer: httpx.Response) -> None:
    """From now on comments keep the watch alive. httpx reads its settings anew for each piece of the body."""
    if answer.status_code == 200:
        answer.request.extensions["timeout"]["read"] = WATCH_SILENCE_S


def new_nonce() -> str:
    return secrets.token_hex(16)


def _request(url: str, send: Send, nonce: str, until_ns: int) -> Mapping[str, Any]:
    headers = {NONCE: nonce}
    path = url + send.path
    return {"method": send.method, "url": path, "json": send.body, "headers": headers, "timeout": _timeout(until_ns)}


def foreign(nonce: str, answer: httpx.Response) -> Optional[str]:
    """Why an answer is not that of the request with this nonce, if it is not."""
    found = answer.headers.get(NONCE)
    if found == nonce:
        return None
    where = answer.headers.get("Location")
    redirect = f", a redirect to {where!r}, which is not followed" if where else ""
    origin = "another request's" if found else "not from a Palisade server: is there a proxy in between?"
    return f"an answer (status {answer.status_code}{redirect}) came that is {origin}"


def _owned(url: str, nonce: str, answer: httpx.Response) -> None:
    """Raises `Fault` for an answer that is not that of the request with this nonce."""
    why = foreign(nonce, answer)
    if why is not None:
        raise Fault(f"{url}: {why}", unknown=True)


class _Transport:
    """Sends to one address after the other."""

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints

    def _next(self, send: Send, end: int) -> tuple[str, Send, int]:
        """The next attempt: its address, its request, and its end."""
        url = self.endpoints.current()
        if send.probe is not None and not self.endpoints.proven(url):
            send = send.probe
        return url, send, min(end, now_ns() + send.timeout_ns)

    def _is_over(self, url: str, outcome: Outcome, end: int) -> bool:
        """Whether no leader is to be asked at once."""
        if not isinstance(outcome, Reply) or not self.endpoints.answered(url, outcome):
            return True
        return now_ns() + LEAST_TIME >= end


class SyncTransport(_Transport):
    def __init__(self, endpoints: Endpoints, exchange: Exchange) -> None:
        super().__init__(endpoints)
        self.exchange = exchange

    def send(self, send: Send) -> Outcome:
        end = now_ns() + send.timeout_ns
        while True:
            url, attempt, until = self._next(send, end)
            outcome = self._attempt(url, attempt, until)
            if self._is_over(url, outcome, end):
                return outcome

    def _attempt(self, url: str, send: Send, until: int) -> Outcome:
        outcome = self._once(url, send, until)
        if isinstance(outcome, Reply) and identity_may_be_over(url, outcome.status, code_of(outcome)):
            self.exchange.reconnect()
            outcome = self._once(url, send, until)
        return outcome

    def _once(self, url: str, send: Send, until: int) -> Outcome:
        try:
            return self.exchange.send(url, send, until)
        except Fault as fault:
            self.endpoints.failed(url)
            return fault


class SyncHttp:
    """The exchange over httpx."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._pools = {this_process(): _SyncPool(settings)}
        self._closed = False

    @property
    def pool(self) -> _SyncPool:
        """The connections of this process: never those of the one that it was forked from."""
        if self._closed:
            raise Invalid("invalid", "the client is closed")
        process = this_process()
        return self._pools.get(process) or self._pools.setdefault(process, _SyncPool(self.settings))

    def send(self, url: str, send: Send, until_ns: int) -> Reply:
        pool = self.pool
        while not pool.enter():
            pool = self.pool
        nonce = new_nonce()
        try:
            with bounded(until_ns, send.cancel):
                answer = pool.client.request(**_request(url, send, nonce, until_ns))
            _owned(url, nonce, answer)
            return believed(url, send, answer.status_code, answer.content)
        except Fault:
            self._retire(pool)
            raise
        except (httpx.HTTPError, OSError) as error:
            self._retire(pool)
            raise self.settings.fault(url, error) from None
        except RuntimeError as error:
            # httpx's word for a client that was closed meanwhile.
            if not self._closed:
                raise
            raise Invalid("invalid", "the client is closed") from error
        finally:
            if pool.leave():
                pool.client.close()

    @contextlib.contextmanager
    def watch(self, url: str, path: str, patience_ns: int) -> Iterator[Stream]:
        nonce, timeout = new_nonce(), _watch_timeout(patience_ns)
        until = now_ns() + int((timeout.connect or 0) * SECOND)
        try:
            with contextlib.ExitStack() as stack:
                with bounded(until):
                    stream = self.pool.client.stream("GET", url + path, timeout=timeout, headers={NONCE: nonce})
                    answer = stack.enter_context(stream)
                # Leaving the block with the answer unread closes the connection.
                _owned(url, nonce, answer)

                def read() -> bytes:
                    with bounded(until):
                        return answer.read()

                _is_open(answer)
                yield Stream(answer.status_code, read, answer.iter_lines)
        except httpx.HTTPError as error:
            raise _fault(url, error) from None

    def reconnect(self) -> None:
        """The next attempt has a new connection."""
        pool = self.pool
        # As a user that leaves: a pool without users is closed at once.
        if pool.enter():
            self._retire(pool)
            if pool.leave():
                pool.client.close()

    def _retire(self, pool: _SyncPool) -> None:
        process = this_process()
        if self._pools.get(process) is pool:
            self._pools[process] = _SyncPool(self.settings)
        # Its users, this one among them, close it when they leave.
        pool.retire()

    def close(self) -> None:
        self._closed = True
        pool = self._pools.get(this_process())
        if pool is not None:
            pool.retire()
            pool.client.close()


def running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise Invalid(
            "invalid", "AsyncClient needs a running event loop of asyncio: elsewhere (trio, a plain thread) use Client"
        ) from None


class AsyncTransport(_Transport):
    def __init__(self, endpoints: Endpoints, exchange: AsyncExchange) -> None:
        super().__init__(endpoints)
        self.exchange = exchange

    async def send(self, send: Send) -> Outcome:
        end = now_ns() + send.timeout_ns
        while True:
            url, attempt, until = self._next(send, end)
            outcome = await self._attempt(url, attempt, until)
            if self._is_over(url, outcome, end):
                return outcome

    async def _attempt(self, url: str, send: Send, until: int) -> Outcome:
        outcome = await self._once(url, send, until)
        if isinstance(outcome, Reply) and identity_may_be_over(url, outcome.status, code_of(outcome)):
            await self.exchange.reconnect()
            outcome = await self._once(url, send, until)
        return outcome

    async def _once(self, url: str, send: Send, until: int) -> Outcome:
        try:
            return await self.exchange.send(url, send, until)
        except Fault as fault:
            self.endpoints.failed(url)
            return fault


class AsyncHttp:
    """The exchange over httpx."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # A connection belongs to one event loop.
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _AsyncPool] = weakref.WeakKeyDictionary()
        self._process = this_process()
        self._closed = False

    @property
    def pool(self) -> _AsyncPool:
        """The connections of the loop that runs, in this process."""
        if self._closed:
            raise Invalid("invalid", "the client is closed")
        if this_process() != self._process:
            self._pools, self._process = weakref.WeakKeyDictionary(), this_process()
        loop = running_loop()
        if loop not in self._pools:
            self._pools[loop] = _AsyncPool(self.settings)
        return self._pools[loop]

    async def send(self, url: str, send: Send, until_ns: int) -> Reply:
        pool = self.pool
        while not pool.enter():
            pool = self.pool
        nonce = new_nonce()
        try:
            async with asyncio.timeout(_timeout(until_ns) + SLACK_S):
                answer = await pool.client.request(**_request(url, send, nonce, until_ns))
            _owned(url, nonce, answer)
            return believed(url, send, answer.status_code, answer.content)
        except Fault:
            self._retire(pool)
            raise
        except (httpx.HTTPError, OSError) as error:
            self._retire(pool)
            raise self.settings.fault(url, error) from None
        except RuntimeError as error:
            # httpx's word for a client that was closed meanwhile.
            if not self._closed:
                raise
            raise Invalid("invalid", "the client is closed") from error
        finally:
            if pool.leave():
                await pool.client.aclose()

    @contextlib.asynccontextmanager
    async def watch(self, url: str, path: str, patience_ns: int) -> AsyncIterator[AsyncStream]:
        nonce, timeout = new_nonce(), _watch_timeout(patience_ns)
        until = asyncio.get_running_loop().time() + (timeout.connect or 0) + SLACK_S
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout_at(until):
                    stream = self.pool.client.stream("GET", url + path, timeout=timeout, headers={NONCE: nonce})
                    answer = await stack.enter_async_context(stream)
                # Leaving the block with the answer unread closes the connection.
                _owned(url, nonce, answer)

                async def read() -> bytes:
                    async with asyncio.timeout_at(until):
                        return await answer.aread()

                _is_open(answer)
                yield AsyncStream(answer.status_code, read, answer.aiter_lines)
        except (httpx.HTTPError, TimeoutError) as error:
            raise _fault(url, error) from None

    async def reconnect(self) -> None:
        """The next attempt has a new connection."""
        pool = self.pool
        if pool.enter():
            self._retire(pool)
            if pool.leave():
                await pool.client.aclose()

    def _retire(self, pool: _AsyncPool) -> None:
        loop = asyncio.get_running_loop()
        if self._pools.get(loop) is pool:
            self._pools[loop] = _AsyncPool(self.settings)
        pool.retire()

    async def close(self) -> None:
        self._closed = True
        pool = self._pools.get(asyncio.get_running_loop())
        if pool is not None:
            pool.retire()
            await pool.client.aclose()
