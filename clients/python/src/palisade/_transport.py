"""Attempts over httpx: one sync, one async. After a failure the pool of connections is replaced, because a connection
through which nothing comes back looks alive."""

from __future__ import annotations

import ssl
import threading
import weakref
from typing import Any, Mapping

import httpx

from ._bearer import Bearer
from ._clock import SECOND, now_ns
from ._endpoints import Endpoints
from ._protocol import LEAST_TIME, Fault, Outcome, Reply, Send, read_reply
from .errors import Invalid

WATCH_SILENCE_S = 45.0


class Settings:
    """How to reach a server; `verify` and `cert` as in httpx."""

    def __init__(self, endpoints: Endpoints, bearer: Bearer, verify: Any, cert: Any) -> None:
        self.endpoints = endpoints
        if verify is True and all(url.startswith("http:") for url in endpoints.urls):
            # Loading the certificates of authorities takes longer than everything else here.
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        elif verify is True:
            verify = ssl.create_default_context()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=16)
        # A proxy of the environment would keep connections and time-outs of its own.
        self.options: dict[str, Any] = {
            "auth": bearer,
            "verify": verify,
            "cert": cert,
            "limits": limits,
            "trust_env": False,
        }


class _Pool:
    """Connections that are closed when they are retired and nobody uses them any more."""

    def __init__(self) -> None:
        self.users = 0
        self.retired = False
        self._guard = threading.Lock()

    def enter(self) -> None:
        with self._guard:
            self.users += 1

    def leave(self) -> bool:
        """Whether it is to be closed now."""
        with self._guard:
            self.users -= 1
            return self.retired and self.users == 0


class _SyncPool(_Pool):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.client = httpx.Client(**settings.options)
        # For a program that does not close its client.
        weakref.finalize(self, self.client.close)


class _AsyncPool(_Pool):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.client = httpx.AsyncClient(**settings.options)


def _fault(url: str, error: Exception) -> Fault:
    why = f"{url}: {type(error).__name__}: {error}".rstrip(": ")
    if not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
        return Fault(why, unknown=True)
    server = "a server with TLS" if url.startswith("https:") else "a server"
    advice = "start one with `palisade serve`, or name another address (PALISADE_URL)"
    return Fault(f"{why}. Is {server} running there? If not, {advice}", unknown=False)


def _timeout(until_ns: int) -> float:
    return max(0.001, (until_ns - now_ns()) / SECOND)


def _request(url: str, send: Send, until_ns: int) -> Mapping[str, Any]:
    return {"method": send.method, "url": url + send.path, "json": send.body, "timeout": _timeout(until_ns)}


class SyncTransport:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pool = _SyncPool(settings)

    def send(self, send: Send) -> Outcome:
        until = now_ns() + send.timeout_ns
        while True:
            url = self.settings.endpoints.current()
            outcome = self._attempt(url, send, until)
            if not isinstance(outcome, Reply) or not self.settings.endpoints.answered(url, outcome):
                return outcome
            if now_ns() + LEAST_TIME >= until:
                return outcome

    def _attempt(self, url: str, send: Send, until: int) -> Outcome:
        pool = self.pool
        if pool.client.is_closed:
            raise Invalid("invalid", "the client is closed")
        pool.enter()
        try:
            answer = pool.client.request(**_request(url, send, until))
            return read_reply(answer.status_code, answer.content)
        except Fault as fault:
            return fault
        except (httpx.HTTPError, OSError) as error:
            self.settings.endpoints.failed(url)
            self._replace(pool)
            return _fault(url, error)
        finally:
            if pool.leave():
                pool.client.close()

    def _replace(self, pool: _SyncPool) -> None:
        if self.pool is pool:
            self.pool = _SyncPool(self.settings)
        pool.retired = True

    def close(self) -> None:
        self.pool.client.close()


class AsyncTransport:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pool = _AsyncPool(settings)

    async def send(self, send: Send) -> Outcome:
        until = now_ns() + send.timeout_ns
        while True:
            url = self.settings.endpoints.current()
            outcome = await self._attempt(url, send, until)
            if not isinstance(outcome, Reply) or not self.settings.endpoints.answered(url, outcome):
                return outcome
            if now_ns() + LEAST_TIME >= until:
                return outcome

    async def _attempt(self, url: str, send: Send, until: int) -> Outcome:
        pool = self.pool
        if pool.client.is_closed:
            raise Invalid("invalid", "the client is closed")
        pool.enter()
        try:
            answer = await pool.client.request(**_request(url, send, until))
            return read_reply(answer.status_code, answer.content)
        except Fault as fault:
            return fault
        except (httpx.HTTPError, OSError) as error:
            self.settings.endpoints.failed(url)
            self._replace(pool)
            return _fault(url, error)
        finally:
            if pool.leave():
                await pool.client.aclose()

    def _replace(self, pool: _AsyncPool) -> None:
        if self.pool is pool:
            self.pool = _AsyncPool(self.settings)
        pool.retired = True

    async def close(self) -> None:
        await self.pool.client.aclose()
