"""A TCP relay between a client and a server, which holds back, cuts and refuses; it knows no protocol."""

from __future__ import annotations

import socket
import threading
from typing import Optional

from .clock import now_ms

FORTH, BACK = "forth", "back"


class Link:
    """One relayed connection."""

    def __init__(self, relay: Relay, near: socket.socket, far: socket.socket) -> None:
        self.relay, self.near, self.far = relay, near, far
        # A frozen connection delivers nothing any more, in neither direction, and stays open.
        self.frozen = False

    def start(self) -> None:
        for source, sink, way in ((self.near, self.far, FORTH), (self.far, self.near, BACK)):
            threading.Thread(target=self._pump, args=(source, sink, way), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(65536):
                self.relay.saw(way)
                self.relay.wait_open(self, way)
                sink.sendall(data)
        except OSError:
            pass
        self.cut()

    def cut(self) -> None:
        for end in (self.near, self.far):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()


class Relay:
    """Listens on a free port of 127.0.0.1. It delivers held-back data, in order, when it is opened."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.server = server
        self.changed = threading.Condition()
        self.held: set[str] = set()
        self.refusing = False
        self.links: list[Link] = []
        # When bytes were read, for each direction.
        self.times: dict[str, list[float]] = {FORTH: [], BACK: []}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if self.refusing:
                near.close()
                continue
            try:
                far = socket.create_connection(self.server)
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(self, near, far)
            with self.changed:
                # Before the first byte is relayed: `cut` must find every connection that has carried one.
                self.links.append(link)
                refused = self.refusing
            if refused:
                link.cut()
            else:
                link.start()

    def saw(self, way: str) -> None:
        with self.changed:
            self.times[way].append(now_ms())
            self.changed.notify_all()

    def wait_open(self, link: Link, way: str) -> None:
        with self.changed:
            self.changed.wait_for(lambda: way not in self.held and not link.frozen)

    def hold(self, way: str) -> None:
        with self.changed:
            self.held.add(way)

    def open(self, way: Optional[str] = None) -> None:
        with self.changed:
            self.held -= {way} if way else {FORTH, BACK}
            self.changed.notify_all()

    def freeze(self) -> None:
        """The connections that are open now deliver nothing any more; new ones work."""
        for link in self.links:
            link.frozen = True

    def cut(self, refuse: bool = False) -> None:
        """Ends every connection; with `refuse`, new ones too until `accept_again`."""
        with self.changed:
            self.refusing = refuse
            links, self.links = self.links, []
        for link in links:
            link.cut()

    def accept_again(self) -> None:
        self.refusing = False

    def next_bytes(self, way: str, after: float, timeout_s: float = 10.0) -> Optional[float]:
        """When the first bytes after the instant `after` were seen."""

        def first() -> Optional[float]:
            return next((at for at in self.times[way] if at > after), None)

        with self.changed:
            self.changed.wait_for(lambda: first() is not None, timeout_s)
            return first()

    def last_sent(self) -> float:
        """When the client last sent anything."""
        return self.times[FORTH][-1]

    def bursts(self, after: float, apart_ms: float = 60.0) -> list[float]:
        """The times at which the client sent; packets sent close together count once."""
        found: list[float] = []
        last = after
        for at in self.times[FORTH]:
            if at > after and (not found or at - last > apart_ms):
                found.append(at)
            last = at
        return found

    def close(self) -> None:
        self.listener.close()
        self.open()
        for link in self.links:
            link.frozen = False
        self.open()
        self.cut(refuse=True)
