"""A page's resource: its address in the environment, and the way to read its number past the fence."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Callable

import boto3
import psycopg
import redis

from servers import KEYS, Servers, free_port, mysql

Reader = Callable[[], int]


def start(page: str, servers: Servers, folder: pathlib.Path) -> tuple[dict[str, str], Reader]:
    made: dict[str, Callable[[Servers, pathlib.Path], tuple[dict[str, str], Reader]]] = {
        "postgresql": _postgresql,
        "mysql": _mysql,
        "redis": _redis,
        "s3": _s3,
        "dynamodb": _dynamodb,
        "files": _files,
        "http": _http,
    }
    return made[page](servers, folder)


def _postgresql(servers: Servers, folder: pathlib.Path) -> tuple[dict[str, str], Reader]:
    servers.start_postgres()
    connection = psycopg.connect(servers.postgres, autocommit=True)
    connection.execute("CREATE TABLE orders (total int)")
    connection.execute("INSERT INTO orders VALUES (0)")
    servers.ends.append(connection.close)
    jdbc = servers.postgres.replace("postgres://postgres@", "jdbc:postgresql://") + "?user=postgres"
    return {"SHOP_URL": servers.postgres, "JDBC_URL": jdbc}, lambda: int(
        connection.execute("SELECT total FROM orders").fetchone()[0]
    )


def _mysql(servers: Servers, folder: pathlib.Path) -> tuple[dict[str, str], Reader]:
    orders = ["CREATE TABLE shop.orders (total int) ENGINE=InnoDB;", "INSERT INTO shop.orders VALUES (0);"]
    address = servers.start_mariadb(*orders)
    port = address.split(":")[1]
    found = {"SHOP_URL": f"mysql://palisade@{address}/shop", "GO_DSN": f"palisade@tcp({address})/shop"}
    jdbc = f"jdbc:mariadb://{address}/shop?user=palisade"
    client = f"-h127.0.0.1 -P{port} -upalisade shop"
    return {**found, "JDBC_URL": jdbc, "CLIENT": client}, lambda: int(mysql(address, "SELECT total FROM orders"))


def _redis(servers: Servers, folder: pathlib.Path) -> tuple[dict[str, str], Reader]:
    servers.start_redis()
    connection = redis.Redis.from_url(servers.redis)
    servers.ends.append(connection.close)
    return {"REDIS_URL": servers.redis}, lambda: int(connection.get("{orders}:total") or 0)


def _aws(servers: Servers) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    return {**keys, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": servers.start_moto("bucket")}


def _client(kind: str, env: dict[str, str]) -> Any:
    return boto3.client(kind, endpoint_url=env["AWS_ENDPOINT_URL"], **KEYS)


def _s3(servers: Servers, folder: pathlib.Path) -> tuple[dict[str, str], Reader]:
    env = _aws(servers)
    client = _client("s3", env)

    def total() -> int:
        """The manifest names the current object (docs/reference/fence-formats.md)."""
        base = "fenced/resources/orders/"
        listed = client.list_objects_v2(Bucket="bucket", Prefix=base + "fence.json")
        if not listed.get("Contents"):
            return 0
        manifest = json.loads(client.get_object(Bucket="bucket", Key=base + "fence.json")["Body"].read())
        parts = manifest["keys"].get("/total", [])
        found = [client.get_object(Bucket="bucket", Key=f"{base}data/{part}")["Body"].read() for part in parts]
        return int(b"".join(found) or 0)

    return env, total


def _dynamodb(servers: Servers, folder: pathlib.Path) -> tuple[dict[str, str], Reader]:
    env = _aws(servers)
    client = _client("dynamodb", env)
    client.create_table(
        TableName="totals",
        KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )

    def total() -> int:
        item = client.get_item(TableName="totals", Key={"name": {"S": "orders"}}, ConsistentRead=True).get("Item", {})
        return int(item.get("total", {"N": "0"})["N"])

    return env, total


def _files(servers: Servers, folder: pathlib.Path) -> tuple[dict[str, str], Reader]:
    path = folder / "orders" / "total"
    return {}, lambda: int(path.read_text()) if path.exists() else 0


def _http(servers: Servers, folder: pathlib.Path) -> tuple[dict[str, str], Reader]:
    api = servers.start_api("total")
    return {"API_URL": api, "GATEWAY": f"127.0.0.1:{free_port()}"}, lambda: servers.numbers["/total"]
