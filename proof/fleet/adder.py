"""A holder's work in Python, for fleet.py: it reads and writes one number, in two steps, under a fence or without one.

    adder.py postgres|redis|s3|dynamodb|files|http URL RESOURCE fenced|unfenced
    lines: "read TOKEN", "write TOKEN NUMBER"; answers: the number, "written", or "rejected CODE"

It speaks as crates/palisade-fence/examples/adder.rs, and so do the adders in Go, TypeScript and Java. The mixed tests
of the Python client use it, too.
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

import boto3
import httpx
import psycopg
import redis

from palisade.fences import Rejected, postgres, s3
from palisade.fences import http as fence
from palisade.fences.dynamodb import Item
from palisade.fences.files import Folder
from palisade.fences.redis import Resource


class Postgres:
    def __init__(self, url: str, name: str, fenced: bool) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.name, self.fenced = name, fenced

    def close(self) -> None:
        self.connection.close()

    def transact(self, token: int, statement: str, *values: Any) -> Any:
        with self.connection.transaction():
            if self.fenced:
                postgres.claim(self.connection, self.name, token)
            return self.connection.execute(statement, [*values, self.name])

    def read(self, token: int) -> int:
        return int(self.transact(token, "SELECT total FROM totals WHERE name = %s").fetchone()[0])

    def write(self, token: int, number: int) -> None:
        self.transact(token, "UPDATE totals SET total = %s WHERE name = %s", number)


class Redis:
    def __init__(self, url: str, name: str, fenced: bool) -> None:
        self.connection = redis.Redis.from_url(url)
        self.resource, self.key, self.fenced = Resource(name), f"{{{name}}}:total", fenced

    def read(self, token: int) -> int:
        fenced = self.fenced and self.resource.get(self.connection, token, self.key)
        return int((fenced if self.fenced else self.connection.get(self.key)) or 0)

    def write(self, token: int, number: int) -> None:
        if self.fenced:
            self.resource.set(self.connection, token, self.key, number)
        else:
            self.connection.set(self.key, number)

    def close(self) -> None:
        self.connection.close()


KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


class S3:
    """One object, which the URL's path names as its bucket."""

    def __init__(self, url: str, name: str, fenced: bool) -> None:
        endpoint, bucket = url.rsplit("/", 1)
        self.client = boto3.client("s3", endpoint_url=endpoint, **KEYS)
        self.bucket, self.name, self.fenced = bucket, name, fenced
        self.resource = s3.Store(self.client, bucket, "fenced", probe=False).resource(name)

    def read(self, token: int) -> int:
        if self.fenced:
            return int(self.resource.read(token, "/total") or 0)
        listed = self.client.list_objects_v2(Bucket=self.bucket, Prefix=self.name)
        if not listed.get("Contents"):
            return 0
        return int(self.client.get_object(Bucket=self.bucket, Key=self.name)["Body"].read())

    def write(self, token: int, number: int) -> None:
        if self.fenced:
            self.resource.put(token, "/total", str(number).encode())
        else:
            self.client.put_object(Bucket=self.bucket, Key=self.name, Body=str(number).encode())


class DynamoDb:
    """One item, in the table that the URL's path names."""

    def __init__(self, url: str, name: str, fenced: bool) -> None:
        endpoint, self.table = url.rsplit("/", 1)
        self.client, self.fenced = boto3.client("dynamodb", endpoint_url=endpoint, **KEYS), fenced
        self.key = {"name": {"S": name}}
        self.item = Item(self.client, self.table, self.key)

    def read(self, token: int) -> int:
        if self.fenced:
            self.item.claim(token)
            found = self.item.read(token)
        else:
            found = self.client.get_item(TableName=self.table, Key=self.key, ConsistentRead=True).get("Item", {})
        return int(found.get("total", {"N": "0"})["N"])

    def write(self, token: int, number: int) -> None:
        total = {"total": {"N": str(number)}}
        if self.fenced:
            self.item.write(token, total)
        else:
            self.client.put_item(TableName=self.table, Item={**self.key, **total})


class Files:
    """One file, in a folder of the folder that the URL is."""

    def __init__(self, url: str, name: str, fenced: bool) -> None:
        self.path, self.fenced = pathlib.Path(url, name), fenced
        self.folder = Folder(self.path)

    def read(self, token: int) -> int:
        if self.fenced:
            self.folder.claim(token)
            return int(self.folder.read(token, "/total") or 0)
        return int((self.path / "total").read_bytes() or 0)

    def write(self, token: int, number: int) -> None:
        if self.fenced:
            self.folder.put(token, "/total", str(number).encode())
        else:
            new = self.path / f"new-{os.getpid()}"
            new.write_text(str(number))
            new.replace(self.path / "total")


class Http:
    """An API; with a fence the URL is the gateway's."""

    def __init__(self, url: str, name: str, fenced: bool) -> None:
        self.client, self.url, self.fenced = httpx.Client(trust_env=False, timeout=30), f"{url}/{name}", fenced

    def ask(self, method: str, headers: dict[str, str], content: str = "") -> str:
        answer = self.client.request(method, self.url, headers=headers, content=content)
        fence.raise_for_fence(answer)
        answer.raise_for_status()
        return answer.text

    def read(self, token: int) -> int:
        if self.fenced:
            self.ask("POST", fence.claim(token))
        return int(self.ask("GET", fence.headers(token) if self.fenced else {}))

    def write(self, token: int, number: int) -> None:
        self.ask("PUT", fence.headers(token) if self.fenced else {}, str(number))


STORES: dict[str, Any] = {
    "postgres": Postgres,
    "redis": Redis,
    "s3": S3,
    "dynamodb": DynamoDb,
    "files": Files,
    "http": Http,
}


def main() -> None:
    store, url, name, arm = sys.argv[1:]
    adder = STORES[store](url, name, arm == "fenced")
    for line in sys.stdin:
        verb, token, *number = line.split()
        try:
            if verb == "read":
                print(adder.read(int(token)), flush=True)
            else:
                adder.write(int(token), int(number[0]))
                print("written", flush=True)
        except Rejected as no:
            print(f"rejected {no.code}", flush=True)


if __name__ == "__main__":
    main()
