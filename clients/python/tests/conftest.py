"""Real servers for the tests, on free ports, in temporary folders."""

from __future__ import annotations

import contextlib
import glob
import importlib
import importlib.util
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Callable, Iterator

import psycopg
import pymysql
import pytest
import redis

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "clients" / "holder-suite"), str(ROOT / "proof" / "fleet")]

from served import Double, Program, Served  # noqa: E402
from suite.servers import Palisade  # noqa: E402


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the tests of mysqlclient to clients/python/mysqlclient where it is not installed: it is built from source,
    with headers that not every machine has.
    """
    if importlib.util.find_spec("MySQLdb") is None:
        left = [item for item in items if item.get_closest_marker("mysqlclient")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session")
def binary() -> str:
    """The palisade binary: PALISADE_BINARY, or the dev build of the repository."""
    found = os.environ.get("PALISADE_BINARY") or str(ROOT / "target" / "debug" / "palisade")
    assert os.path.exists(found), f"{found} is missing: run `cargo build -p palisade`, or set PALISADE_BINARY"
    return found


@pytest.fixture
def server(binary: str) -> Iterator[Palisade]:
    with Palisade(binary) as running:
        yield running


@pytest.fixture(params=["program", "double"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    one = Double() if request.param == "double" else Program(request.getfixturevalue("server"))
    yield one
    # A test that failed may have left it stopped.
    one.resume()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _ready(process: subprocess.Popen[bytes], is_ready: Callable[[], object]) -> None:
    """Waits for a server that is starting."""
    end = time.monotonic() + 60
    while True:
        assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
        try:
            is_ready()
        except (psycopg.OperationalError, pymysql.OperationalError, redis.exceptions.ConnectionError):
            assert time.monotonic() < end, f"{process.args!r} does not answer"
            time.sleep(0.05)  # real time: asked again, up to a deadline
        else:
            return


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory, binary: str) -> Iterator[str]:
    programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]))
    assert programs, "PostgreSQL is missing: install the Debian package postgresql"
    folder, port = f"/tmp/palisade-python-{os.getpid()}", _free_port()
    data = f"{folder}/data"
    os.makedirs(folder, mode=0o700)
    # PostgreSQL does not run as root.
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
    if as_user:
        shutil.chown(folder, "postgres", "postgres")
    initdb = [f"{programs[-1]}/initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"]
    subprocess.run([*as_user, *initdb], check=True, stdout=subprocess.DEVNULL, cwd="/")
    settings = [
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        f"port={port}",
        "-k",
        folder,
        "-c",
        "fsync=off",
        "-c",
        "statement_timeout=30s",
    ]
    server = [f"{programs[-1]}/postgres", "-D", data, *settings]
    process = subprocess.Popen([*as_user, *server], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
    url = f"postgres://postgres@127.0.0.1:{port}/postgres"
    try:
        _ready(process, lambda: psycopg.connect(url).close())
        subprocess.run([binary, "fence", "install", "postgres", "--url", url], check=True, stdout=subprocess.DEVNULL)
        yield url
    finally:
        # Fast: with SIGTERM it would wait for clients that are still connected.
        process.send_signal(signal.SIGINT)
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def mysql_url(tmp_path_factory: pytest.TempPathFactory, binary: str) -> Iterator[str]:
    """A MariaDB with the fence; with PALISADE_MYSQL set, MySQL of Oracle, which it may name."""
    if "PALISADE_MYSQL" in os.environ:
        # It needs packages that not every run has.
        servers = importlib.import_module("servers").Servers(binary)
        with contextlib.closing(servers):
            url = f"mysql://palisade@{servers.start_mysql()}/shop"
            subprocess.run([binary, "fence", "install", "mysql", "--url", url], check=True, stdout=subprocess.DEVNULL)
            yield url
        return
    assert os.path.exists("/usr/bin/mariadb-install-db"), (
        "MariaDB is missing: install the Debian package mariadb-server"
    )
    folder, port = tmp_path_factory.mktemp("mariadb"), _free_port()
    me = pwd.getpwuid(os.getuid()).pw_name
    shared = ["--no-defaults", f"--user={me}", f"--datadir={folder}/data", f"--tmpdir={folder}"]
    install = ["/usr/bin/mariadb-install-db", *shared, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL, cwd="/")
    (folder / "first.sql").write_text(
        "CREATE DATABASE shop;\nCREATE USER 'shop'@'%';\nGRANT ALL ON *.* TO 'shop'@'%' WITH GRANT OPTION;\n"
    )
    place = [f"--port={port}", f"--socket={folder}/socket", f"--pid-file={folder}/pid", "--bind-address=127.0.0.1"]
    server = ["/usr/sbin/mariadbd", *shared, *place, f"--init-file={folder}/first.sql", "--skip-name-resolve"]
    # Nothing here asks what a crash of the machine leaves.
    process = subprocess.Popen(
        [*server, "--innodb-flush-log-at-trx-commit=0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/"
    )
    url = f"mysql://shop@127.0.0.1:{port}/shop"
    try:
        _ready(process, lambda: pymysql.connect(host="127.0.0.1", port=port, user="shop", database="shop").close())
        subprocess.run([binary, "fence", "install", "mysql", "--url", url], check=True, stdout=subprocess.DEVNULL)
        yield url
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    assert shutil.which("redis-server"), "Redis is missing: install the Debian package redis-server"
    port, folder = _free_port(), tmp_path_factory.mktemp("redis")
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    url = f"redis://127.0.0.1:{port}"

    def ping() -> None:
        with redis.Redis.from_url(url) as connection:
            connection.ping()

    try:
        _ready(process, ping)
        yield url
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def database(postgres_url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(postgres_url) as connection:
        yield connection


@pytest.fixture
def cache(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as connection:
        yield connection
