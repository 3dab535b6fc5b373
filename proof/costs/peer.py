"""The locks of redis-py and of etcd3, commanded as the drivers of the holder suite are: peer.py redis|etcd PORT."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Callable


def redis_lock(port: str) -> Callable[[str], Any]:
    import redis

    client = redis.Redis(port=int(port))
    return lambda name: client.lock(name, timeout=15)


def etcd_lock(port: str) -> Callable[[str], Any]:
    import etcd3

    client = etcd3.client(port=int(port))
    return lambda name: client.lock(name, ttl=15)


def main() -> None:
    kind, port = sys.argv[1:]
    lock = {"redis": redis_lock, "etcd": etcd_lock}[kind](port)
    print(json.dumps({"event": "hello", "client": kind, "renews": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        before = time.monotonic()
        held = lock(command["lock"])
        if command["do"] == "pairs":
            for _ in range(command["count"]):
                held.acquire()
                held.release()
        else:
            held.acquire()
            for _ in range(command["count"]):
                held.reacquire() if kind == "redis" else held.refresh()
            held.release()
        took = 1e3 * (time.monotonic() - before)
        print(json.dumps({"id": command["id"], "ok": True, "took_ms": took}), flush=True)


if __name__ == "__main__":
    main()
