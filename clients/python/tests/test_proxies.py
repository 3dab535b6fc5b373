"""Through nginx and haproxy with the settings that they have by default."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import shutil
import socket
import subprocess
import threading
import time
from typing import Any, Iterator, Optional

import pytest
from conftest import ROOT, _free_port
from suite.servers import Palisade

from palisade import Client, Event, UnknownOutcome, _listen
from palisade._protocol import Reply

NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1; events {{}}
http {{
  access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{upstream}; {quiet} }}
  {more}
  }}
}}
"""
# Debian's defaults, but for what ends a quiet connection: 2 s in place of 50.
HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client {quiet}s
  timeout server {quiet}s
frontend in
  bind 127.0.0.1:{port}
  default_backend locks
backend locks
  {more}
  server one 127.0.0.1:{upstream}
"""


def _program(name: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin")
    assert found, f"{name} is missing: install the Debian package {name}"
    return found


@contextlib.contextmanager
def proxy(kind: str, folder: pathlib.Path, upstream: int, quiet: Optional[int] = None, more: str = "") -> Iterator[str]:
    """The address of a proxy in front of a server on this port. It ends requests that are silent for `quiet` seconds.
    `more` are lines of other-programs.md."""
    port, file = _free_port(), folder / f"{kind}.conf"
    if kind == "nginx":
        text, ends = NGINX, f"proxy_read_timeout {quiet}s;" if quiet else ""
    else:
        text, ends = HAPROXY, str(quiet or 2)
    more = more.replace(":7420", f":{upstream}")
    file.write_text(text.format(folder=folder, port=port, upstream=upstream, quiet=ends, more=more))
    command = [_program("nginx"), "-c", str(file)] if kind == "nginx" else [_program("haproxy"), "-f", str(file)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 30
        while True:
            assert process.poll() is None, f"{kind} ended with {process.returncode}"
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                assert time.monotonic() < end, f"{kind} does not listen"
                time.sleep(0.02)  # real time: asked again, up to a deadline
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def cuts(url: str) -> bool:
    """Whether a request that waits in one piece gets no answer of the server."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    wish = {"client_id": "c", "lease_duration_ms": 10_000, "wait_ms": 60_000}
    try:
        connection.request("POST", "/v1/locks/cut/acquire", json.dumps(wish), {"Content-Type": "application/json"})
        return connection.getresponse().status >= 500
    except (http.client.HTTPException, ConnectionError):
        return True
    finally:
        connection.close()


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_a_lock_is_waited_for_and_held_through_a_proxy(server: Palisade, tmp_path: pathlib.Path, kind: str) -> None:
    with proxy(kind, tmp_path, server.port) as url, Client(url) as behind, Client(server.url) as direct:
        first = direct.lock("orders", ttl="30s").acquire()
        order: list[str] = []

        def wait(name: str, client: Client) -> None:
            with client.lock("orders", ttl="2s", wait="60s", client_id=name) as grant:
                order.append(name)
                # Longer than the lease lasts without renewal.
                assert not grant.lost.wait(3)

        waiters = []
        for number, (name, client) in enumerate([("behind", behind), ("direct", direct)]):
            waiters.append(threading.Thread(target=wait, args=(name, client)))
            waiters[-1].start()
            end = time.monotonic() + 30
            while server.show("orders")["waiters"] != number + 1:
                assert time.monotonic() < end
                time.sleep(0.02)  # real time: asked again, up to a deadline
        if kind == "haproxy":
            # The control: in the time that they wait, the proxy cuts two requests that wait without a sign of life.
            with direct.lock("cut"):
                assert cuts(url)
                assert cuts(url)
        first.release()
        for waiter in waiters:
            waiter.join()
        assert order == ["behind", "direct"]


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_a_watch_delivers_through_a_proxy(server: Palisade, tmp_path: pathlib.Path, kind: str) -> None:
    with proxy(kind, tmp_path, server.port) as url, Client(url) as behind, Client(server.url) as direct:
        seen: list[Event] = []
        arrived = threading.Event()

        def watch() -> None:
            for event in behind.watch("w"):
                seen.append(event)
                if event.lock == "w/last":
                    arrived.set()
                    return

        threading.Thread(target=watch, daemon=True).start()
        end = time.monotonic() + 30
        while not arrived.is_set():
            assert time.monotonic() < end, f"of the watch only {seen} arrived"
            with direct.lock("w/last"):
                arrived.wait(0.2)


def advised(kind: str) -> str:
    """The line of other-programs.md for listens."""
    lines = (ROOT / "docs" / "operate" / "other-programs.md").read_text().splitlines()
    (line,) = [line for line in lines if line.endswith((f"# {kind}", f"# {kind}, in the backend"))]
    return line


# The usual times are longer than any listen; shorter ones end it, unless the proxy has the line for it.
@pytest.mark.parametrize("time_out", ["usual", "short", "advised"])
@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_a_notice_arrives_through_a_proxy(
    server: Palisade, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str, time_out: str
) -> None:
    """Where listens are cut, they become shorter until they fit. The control has no notices: it would hear of the break
    from its renewal."""
    fits, cut, after = threading.Event(), threading.Event(), _listen._Pace.after

    def seen(pace: Any, outcome: Any, has_news: Any, took_ns: int, was_interrupted: bool) -> int:
        is_answer = isinstance(outcome, Reply) and outcome.status == 200
        if not was_interrupted:
            (fits if is_answer else cut).set()
        return after(pace, outcome, has_news, took_ns, was_interrupted)

    monkeypatch.setattr(_listen._Pace, "after", seen)
    quiet = {"nginx": 60, "haproxy": 50}[kind] if time_out == "usual" else 3
    with (
        proxy(kind, tmp_path, server.port, quiet, advised(kind) if time_out == "advised" else "") as url,
        Client(url) as behind,
        Client(url, notices=False) as deaf,
        Client(server.url) as direct,
    ):
        control = deaf.lock("control", ttl="5m").acquire()
        held = behind.lock("orders", ttl="5m").acquire()
        if time_out == "short":
            assert fits.wait(60) and cut.is_set()
        # real time: it listens by now, and a proxy without the line would have ended that
        time.sleep(2 * quiet if time_out == "advised" else 0.5)
        direct.break_lock("control", control.token, "maintenance")
        began = time.monotonic()
        direct.break_lock("orders", held.token, "maintenance")
        assert held.lost.wait(30)
        print(f"{kind}, {time_out}: heard after {time.monotonic() - began:.3f} s")
        assert not control.lost.is_set(), "the control"
        assert cut.is_set() == (time_out == "short")


def test_a_proxy_without_a_server_behind_it_is_named(tmp_path: pathlib.Path) -> None:
    says = r"status 502.*is there a proxy in between"
    unknown = pytest.raises(UnknownOutcome, match=says)
    with proxy("nginx", tmp_path, 1) as url, Client(url, patience="2s") as client, unknown:
        client.lock("orders", wait=0).acquire()
