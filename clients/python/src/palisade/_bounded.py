"""Connections whose every step ends with the attempt. httpx bounds each read, write and connect by itself, so a peer
that sends a byte now and then, or a name with several silent addresses, could hold an attempt for ever."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import Any, Iterator, Optional

import httpcore
import httpx

from ._clock import SECOND, now_ns


class _Until(threading.local):
    ns: Optional[int] = None


_until = _Until()


@contextlib.contextmanager
def bounded(until_ns: int) -> Iterator[None]:
    """Ends this thread's work at its connections by then, in this block."""
    before, _until.ns = _until.ns, until_ns
    try:
        yield
    finally:
        _until.ns = before


def _left(timeout: Optional[float], over: type[Exception]) -> Optional[float]:
    if _until.ns is None:
        return timeout
    left = (_until.ns - now_ns()) / SECOND
    if left <= 0:
        raise over("the time of the attempt is over")
    return left if timeout is None else min(left, timeout)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: Optional[float] = None) -> bytes:
        return self._inner.read(max_bytes, _left(timeout, httpcore.ReadTimeout))

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
        addresses = _addresses(host, port)
        for at, address in enumerate(addresses):
            share = _left(timeout, httpcore.ConnectTimeout)
            share = None if share is None else share / (len(addresses) - at)
            try:
                return _Stream(super().connect_tcp(address, port, share, *rest, **more))
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if at + 1 == len(addresses):
                    raise
        raise httpcore.ConnectError(f"{host} has no address")


def _addresses(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore.ConnectError(str(error)) from error
    names = list(dict.fromkeys(str(one[4][0]) for one in found))
    # One address may have a zone, which only the name has.
    return names if len(names) > 1 else [host]


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
