"""Several addresses of which some do not answer, and where a client finds them."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import socket
import threading
import time
from typing import Any, Iterator

import pytest
from suite.servers import Palisade

from palisade import AsyncClient, Client, Invalid, PalisadeError, Unavailable, UnknownOutcome
from palisade._clock import SECOND, now_ns
from palisade._endpoints import Endpoints
from palisade._protocol import Backoff, Fault


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """Accepts, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def answering(status: int, headers: dict[str, str], body: bytes) -> Iterator[str]:
    """Not a Palisade server."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("count", [1, 2])
def test_silent_addresses_leave_time_for_the_next_one(server: Palisade, count: int) -> None:
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(silent()) for _ in range(count)]

        def gives_up() -> None:
            """With nobody else there, when the wait and the patience are over."""
            with Client(urls, patience="4s") as client, contextlib.suppress(PalisadeError):
                try:
                    client.lock("orders", wait="3s").acquire()
                finally:
                    gave_up.set()

        gave_up = threading.Event()
        threading.Thread(target=gives_up, daemon=True).start()
        with Client([*urls, server.url], patience="4s") as client:
            with client.lock("orders", wait="3s"):
                assert not gave_up.is_set(), "granted after the control gave up"
            assert client.show("orders").holder is None
        # The control of the watch: with nobody else there a call ends by itself.
        begin = time.monotonic()
        with Client(urls, patience="1s") as client, pytest.raises(UnknownOutcome):
            client.lock("orders", wait=0).acquire()
        alone = time.monotonic() - begin
        with Client([urls[0], server.url], patience="1s") as client:
            begin = time.monotonic()
            assert next(client.watch("orders", after=0)).kind == "granted"
            assert time.monotonic() - begin < 10 * alone


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (301, {"Location": "https://elsewhere.example"}, "elsewhere.example.*not followed"),
        (502, {}, "is there a proxy"),
        (200, {"Palisade-Nonce": "another"}, "another request's"),
    ],
)
def test_what_is_not_a_palisade_server_is_named_and_the_next_address_asked(
    server: Palisade, status: int, headers: dict[str, str], says: str
) -> None:
    with answering(status, headers, b'{"resource_id": "orders", "released": true}') as url:
        with Client([url, server.url]) as client, client.lock("orders", wait=0):
            pass
        with Client(url, patience="1s") as client, pytest.raises(UnknownOutcome, match=says):
            client.lock("orders", wait=0).acquire()


@pytest.mark.parametrize(
    ("environment", "urls"),
    [
        ({}, ["http://127.0.0.1:7420"]),
        ({"PALISADE_AUTHORITY": "http://a:1,http://b:2"}, ["http://a:1", "http://b:2"]),
        ({"PALISADE_AUTHORITY": "https://a:1,b:2"}, ["https://a:1", "https://b:2"]),
        ({"PALISADE_AUTHORITY": "palisade://a,palisade://b:2"}, ["http://a:7420", "http://b:2"]),
        ({"PALISADE_AUTHORITY": "etcd://a:1", "PALISADE_URL": "http://b:2"}, ["http://b:2"]),
    ],
)
def test_addresses_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], urls: list[str]
) -> None:
    for name in ("PALISADE_URL", "PALISADE_AUTHORITY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Endpoints(None).urls == urls


def test_an_address_that_no_request_can_have_is_refused_at_once() -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        Client("http://\u2603:7420")


@pytest.mark.parametrize("authority", ["etcd://user:secret@a:2379", "unix:/run/palisade.sock", "a:1"])
def test_an_authority_of_another_kind_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, authority: str
) -> None:
    monkeypatch.delenv("PALISADE_URL", raising=False)
    monkeypatch.setenv("PALISADE_AUTHORITY", authority)
    with pytest.raises(Invalid, match="PALISADE_AUTHORITY.*PALISADE_URL") as refused:
        Client()
    assert "secret" not in str(refused.value)


def test_a_block_whose_lock_is_lost_is_left_at_once(binary: str) -> None:
    with Palisade(binary) as server:
        client = Client(server.url, patience="3s")
        with client.lock("orders", ttl="500ms") as grant:
            server.stop()
            assert grant.lost.wait(30)
            left = time.monotonic()
        took = time.monotonic() - left
        # The control: a call that waits for an answer asks until its patience ends.
        begin = time.monotonic()
        with pytest.raises(PalisadeError):
            client.show("orders")
        assert took < (time.monotonic() - begin) / 2


@contextlib.contextmanager
def trickling() -> Iterator[str]:
    """Begins an answer, and sends a byte of it now and then: none of its pieces is late."""

    def trickle(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n")
            while True:
                connection.sendall(b"X: y\r\n")
                time.sleep(0.1)  # real time: each piece comes before a read gives up

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=trickle, args=[listener.accept()[0]], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_answer_that_never_ends_leaves_time_for_the_next_address(server: Palisade) -> None:
    with trickling() as bad:
        with Client([bad, server.url], patience="3s") as client, client.lock("orders", wait=0) as grant:
            assert grant.held
        seen = threading.Event()

        def changes() -> None:
            with Client(server.url) as other:
                while not seen.wait(0.1):  # until the watch is open
                    other.lock("watched", wait="5s").acquire().release()

        changing = threading.Thread(target=changes)
        changing.start()
        with Client([bad, server.url], patience="3s") as client:
            assert next(client.watch("watched")) is not None
        seen.set()
        changing.join()

        async def waits() -> int:
            async with AsyncClient([bad, server.url], patience="3s") as client, client.lock("other", wait=0) as grant:
                return grant.token

        assert asyncio.run(waits()) > 0
        # The control: with nobody else there the call ends by itself.
        with Client(bad, patience="1s") as client, pytest.raises(UnknownOutcome, match="Timeout"):
            client.lock("orders", wait=0).acquire()


def test_a_name_with_a_silent_address_leaves_time_for_its_other_ones(
    server: Palisade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: httpx gives the silent one the whole time of the attempt."""
    with socket.create_server(("127.0.0.2", server.port), backlog=0) as listener, contextlib.ExitStack() as stack:
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())

        def both(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
            kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
            return [(*kind, (each, port)) for each in (["127.0.0.2", "127.0.0.1"] if host == "localhost" else [host])]

        monkeypatch.setattr(socket, "getaddrinfo", both)

        def takes() -> float:
            begin = time.monotonic()
            with (
                Client(f"http://localhost:{server.port}", patience="8s") as client,
                client.lock("named", wait=0) as grant,
            ):
                assert grant.held
                return time.monotonic() - begin

        shared = takes()
        monkeypatch.setattr("palisade._transport.Transport", lambda *_: None)
        assert shared < takes()


def test_a_name_that_is_not_looked_up_in_time_leaves_time_for_the_next_address(
    server: Palisade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: `getaddrinfo` in the thread that asks, which has no time left for the next address."""
    look_up, ended, asked = socket.getaddrinfo, threading.Event(), []

    def waits(host: Any, *rest: Any, **more: Any) -> Any:
        if host == "silent.example":
            asked.append(host)
            assert ended.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")
        return look_up(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", waits)

    def takes() -> None:
        urls = ["http://silent.example:1", server.url]
        with Client(urls, patience="3s") as client, client.lock("named", wait=0) as grant:
            assert grant.held

    takes()
    with (
        Client("http://silent.example:1", patience="2s") as client,
        pytest.raises(Unavailable, match="was not looked up in time"),
    ):
        client.lock("named", wait=0).acquire()
    assert len(asked) == 1, "an attempt looks up again what is being looked up"
    ended.set()
    with Client("http://silent.example:1", patience="5s") as client, pytest.raises(Unavailable, match="no name server"):
        client.lock("named", wait=0).acquire()
    ended.clear()
    monkeypatch.setattr("palisade._transport.Transport", lambda *_: None)
    timer = threading.Timer(4, ended.set)  # real time: longer than the client's patience
    timer.start()
    with pytest.raises(Unavailable, match="no name server"):
        takes()
    timer.join()


@pytest.mark.parametrize("unknown", [False, True])
def test_a_silent_attempt_does_not_hide_what_another_one_heard(unknown: bool) -> None:
    """The last attempt of a call has the least time, and may get none at all on a busy machine."""

    def says(*faults: Fault) -> str:
        backoff = Backoff(now_ns() + 3600 * SECOND)
        for fault in faults[:-1]:
            backoff.after(fault)
        backoff._until = 0
        with pytest.raises(UnknownOutcome if unknown else Unavailable) as raised:
            backoff.after(faults[-1])
        return str(raised.value)

    heard = [Fault("heard first", unknown), Fault("heard last", unknown)]
    silent = [Fault("silent first", unknown, silent=True), Fault("silent last", unknown, silent=True)]
    assert "heard last" in says(*heard)
    assert "silent first" in says(*silent)
    assert "heard first" in says(heard[0], *silent)
    assert "heard last" in says(*silent, heard[1])
    # An unknown outcome outweighs a certain failure.
    assert ("silent first" if unknown else "heard first") in says(silent[0], Fault("heard first", unknown=False))
