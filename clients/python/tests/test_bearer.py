"""The file of a bearer token: a token that is replaced there is taken without a restart."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Iterator

import pytest
from suite.servers import Palisade

from palisade import AsyncClient, Client, Invalid
from palisade.jobs import once


class Guarded:
    """Answers a status only to the token that counts now."""

    def __init__(self) -> None:
        self.counts = "pal_one"
        guarded = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                counts = self.headers.get("Authorization") == f"Bearer {guarded.counts}"
                known = dict.fromkeys(("locks", "leases", "waiters"), 0)
                told = {"authority": "a", "incarnation": "b", "version": "0", "next_token": 1, **known}
                refused = {"error": {"code": "unauthenticated", "message": "another token counts"}}
                body = json.dumps(told if counts else refused).encode()
                self.send_response(200 if counts else 401)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Palisade-Nonce", self.headers["Palisade-Nonce"])
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    guarded = Guarded()
    yield guarded
    guarded.http.shutdown()
    guarded.http.server_close()


def replace(file: pathlib.Path, text: str) -> None:
    """As Kubernetes does: the new file takes the old one's place."""
    fresh = file.with_name("fresh")
    fresh.write_text(text)
    os.replace(fresh, file)


def test_a_token_that_is_replaced_in_its_file_is_taken(guarded: Guarded, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "token"
    file.write_text("pal_one\n")
    with Client(guarded.url, token_file=file) as client, Client(guarded.url, token=file.read_text()) as fixed:
        assert (client.status().authority, fixed.status().authority) == ("a", "a")
        replace(file, "pal_two\n")
        guarded.counts = "pal_two"
        assert client.status().authority == "a"
        # A control: a client that does not read the file again is refused.
        with pytest.raises(Invalid) as refused:
            fixed.status()
        assert refused.value.code == "unauthenticated"
        # While the file cannot be used, the last token stays.
        for useless in ("", "two words"):
            replace(file, useless)
            assert client.status().authority == "a"
        file.unlink()
        assert client.status().authority == "a"


def test_asyncio_takes_it_too(guarded: Guarded, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "token"
    file.write_text("pal_one")

    async def run() -> None:
        async with AsyncClient(guarded.url, token_file=str(file)) as client:
            await client.status()
            replace(file, "pal_two")
            guarded.counts = "pal_two"
            await client.status()

    asyncio.run(run())


def test_a_file_without_a_token_is_named(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(Invalid, match=r"token_file cannot be read: .*token"):
        Client(token_file=file)
    file.write_text("a secret of two words")
    with pytest.raises(Invalid, match="printable ASCII") as refused:
        Client(token_file=file)
    assert "secret" not in str(refused.value)
    with pytest.raises(Invalid, match="both given"):
        Client(token="pal_a", token_file=file)
    file.write_text("pal_a")
    with pytest.raises(Invalid, match="https"):
        Client("http://10.0.0.1:1", token_file=file)


def test_a_job_without_the_right_token_does_not_run(binary: str, tmp_path: pathlib.Path) -> None:
    file, ran = tmp_path / "access.toml", []
    own = 'rules = [{ principal = "ci", prefix = "own/", verbs = ["hold"] }]'
    file.write_text(f'[auth]\nprincipals = [{{ name = "ci" }}]\n{own}\n')
    made = [binary, "--json", "auth", "token", "new", "ci", "--access", str(file)]
    token = json.loads(subprocess.run(made, check=True, capture_output=True).stdout)["token"]
    with Palisade(binary, flags=["--access", str(file)]) as server:

        def run(lock: str, token: str | None) -> None:
            with Client(server.url, token=token) as client:
                once(lock, client=client)(lambda: ran.append(lock))()

        run("own/job", token)
        for lock, given, code, said in (
            ("own/job", None, "unauthenticated", "token"),
            ("own/job", "pal_wrong_wrong", "unauthenticated", "token"),
            ("others/job", token, "forbidden", "hold"),
        ):
            with pytest.raises(Invalid, match=said) as refused:
                run(lock, given)
            assert refused.value.code == code
    assert ran == ["own/job"]
