"""Answers that are not of the form that was asked for: an unknown outcome, so the client asks again, and no call raises
an error of its own parts. The control is each call without the second, right answer."""

from __future__ import annotations

import json
import socket
from typing import Any, Callable, Iterator, Optional, Union

import pytest
from suite.scripted import Reply, Request, Scripted
from suite.servers import Palisade

from palisade import Client, Event, LockHeld, UnknownOutcome
from palisade._sse import Position

DEEP = b"[" * 100_000
Lie = Union[bytes, Callable[[dict[str, Any]], dict[str, Any]]]


@pytest.fixture
def scripted(server: Palisade) -> Iterator[Scripted]:
    scripted = Scripted((server.host, server.port))
    yield scripted
    scripted.close()


def holder(**fields: Any) -> Lie:
    return lambda answer: {**answer, "holder": {**answer["holder"], **fields}}


def acquires(client: Client) -> None:
    with pytest.raises(LockHeld) as held:
        client.lock("orders", wait=0).acquire()
    assert held.value.holder is not None and held.value.holder.client_id == "first"


def shows(client: Client) -> None:
    shown = client.show("orders").holder
    assert shown is not None and shown.client_id == "first"


def lists(client: Client) -> None:
    assert [each.lock for each in client.list("ord")] == ["orders"]


def asks_for_status(client: Client) -> None:
    assert client.status().locks == 1


@pytest.mark.parametrize(
    ("call", "status", "lie"),
    [
        (acquires, 409, DEEP),
        (acquires, 409, holder(remaining_ms="soon")),
        (acquires, 409, holder(client_id=None)),
        (acquires, 409, lambda answer: {**answer, "error": {**answer["error"], "retry_after_ms": "soon"}}),
        (shows, 200, DEEP),
        (shows, 200, lambda answer: {**answer, "resource_id": "other"}),
        (shows, 200, lambda answer: {**answer, "holder": []}),
        (shows, 200, lambda answer: {**answer, "readers": None}),
        (shows, 200, lambda answer: {**answer, "waiters": "none"}),
        (lists, 200, b"{}"),
        (lists, 200, lambda answer: {**answer, "locks": [None]}),
        (lists, 200, lambda answer: {**answer, "next_cursor": 1}),
        (asks_for_status, 200, b"{}"),
    ],
)
def test_an_answer_of_another_form_is_an_unknown_outcome(
    server: Palisade, scripted: Scripted, call: Callable[[Client], None], status: int, lie: Lie
) -> None:
    with Client(server.url) as other, other.lock("orders", client_id="first"):
        lies = 1

        def answer(request: Request) -> Any:
            nonlocal lies
            if lies == 0:
                return None
            lies -= 1
            if isinstance(lie, bytes):
                return Reply(status, lie)
            text = json.dumps(request.body).encode() if request.body else b""
            return Reply(status, lie(scripted.forward(request, text)[1]))

        scripted.decide = answer
        with Client(scripted.url) as client:
            call(client)
            assert len(scripted.requests) == 2, "the lie was not asked again"
        lies = 1_000
        with Client(scripted.url, patience="200ms") as client, pytest.raises(UnknownOutcome):
            call(client)


@pytest.mark.parametrize("time", [None, "2026-05-23T10:00:00.000Z"])
def test_an_event_has_the_time_that_the_server_says(time: Optional[str]) -> None:
    position = Position("", None)
    data = {"resource_id": "orders", "client_id": "a", "fencing_token": 7, **({"time": time} if time else {})}
    for line in ("event: expired", "id: 9", f"data: {json.dumps(data)}"):
        position.line(line)
    assert position.line("") == Event("expired", 9, "orders", "a", 7, time=time)


@pytest.mark.parametrize("data", ["[]", "3", "null", '"text"', "{}", "[" * 100_000])
@pytest.mark.parametrize("revision", ["\u00b2", "9" * 5_000, "-1", "5"])
def test_an_event_of_another_form_is_left_out(data: str, revision: str) -> None:
    position = Position("", None)
    for line in ("event: granted", f"id: {revision}", f"data: {data}"):
        assert position.line(line) is None
    assert position.line("") is None
    assert position.after == (5 if revision == "5" else None)


def test_half_a_request_asks_nothing_of_the_scripted_server(scripted: Scripted) -> None:
    """As from a listen that is ended while it is sent. The control is the whole of it."""
    text = b'{"grants": []}'
    for sent in (b"", text[:5], text):
        with socket.create_connection(("127.0.0.1", scripted.http.server_address[1]), timeout=30) as connection:
            connection.sendall(b"POST /v1/listen HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(text), sent))
            connection.shutdown(socket.SHUT_WR)
            assert bool(connection.recv(1)) == (sent == text)
    assert [request.body for request in scripted.of("listen")] == [{"grants": []}]
