"""Certificates that are replaced while a client runs: real servers with TLS, of one CA and then of another."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Iterator, Sequence

import pytest
from suite.servers import Palisade

from palisade import AsyncClient, Client, Invalid, PalisadeError


class Files:
    """The files of a client, and the CAs that they come from."""

    def __init__(self, folder: pathlib.Path, binary: str) -> None:
        self.folder, self.binary = folder, binary
        self.ca, self.certificate, self.key = (folder / name for name in ("ca.pem", "me.pem", "me.key"))

    def authority(self, name: str) -> pathlib.Path:
        """A CA with a certificate for a server and one for the client."""
        made = self.folder / name
        for subject in ("127.0.0.1", "me"):
            command = [self.binary, "auth", "cert", "--dir", str(made), subject]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return made

    def take(self, authority: pathlib.Path, *files: str) -> None:
        """As Kubernetes does: the new file takes the old one's place."""
        for file in files or ("ca.pem", "me.pem", "me.key"):
            fresh = self.folder / "fresh"
            shutil.copy(authority / file, fresh)
            os.replace(fresh, self.folder / file)


@pytest.fixture
def files(tmp_path: pathlib.Path, binary: str) -> Files:
    return Files(tmp_path, binary)


@pytest.fixture
def fleet(files: Files, binary: str) -> Iterator[list[Palisade]]:
    """Two servers of the CA `old`, and one of the CA `new`. The client's files are of the old one."""
    servers: list[Palisade] = []
    old, new = files.authority("old"), files.authority("new")
    try:
        for ca in (old, old, new):
            own = ["--tls-cert", f"{ca}/127.0.0.1.pem", "--tls-key", f"{ca}/127.0.0.1.key"]
            servers.append(Palisade(binary, flags=[*own, "--tls-client-ca", f"{ca}/ca.pem"]))
        files.take(old)
        yield servers
    finally:
        for server in servers:
            server.stop()


def urls(fleet: Sequence[Palisade]) -> list[str]:
    return [server.url for server in fleet]


def test_a_new_connection_has_what_is_in_the_files(files: Files, fleet: list[Palisade]) -> None:
    pair = files.certificate, files.key
    once = ssl.create_default_context(cafile=files.ca)
    once.load_cert_chain(*pair)
    with (
        Client(urls(fleet), verify=files.ca, cert=pair) as client,
        Client(urls(fleet), verify=once, patience="1s") as reads_once,
    ):
        assert client.status().authority == reads_once.status().authority
        # One of two files is replaced: the old pair stays in use.
        files.take(files.folder / "new", "me.pem")
        fleet[0].stop()
        second = client.status().authority
        assert second == reads_once.status().authority
        files.take(files.folder / "new", "me.key", "ca.pem")
        fleet[1].stop()
        assert client.status().authority != second
        # A control: a client that reads its files once is refused, and trusts nobody there.
        with pytest.raises(PalisadeError):
            reads_once.status()


def test_a_context_of_the_callers_own_gets_the_new_certificate(files: Files, fleet: list[Palisade]) -> None:
    trusts_both = ssl.create_default_context(cafile=files.folder / "old" / "ca.pem")
    trusts_both.load_verify_locations(files.folder / "new" / "ca.pem")
    with Client(urls(fleet), verify=trusts_both, cert=[files.certificate, str(files.key)]) as client:
        client.status()
        files.take(files.folder / "new", "me.pem")
        fleet[0].stop()
        client.status()
        files.take(files.folder / "new", "me.key")
        fleet[1].stop()
        client.status()


def test_asyncio_has_them_too(files: Files, fleet: list[Palisade]) -> None:
    async def run() -> None:
        async with AsyncClient(urls(fleet), verify=str(files.ca), cert=(files.certificate, files.key)) as client:
            async with client.lock("orders") as grant:
                grant.check()
            files.take(files.folder / "new")
            fleet[0].stop()
            fleet[1].stop()
            async with client.lock("orders") as grant:
                grant.check()

    asyncio.run(run())


class Forgetful:
    """With TLS. After its first answers it does not know a connection's client any more: its certificate is over."""

    def __init__(self, ca: pathlib.Path, knows: int) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            answered = 0

            def do_GET(self) -> None:
                asked.append(self.path)
                known = self.answered < knows
                self.answered += 1
                told: dict[str, Any] = dict.fromkeys(("locks", "leases", "waiters"), 0)
                told.update(authority="a", incarnation="b", version="0", next_token=1)
                refused = {"error": {"code": "unauthenticated", "message": "the client certificate has expired"}}
                body = json.dumps(told if known else refused).encode()
                self.send_response(200 if known else 401)
                self.send_header("Palisade-Nonce", self.headers["Palisade-Nonce"])
                if known and self.path.startswith("/v1/watch"):
                    body = b'id: 7\nevent: missed\ndata: {"missed": 2}\n\n'
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(ca / "127.0.0.1.pem", ca / "127.0.0.1.key")
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()


def test_a_connection_whose_certificate_is_over_is_replaced(files: Files) -> None:
    ca = files.authority("old")
    server, stranger = Forgetful(ca, knows=1), Forgetful(ca, knows=0)
    verify = ca / "ca.pem"

    async def run() -> None:
        async with AsyncClient(server.url, verify=verify) as client:
            await client.status()
            await client.status()
            async for event in client.watch():
                assert event.kind == "missed"
                break

    try:
        with Client(server.url, verify=verify) as client:
            client.status()
            client.status()
            assert next(client.watch()).kind == "missed"
        assert server.asked == ["/v1/status"] * 3 + ["/v1/watch?prefix="] * 2
        asyncio.run(run())
        # A control: a caller that is unknown on a new connection, too, gets the error after one more attempt.
        with Client(stranger.url, verify=verify) as client, pytest.raises(Invalid, match="expired") as refused:
            client.status()
        assert refused.value.code == "unauthenticated"
        assert stranger.asked == ["/v1/status"] * 2
        with Client(stranger.url, verify=verify) as client, pytest.raises(Invalid, match="expired"):
            next(client.watch())
    finally:
        server.stop()
        stranger.stop()


def test_files_that_cannot_be_used_are_named(files: Files) -> None:
    files.take(files.authority("old"))
    nobody = files.folder / "nobody.pem"
    with pytest.raises(Invalid, match=r"verify and cert cannot be used .*nobody\.pem"):
        Client("https://a", verify=nobody)
    with pytest.raises(Invalid, match=r"cannot be used .*ca\.pem, .*me\.key"):
        Client("https://a", cert=(files.ca, files.key))
    with pytest.raises(Invalid, match="verify is None: True, a file of CAs"):
        Client("https://a", verify=None)
    for cert in (5, (), (files.ca, 5), (files.ca, files.key, "password", "more")):
        with pytest.raises(Invalid, match="cert is a .*: a file in PEM is needed"):
            Client("https://a", cert=cert)
