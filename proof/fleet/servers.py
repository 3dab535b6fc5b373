"""The resources of the fleet and of the how-to pages: real servers on free ports, in temporary folders."""

from __future__ import annotations

import contextlib
import getpass
import glob
import os
import pathlib
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

KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
#: moto itself checks a condition and changes the item in two steps.
ONE_AT_A_TIME = str(
    pathlib.Path(__file__).resolve().parents[2] / "proof" / "palisade-testbed" / "src" / "moto_one_at_a_time.py"
)


class Servers:
    """Starts servers; `close` ends them in the opposite order."""

    def __init__(self, palisade: str) -> None:
        self.palisade = palisade
        self.folder = tempfile.mkdtemp(prefix="palisade-fleet-")
        os.chmod(self.folder, 0o755)
        self.ends: list[Callable[[], object]] = [lambda: shutil.rmtree(self.folder, ignore_errors=True)]
        self.postgres, self.redis, self.moto = "", "", ""
        self.addresses: dict[str, str] = {}
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

    def _mysql(self, name: str) -> tuple[str, str]:
        return self._sql("mysql", self.start_mysql, name)

    def _mariadb(self, name: str) -> tuple[str, str]:
        return self._sql("mariadb", self.start_mariadb, name)

    def _sql(self, kind: str, start: Callable[[], str], name: str) -> tuple[str, str]:
        if kind not in self.addresses:
            self.addresses[kind] = start()
            url = f"mysql://palisade@{self.addresses[kind]}/shop"
            subprocess.run(
                [self.palisade, "fence", "install", "mysql", "--url", url], check=True, stdout=subprocess.DEVNULL
            )
            table = "CREATE TABLE totals (name VARCHAR(99) PRIMARY KEY, total BIGINT) ENGINE = InnoDB"
            mysql(self.addresses[kind], table)
        mysql(self.addresses[kind], f"INSERT INTO totals VALUES ('{name}', 0)")
        url = f"mysql://palisade@{self.addresses[kind]}/shop"
        return url, url

    def start_mariadb(self, *statements: str) -> str:
        """MariaDB with the database `shop`, in which these statements are run; returns HOST:PORT."""
        program = "/usr/bin/mariadb-install-db"
        assert os.path.exists(program), "MariaDB is missing: install the Debian package mariadb-server"
        folder = self._new_folder("mariadb")
        shared = ["--no-defaults", f"--user={getpass.getuser()}", f"--datadir={folder}/data", f"--tmpdir={folder}"]
        make = [program, *shared, "--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(make, check=True, capture_output=True)
        return self._start_sql(["/usr/sbin/mariadbd", *shared], folder, statements)

    def start_mysql(self, *statements: str) -> str:
        """MySQL of Oracle, which `cargo xtask test` unpacked, or whose root PALISADE_MYSQL names."""
        named = os.environ.get("PALISADE_MYSQL")
        root = named or pathlib.Path(__file__).resolve().parents[2] / "target/palisade-tools/mysql/root"
        loaders = glob.glob(f"{root}/usr/lib/*-linux-gnu/ld-linux*")
        assert loaders, f"MySQL is missing in {root}: run `cargo xtask test`, which unpacks it, or set PALISADE_MYSQL"
        folder, usr, libraries = self._new_folder("mysql"), f"{root}/usr", os.path.dirname(loaders[0])
        program = [loaders[0], "--library-path", libraries, f"{usr}/sbin/mysqld", "--no-defaults"]
        where = [f"--datadir={folder}/data", f"--tmpdir={folder}", f"--basedir={usr}"]
        texts = [f"--lc-messages-dir={usr}/share/mysql", f"--character-sets-dir={usr}/share/mysql/charsets"]
        program += [*where, *texts, "--secure-file-priv=NULL", f"--user={getpass.getuser()}"]
        subprocess.run([*program, "--initialize-insecure"], check=True, capture_output=True)
        program += ["--mysqlx=OFF", "--log-bin-trust-function-creators=1"]
        return self._start_sql(program, folder, statements)

    def _new_folder(self, name: str) -> str:
        folder = f"{self.folder}/{name}"
        os.makedirs(folder)
        return folder

    def _start_sql(self, program: list[str], folder: str, statements: tuple[str, ...]) -> str:
        port, first = free_port(), pathlib.Path(folder, "init.sql")
        user = ["CREATE USER 'palisade'@'%';", "GRANT ALL ON *.* TO 'palisade'@'%';"]
        first.write_text("\n".join(["CREATE DATABASE shop;", *statements, *user]) + "\n")
        where = [f"--port={port}", f"--socket={folder}/socket", f"--pid-file={folder}/pid", f"--init-file={first}"]
        self.start([*program, *where, "--bind-address=127.0.0.1", "--skip-name-resolve"])
        address = f"127.0.0.1:{port}"
        until_it_answers(lambda: mysql(address, "SELECT 1"), subprocess.CalledProcessError)
        return address

    def _s3(self, name: str) -> tuple[str, str]:
        url = f"{self._shared_moto()}/fleet"
        return url, url

    def _dynamodb(self, name: str) -> tuple[str, str]:
        """A table for each arm: without a fence, an item with data has lost it."""
        client = boto3.client("dynamodb", endpoint_url=self._shared_moto(), **KEYS)
        client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        url = f"{self._shared_moto()}/{name}"
        return url, url

    def _files(self, name: str) -> tuple[str, str]:
        folder = pathlib.Path(self.folder, "files", name)
        folder.mkdir(parents=True)
        if not name.endswith("-claim"):
            (folder / "total").write_text("0")
        return str(folder.parent), str(folder.parent)

    def _shared_moto(self) -> str:
        if not self.moto:
            self.moto = self.start_moto("fleet")
        return self.moto

    def start_moto(self, bucket: str) -> str:
        """S3, with this bucket, and DynamoDB."""
        port = free_port()
        self.start([sys.executable, ONE_AT_A_TIME, "-H", "127.0.0.1", "-p", str(port)])
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **KEYS)
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


def mysql(address: str, statement: str) -> str:
    """Runs a statement in the database `shop` of MySQL or MariaDB."""
    host, port = address.split(":")
    ask = ["mariadb", "--no-defaults", f"-h{host}", f"-P{port}", "-upalisade", "shop", "-N", "-e", statement]
    return subprocess.run(ask, check=True, capture_output=True, text=True).stdout


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
