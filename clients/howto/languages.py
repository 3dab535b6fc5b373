"""Runs a block of a page in each language, with the surroundings that a reader has."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
JAR = ROOT / "target" / "clients" / "java" / "palisade.jar"
JDBC = JAR.parent / "maven" / "test-libraries" / "*"

#: In front of the page's imports: what the page says the reader has.
JS = {
    "postgresql": """import pg from "pg";
const pool = new pg.Pool({ connectionString: process.env.SHOP_URL, allowExitOnIdle: true });
""",
    "redis": """import { Redis } from "ioredis";
const redis = new Redis(process.env.REDIS_URL);
""",
    "s3": "",
    "dynamodb": "",
    "http": "const url = `http://${process.env.GATEWAY}/total`;\n",
}
#: Behind it.
JS_END = {"redis": "redis.disconnect();\n"}

GO = {
    "postgresql": (
        ["database/sql", "palisade.example/palisade/fence/postgres", "_ github.com/lib/pq"],
        'db, err := sql.Open("postgres", os.Getenv("SHOP_URL") + "?sslmode=disable")',
        "db *sql.DB",
        "db",
    ),
    "mysql": (
        ["database/sql", "palisade.example/palisade/fence/mysql", "_ github.com/go-sql-driver/mysql"],
        'db, err := sql.Open("mysql", os.Getenv("GO_DSN"))',
        "db *sql.DB",
        "db",
    ),
    "http": (
        ["net/http", "strings", "palisade.example/palisade/fence/httpfence"],
        'url, err := "http://" + os.Getenv("GATEWAY") + "/total", error(nil)',
        "url string",
        "url",
    ),
}

JAVA = {
    "postgresql": 'Connection connection = DriverManager.getConnection(System.getenv("JDBC_URL"))',
    "mysql": 'Connection connection = DriverManager.getConnection(System.getenv("JDBC_URL"))',
}


def command(page: str, language: str, block: str, folder: pathlib.Path) -> list[str]:
    """Writes the block as a program into the folder, and returns what runs it."""
    return {"python": _python, "js": _js, "go": _go, "java": _java, "sh": _sh}[language](page, block, folder)


def _sh(page: str, block: str, folder: pathlib.Path) -> list[str]:
    return ["sh", "-euc", block]


def _python(page: str, block: str, folder: pathlib.Path) -> list[str]:
    return [sys.executable, "-c", block]


def _js(page: str, block: str, folder: pathlib.Path) -> list[str]:
    (folder / "howto.mjs").write_text(JS[page] + block + JS_END.get(page, ""))
    modules = folder / "node_modules"
    if not modules.exists():
        modules.mkdir()
        client = ROOT / "clients" / "typescript"
        for name, where in {"palisade-client": client, **{n: client / "node_modules" / n for n in _packages()}}.items():
            (modules / name).parent.mkdir(exist_ok=True)
            (modules / name).symlink_to(where)
    return ["node", "howto.mjs"]


def _packages() -> list[str]:
    return ["pg", "ioredis", "@aws-sdk/client-s3", "@aws-sdk/client-dynamodb"]


def _go(page: str, block: str, folder: pathlib.Path) -> list[str]:
    imports, opened, parameter, argument = GO[page]
    names = ["context", "os", "time", "palisade.example/palisade", *imports]
    lines = "\n".join(f'_ "{name[2:]}"' if name.startswith("_ ") else f'"{name}"' for name in names)
    (folder / "main.go").write_text(f"""package main
import (
{lines}
)
var _ = time.Second
func work(ctx context.Context, client *palisade.Client, {parameter}) error {{
{block}}}
func main() {{
client, err := palisade.New()
if err != nil {{ panic(err) }}
{opened}
if err != nil {{ panic(err) }}
if err := work(context.Background(), client, {argument}); err != nil {{ panic(err) }}
}}
""")
    return ["go", "run", "."]


def _java(page: str, block: str, folder: pathlib.Path) -> list[str]:
    opened = JAVA.get(page)
    around = (
        f"try ({opened}) {{ connection.setAutoCommit(false);\n{block}}}"
        if opened
        else 'HttpClient http = HttpClient.newHttpClient(); URI url = URI.create("http://"'
        f' + System.getenv("GATEWAY") + "/total");\n{block}'
    )
    (folder / "Howto.java").write_text(f"""import example.palisade.*;
import example.palisade.fence.*;
import java.net.URI;
import java.net.http.*;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.sql.*;
import java.time.Duration;
class Howto {{
public static void main(String[] none) throws Exception {{
try (Client client = Client.builder().build()) {{ {around} }}
}} }}
""")
    flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return ["java", *flags, "-cp", f"{JAR}:{JDBC}", "Howto.java"]


def prepare(folder: pathlib.Path) -> None:
    """The reader's new program: `../palisade` is the checkout, and there is a Go module with its drivers, those of the
    client's own tests, which clients/go/check has put into the cache."""
    (folder.parent / "palisade").symlink_to(ROOT)
    tests = ROOT / "clients" / "go" / "internal" / "sqltest"
    drivers = re.findall(r"^\t(?!palisade\.)(\S+) (v\S+)", (tests / "go.mod").read_text(), re.MULTILINE)
    edits = [f"-require={name}@{version}" for name, version in drivers]
    for words in (["go", "mod", "init", "app"], ["go", "mod", "edit", *edits]):
        subprocess.run(words, cwd=folder, check=True, capture_output=True, env=environment())
    (folder / "go.sum").write_text((tests / "go.sum").read_text())


def environment() -> dict[str, str]:
    newest = subprocess.run([ROOT / "clients" / "go" / "newest"], check=True, capture_output=True, text=True).stdout
    path = f"{newest.strip()}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}


def installs(line: str) -> bool:
    """Whether clients/check has carried it out already: then the line must be that of the client's README. Its extra,
    or its peer dependency, must exist."""
    words = shlex.split(line)
    client = ROOT / "clients"
    if words[0] == "pip":
        extra = words[-1].partition("[")[2].rstrip("]")
        assert "./clients/python" in (client / "python" / "README.md").read_text(), line
        project = (client / "python" / "pyproject.toml").read_text()
        assert not extra or f"\n{extra} = [" in project, f"{line}: there is no such extra"
        return True
    if words[0] == "npm":
        assert " ".join(words[:3]) in (client / "typescript" / "README.md").read_text(), line
        assert words[1] == "ci" or words[3:] == [] or words[3] in _packages(), line
        return True
    if words[0].endswith("/clients/java/build"):
        assert (client / "java" / "build").exists() and JAR.exists(), "clients/java/check builds it"
        return True
    return False
