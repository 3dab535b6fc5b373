"""The resources of the fleet and of the how-to pages: real servers on free ports, in temporary folders."""

from __future__ import annotations

import contextlib
import glob
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable

import boto3
import psycopg
import redis


class Servers:
    """What was started ends with `close`, in the opposite order."""

    def __init__(self, palisade: str) -> None:
        self.palisade = palisade
        self.folder = tempfile.mkdtemp(prefix="palisade-fleet-")
        os.chmod(self.folder, 0o755)
        self.ends: list[Callable[[], object]] = [lambda: shutil.rmtree(self.folder, ignore_errors=True)]
        self.postgres, self.redis, self.s3 = "", "", ""
        self.numbers: dict[str, int] = {}

    def close(self) -> None:
        for end in reversed(self.ends):
            end()

    def start(self, command: list[str], end: signal.Signals = signal.SIGTERM, **more: Any) -> subprocess.Popen[Any]:
        process = subprocess.Popen(
            command, stdout=more.pop("stdout", subprocess.DEVNULL), stderr=subprocess.DEVNULL, **more
        )

        def stop() -> None:
            process.send_signal(end)
            process.wait(60)

        self.ends.append(stop)
        return process

    def open(self, store: str, name: str) -> tuple[str, str]:
        """Makes the number `name`, 0, in a store, which is started if it is not running. Returns the addresses for
        holders with a fence and without one."""
        return getattr(self, f"_{store}")(name)

    def _postgres(self, name: str) -> tuple[str, str]:
        if not self.postgres:
            self.start_postgres()
            install = [self.palisade, "fence", "install", "postgres", "--url", self.postgres]
            subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
        with psycopg.connect(self.postgres, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS totals (name text PRIMARY KEY, total bigint)")
            connection.execute("INSERT INTO totals VALUES (%s, 0)", [name])
        return self.postgres, self.postgres

    def start_postgres(self) -> None:
        programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]))
        assert programs, "PostgreSQL is missing: install the Debian package postgresql"
        folder, port = f"{self.folder}/postgres", free_port()
        os.makedirs(folder, mode=0o700)
        # PostgreSQL does not run as root.
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        if user:
            shutil.chown(folder, "postgres", "postgres")
        data = f"{folder}/data"
        initdb = [f"{programs[-1]}/initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"]
        subprocess.run([*user, *initdb], check=True, stdout=subprocess.DEVNULL, cwd="/")
        settings = ["-c", "listen_addresses=127.0.0.1", "-c", f"port={port}", "-k", folder, "-c", "fsync=off"]
        # Fast: with SIGTERM it would wait for clients that are still connected.
        self.start([*user, f"{programs[-1]}/postgres", "-D", data, *settings], signal.SIGINT, cwd="/")
        self.postgres = f"postgres://postgres@127.0.0.1:{port}/postgres"
        until_it_answers(lambda: psycopg.connect(self.postgres).close(), psycopg.OperationalError)

    def _redis(self, name: str) -> tuple[str, str]:
        if not self.redis:
            self.start_redis()
            install = [self.palisade, "fence", "install", "redis", "--url", self.redis]
            subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
        connection = redis.Redis.from_url(self.redis)
        if name.endswith("-claim"):
            # A key that was never written counts as 0; one that code without a token wrote has lost its fence.
            return self.redis, self.redis
        connection.set(f"{{{name}}}:total", 0)
        return self.redis, self.redis

    def start_redis(self) -> None:
        port = free_port()
        self.start(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", self.folder, "--save", ""])
        self.redis = f"redis://127.0.0.1:{port}"
        until_it_answers(redis.Redis.from_url(self.redis).ping, redis.exceptions.ConnectionError)

    def _s3(self, name: str) -> tuple[str, str]:
        if not self.s3:
            self.s3 = f"{self.start_moto('fleet')}/fleet"
        return self.s3, self.s3

    def start_moto(self, bucket: str) -> str:
        """S3, with this bucket, and DynamoDB."""
        port = free_port()
        self.start([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)])
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **keys)
        until_it_answers(lambda: client.create_bucket(Bucket=bucket), Exception)
        return f"http://127.0.0.1:{port}"

    def start_api(self, name: str) -> str:
        """An API that keeps the number `name`."""
        numbers = self.numbers
        numbers[f"/{name}"] = 0

        class Api(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer(str(numbers[self.path]).encode())

            def do_PUT(self) -> None:
                numbers[self.path] = int(self.rfile.read(int(self.headers["Content-Length"])))
                self.answer(b"")

            do_POST = do_PUT

            def answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        api = ThreadingHTTPServer(("127.0.0.1", 0), Api)
        api.daemon_threads = True
        threading.Thread(target=api.serve_forever, daemon=True).start()
        self.ends.append(api.shutdown)
        return f"http://127.0.0.1:{api.server_address[1]}"

    def _http(self, name: str) -> tuple[str, str]:
        url = self.start_api(name)
        command = [self.palisade, "gateway", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--upstream", url]
        gateway = self.start([*command, "--data", f"{self.folder}/{name}"], stdout=subprocess.PIPE, text=True)
        for line in gateway.stdout:
            listening = re.search(r"http://127\.0\.0\.1:\d+", line)
            if listening:
                # A full pipe would stop it.
                threading.Thread(target=gateway.stdout.read, daemon=True).start()
                return listening[0], url
        raise SystemExit("the gateway ended before it listened")


def free_port() -> int:
    """A port below those of outgoing connections, which could take it before the server does."""
    while True:
        port = random.randrange(20_000, 32_768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def until_it_answers(ask: Callable[[], object], not_yet: type[Exception]) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            ask()
        except not_yet:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return
