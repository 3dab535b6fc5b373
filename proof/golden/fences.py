"""What fences store: a folder, a file of SQLite, and the statements and keys that make the marks of servers.

In SQL servers a holder calls procedures, so the golden data is the SQL that installs them and the calls: in any server
of its kind they leave what this version leaves there.
"""

from __future__ import annotations

import gzip
import json
import pathlib
import socket
import sqlite3
import subprocess
import tempfile
import time
from typing import Any

import directories
from directories import run
from palisade.fences import sqlite
from palisade.fences.files import Folder
from palisade.fences.rule import Pass

PASS = {"authority": "golden", "lock": "orders"}
POSTGRES = """
BEGIN;
SELECT palisade_claim('orders', 33, 'golden', 'orders');
INSERT INTO orders VALUES (40);
COMMIT;
BEGIN;
SELECT palisade_write('orders', 34, 1, 77, 'golden', 'orders');
UPDATE orders SET total = 41;
SELECT palisade_record('orders', 1, 'done'::bytea);
COMMIT;
"""
MYSQL = """
BEGIN;
CALL palisade_claim('orders', '33', 'golden', 'orders');
INSERT INTO orders VALUES (40);
CALL palisade_end(TRUE);
BEGIN;
CALL palisade_write('orders', '34', '1', 77, 'golden', 'orders');
UPDATE orders SET total = 41;
CALL palisade_record('orders', '1', 'done');
CALL palisade_end(TRUE);
"""
TABLE = "CREATE TABLE orders (total INTEGER);\n"


def make(program: str, folder: pathlib.Path) -> dict[str, Any]:
    owed: dict[str, Any] = {}
    for kind, calls in (("postgres", POSTGRES), ("mysql", MYSQL)):
        installs = run(program, "fence", "install", kind, "--print", "orders")
        (folder / f"{kind}.sql").write_text(TABLE + installs + calls)
        owed[kind] = {"resource": "orders", "highest": 34, **PASS}
    with tempfile.TemporaryDirectory() as scratch:
        place = pathlib.Path(scratch)
        owed["sqlite"] = of_sqlite(program, place, folder)
        owed["files"] = of_files(program, place, folder)
        owed["redis"] = of_redis(program, place, folder)
    return owed


def shown(program: str, url: str) -> dict[str, Any]:
    """What an operator sees, without the times."""
    said = json.loads(run(program, "--json", "fence", "show", "--url", url, "orders"))
    return {name: said[name] for name in ("resource", "highest", "authority", "lock") if name in said}


def of_sqlite(program: str, place: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    file = place / "orders.db"
    with sqlite3.connect(file, isolation_level=None) as database:
        database.execute(TABLE)
        run(program, "fence", "install", "sqlite", f"sqlite://{file}", "orders")
        with sqlite.transact(database, "orders", Pass(33, **PASS)):
            database.execute("INSERT INTO orders VALUES (40)")
        with sqlite.transact(database, "orders", Pass(34, **PASS)):
            sqlite.write(database, "orders", Pass(34, **PASS), sequence=1, digest=77)
            database.execute("UPDATE orders SET total = 41")
    database.close()
    (folder / "sqlite.db.gz").write_bytes(gzip.compress(file.read_bytes(), 9, mtime=0))
    return shown(program, f"sqlite://{file}")


def of_files(program: str, place: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    (place / "folder/orders").mkdir(parents=True)
    fenced = Folder(place / "folder/orders")
    fenced.claim(Pass(33, **PASS))
    fenced.put(Pass(34, **PASS), "/total", b"40", sequence=1)
    fenced.append(Pass(34, **PASS), "/log", b"one", sequence=2)
    fenced.put(Pass(34, **PASS), "/total", b"41", sequence=3)
    fenced.close()
    directories.pack(place / "folder/orders", folder / "files.tar.gz")
    return {**shown(program, f"file://{place}/folder"), "total": "41", "log": "one"}


def of_redis(program: str, place: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(place), "--save", ""],
        stdout=subprocess.DEVNULL,
    )

    def ask(*command: str) -> str:
        return run("redis-cli", "-p", str(port), *command)

    try:
        for _ in range(100):
            if subprocess.run(["redis-cli", "-p", str(port), "ping"], check=False, capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        run(program, "fence", "install", "redis", f"redis://127.0.0.1:{port}")
        mark, total = "palisade:fence:{orders}", "{orders}:total"
        said = [
            ask("FCALL", "palisade_claim", "1", mark, "33", "golden", "orders"),
            ask("FCALL", "palisade_set", "2", mark, total, "34", "41", "golden", "orders", "1"),
        ]
        keys = {key: run("redis-cli", "-p", str(port), "--raw", "GET", key).removesuffix("\n") for key in (mark, total)}
        assert keys[total] == "41", (said, keys)
        library = run(program, "fence", "install", "redis", "--print").split("\n", 1)[1]
        commands = [["FUNCTION", "LOAD", library], *(["SET", key, value] for key, value in keys.items())]
        (folder / "redis.json").write_text(json.dumps(commands, indent=1) + "\n")
        return shown(program, f"redis://127.0.0.1:{port}")
    finally:
        server.kill()
        server.wait()
