"""Each public function with objects of other kinds: the error names what to pass. Before, they raised an error of the
parts inside, waited for ever, or closed a file of the program."""

from __future__ import annotations

import datetime
import decimal
import os
import pathlib
import uuid
from typing import Any, Callable

import pytest
from suite.servers import Palisade

from palisade import AsyncClient, Client, Grant, Invalid
from palisade.jobs import once

ODD = [True, 1.5, -1, b"x", ["x", 1], {"a": 1}, object(), pathlib.Path("/x"), decimal.Decimal("1.5"), uuid.uuid4()]
ODD += [datetime.timedelta(seconds=1), lambda: 1, AsyncClient("http://127.0.0.1:1"), float("nan")]


def calls(url: str, client: Client, grant: Grant) -> dict[str, Callable[[Any], object]]:
    return {
        "url": Client,
        "token_file": lambda odd: Client(url, token_file=odd),
        "show": client.show,
        "list": lambda odd: list(client.list(odd)),
        "watch": lambda odd: next(client.watch(odd, after=0)),
        "watch after": lambda odd: next(client.watch(after=odd)),
        "break": lambda odd: client.break_lock(odd, 1),
        "break token": lambda odd: client.break_lock("orders", odd),
        "break reason": lambda odd: client.break_lock("orders", 1, odd),
        "resize": lambda odd: client.resize(odd, 1),
        "resize permits": lambda odd: client.resize("semaphore", odd),
        "lock": lambda odd: client.lock(odd, wait=0).acquire(),
        "locks": lambda odd: client.locks("orders", odd, wait=0).acquire(),
        "client_id": lambda odd: client.lock("other", wait=0, client_id=odd).acquire(),
        "metadata": lambda odd: client.lock("other", wait=0, metadata=odd).acquire(),
        "permits": lambda odd: client.lock("other", wait=0, permits=odd).acquire(),
        "part": grant.part,
        "once": once,
        "once client": lambda odd: once("job", client=odd),
    }


def fits(call: str, odd: object) -> bool:
    """Some of the objects are what a function takes."""
    number = type(odd) is int and call in ("watch after", "break token", "resize permits")
    path = isinstance(odd, pathlib.Path) and call == "token_file"
    made = call == "once client" and (callable(odd) or isinstance(odd, AsyncClient))
    return number or path or made or (callable(odd) and call == "once")


def test_the_error_about_an_object_of_another_kind_names_what_to_pass(server: Palisade) -> None:
    with Client(server.url, patience="1s") as client, client.lock("orders", wait=0) as grant:
        for name, call in calls(server.url, client, grant).items():
            for odd in ODD:
                if fits(name, odd):
                    continue
                says = "needed|is not the name of a lock|is not a lock of|must be an integer"
                with pytest.raises((Invalid, TypeError), match=says) as told:
                    call(odd)
                assert "/palisade/" in str(told.traceback[-1].path), f"{name} {odd!r}: {told.value}"
    # A number is a file that is open: this one is open still.
    with pytest.raises(Invalid, match="token_file"), open(os.devnull, encoding="ascii") as file:
        Client(server.url, token_file=file.fileno())  # type: ignore[arg-type]
