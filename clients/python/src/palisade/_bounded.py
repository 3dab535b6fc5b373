"""Connections whose every step ends with the attempt. httpx bounds each read, write and connect by itself, so a peer
that sends a byte now and then, or a name with several silent addresses, could hold an attempt for ever. The look-up of
a name it does not bound."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ipaddress
import socket
import ssl
import threading
from typing import Any, Iterator, Optional

import httpcore
import httpx

from ._cancel import Cancel
from ._clock import SECOND, now_ns
from ._process import Guard, this_process


class _Until(threading.local):
    ns: Optional[int] = None
    cancel: Optional[Cancel] = None


_until = _Until()


@contextlib.contextmanager
def bounded(until_ns: int, cancel: Optional[Cancel] = None) -> Iterator[None]:
    """Ends this thread's work at its connections by then, in this block, or when it is cancelled."""
    before = _until.ns, _until.cancel
    _until.ns, _until.cancel = until_ns, cancel
    try:
        yield
    finally:
        _until.ns, _until.cancel = before


def _left(timeout: Optional[float], over: type[Exception]) -> Optional[float]:
    if _until.ns is None:
        return timeout
    left = (_until.ns - now_ns()) / SECOND
    if left <= 0 or (_until.cancel is not None and _until.cancel.is_set):
        raise over("the time of the attempt is over")
    return left if timeout is None else min(left, timeout)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: Optional[float] = None) -> bytes:
        left = _left(timeout, httpcore.ReadTimeout)
        if _until.cancel is not None:
            _until.cancel.wakes(self._hang_up)
        return self._inner.read(max_bytes, left)

    def _hang_up(self) -> None:
        """Ends a read of another thread, which closing would not. That of `ssl` changes what the reader uses."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.get_extra_info("socket"), socket.SHUT_RDWR)

    def write(self, buffer: bytes, timeout: Optional[float] = None) -> None:
        self._inner.write(buffer, _left(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: Optional[str] = None, timeout: Optional[float] = None
    ) -> httpcore.NetworkStream:
        try:
            left = _left(timeout, httpcore.ConnectTimeout)
        except httpcore.ConnectTimeout:
            self.close()
            raise
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.SyncBackend):
    def connect_tcp(self, host: str, port: int, timeout: Optional[float] = None, *rest: Any, **more: Any) -> _Stream:
        """Each address of a name has a share of the time."""
        addresses = _addresses(host, port, _left(timeout, httpcore.ConnectTimeout))
        for at, address in enumerate(addresses):
            share = _left(timeout, httpcore.ConnectTimeout)
            share = None if share is None else share / (len(addresses) - at)
            try:
                return _Stream(super().connect_tcp(address, port, share, *rest, **more))
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if at + 1 == len(addresses):
                    raise
        raise httpcore.ConnectError(f"{host} has no address")


_Name = tuple[tuple[int, int], str, int]


class _Lookups:
    """Looks names up, each once at a time: `getaddrinfo` has no time-out, and cannot be ended. Where name servers are
    silent, it lasts for half a minute."""

    def __init__(self) -> None:
        self._guard = Guard()
        # Those of the process that this one was forked from have no thread here.
        self._running: dict[_Name, concurrent.futures.Future[list[Any]]] = {}

    def look_up(self, host: str, port: int, seconds: Optional[float]) -> list[Any]:
        """Gives up after this time; the next caller waits for the same look-up."""
        key = this_process(), host, port
        with self._guard:
            running = self._running.get(key)
            if running is None:
                running = self._running[key] = concurrent.futures.Future()
                thread = threading.Thread(target=self._run, args=(key, running), name=f"palisade: {host}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # there are none while the interpreter ends
                    self._run(key, running)
        concurrent.futures.wait([running], seconds)
        if not running.done():
            raise httpcore.ConnectTimeout(f"the name {host!r} was not looked up in time")
        return running.result()

    def _run(self, key: _Name, running: concurrent.futures.Future[list[Any]]) -> None:
        _, host, port = key
        try:
            running.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:
            running.set_exception(error)
        finally:
            self._running.pop(key, None)


_LOOKUPS = _Lookups()


def _addresses(host: str, port: int, seconds: Optional[float]) -> list[str]:
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(host))]
    try:
        found = _LOOKUPS.look_up(host, port, seconds)
    # An error of encoding: the name has a part that is empty or too long.
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(str(error)) from error
    return list(dict.fromkeys(str(one[4][0]) for one in found))


class Transport(httpx.HTTPTransport):
    """As httpx makes it, with these connections."""

    def __init__(self, verify: ssl.SSLContext, limits: httpx.Limits) -> None:
        super().__init__(verify=verify, limits=limits, trust_env=False)
        self._pool.close()
        self._pool = httpcore.ConnectionPool(
            ssl_context=verify,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=_Backend(),
        )
