"""A test that takes `served` runs against the program, so that what it shows is true, and against the double, so that
this does the same."""

from __future__ import annotations

import abc
import os
import signal
from typing import Any

from suite.servers import Palisade

from palisade import AsyncClient, Client, LockInfo
from palisade.testing import MemoryServer


class Served(abc.ABC):
    """A server, and clients of it."""

    @abc.abstractmethod
    def client(self, **options: Any) -> Client: ...

    @abc.abstractmethod
    def async_client(self, **options: Any) -> AsyncClient: ...

    def show(self, name: str) -> LockInfo:
        with self.client() as client:
            return client.show(name)

    @abc.abstractmethod
    def stop(self) -> None:
        """From now on it answers nothing, until `resume`."""

    @abc.abstractmethod
    def resume(self) -> None: ...


class Program(Served):
    def __init__(self, server: Palisade) -> None:
        self.server = server

    def client(self, **options: Any) -> Client:
        return Client(self.server.url, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        return AsyncClient(self.server.url, **options)

    def stop(self) -> None:
        os.kill(self.server.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.server.process.pid, signal.SIGCONT)


class Double(Served):
    def __init__(self) -> None:
        self.server = MemoryServer()

    def client(self, **options: Any) -> Client:
        return self.server.client(**options)

    def async_client(self, **options: Any) -> AsyncClient:
        return self.server.async_client(**options)

    def stop(self) -> None:
        self.server.stall()

    def resume(self) -> None:
        self.server.up()
