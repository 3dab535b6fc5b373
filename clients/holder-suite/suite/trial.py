"""The environment of one rule: its own server, relay and driver."""

from __future__ import annotations

from typing import Any, Callable, Optional

from .clock import ROUNDING, SURE, now_ms, until
from .driver import Answer, Driver
from .relay import Relay
from .scripted import Scripted
from .servers import Palisade


class Broken(Exception):
    """The client breaks the rule; the text says how."""


class NotApplicable(Exception):
    """The rule does not apply to this client, or cannot be tried on this machine."""


def expect(condition: object, complaint: str) -> None:
    if not condition:
        raise Broken(complaint)


class Trial:
    def __init__(self, binary: str, driver: list[str], spare: Palisade) -> None:
        self.binary = binary
        self.command = driver
        self.spare = spare
        self.lock = "orders"
        self.server = Palisade(binary)
        self.ends: list[Callable[[], None]] = [self.server.stop]
        self.hello: Answer = {}

    def close(self) -> None:
        for end in reversed(self.ends):
            end()

    def relay(self) -> Relay:
        relay = Relay((self.server.host, self.server.port))
        self.ends.append(relay.close)
        return relay

    def scripted(self, real: bool = True) -> Scripted:
        scripted = Scripted((self.server.host, self.server.port) if real else None)
        self.ends.append(scripted.close)
        return scripted

    def bare_driver(self, prefix: Optional[list[str]] = None) -> Driver:
        driver = Driver((prefix or []) + self.command)
        self.ends.append(driver.end)
        self.hello = driver.hello
        self.warm_up(driver)
        return driver

    def warm_up(self, driver: Driver) -> None:
        """A JVM loads its code when it is first used: not while a lease of this trial runs."""
        lock = f"warm-up-{driver.process.pid}"
        driver.call("connect", urls=[self.spare.url], patience_ms=5000)
        if driver.call("acquire", lock=lock, ttl_ms=60_000, wait_ms=0, **{"as": lock})["ok"]:
            driver.call("release", grant=lock)

    def driver(self, *urls: str, patience_ms: int = 5000) -> Driver:
        driver = self.bare_driver()
        answer = driver.call("connect", urls=list(urls), patience_ms=patience_ms)
        expect(answer["ok"], f"connect failed: {answer}")
        return driver

    def needs(self, driver: Driver, *abilities: str) -> None:
        missing = [ability for ability in abilities if ability not in driver.hello.get("can", [])]
        if missing:
            raise NotApplicable(f"the driver says that its client has no {', '.join(missing)}")

    def held(self, driver: Driver, ttl_ms: int, wait_ms: int = 0, **more: Any) -> Answer:
        """The driver holds `self.lock` as grant `g`."""
        answer = driver.call("acquire", **self.wish(ttl_ms, wait_ms, **more))
        expect(answer["ok"], f"acquire failed: {answer}")
        return answer

    def wish(self, ttl_ms: int, wait_ms: int = 0, **more: Any) -> dict[str, Any]:
        return {"as": "g", "lock": self.lock, "ttl_ms": ttl_ms, "wait_ms": wait_ms, **more}

    def taken_by_another(self, ttl_ms: int = 60_000, wait_ms: int = 0) -> dict[str, Any]:
        """Another client gets the lock, at the server itself."""
        grant = self.server.lock(self.lock, "acquire", client_id="another", lease_duration_ms=ttl_ms, wait_ms=wait_ms)
        if grant["status"] != 200:
            raise Broken(f"another client did not get the lock: {grant}")
        return grant

    def holder_token(self) -> Optional[int]:
        holder = self.server.show(self.lock)["holder"]
        return holder and int(holder["fencing_token"])

    def expect_free(self, complaint: str, timeout_s: float = 6.0) -> None:
        expect(until(lambda: self.holder_token() is None, timeout_s), complaint)


def deadline_of(answer: Answer) -> float:
    """The client's deadline is at least this: `remaining` was read after `before_ms`."""
    return float(answer["before_ms"] + answer["remaining_ms"])


def latest(sent_ms: float, valid_for_ms: float) -> float:
    """The latest deadline that is allowed for a request whose bytes were seen at `sent_ms`."""
    return sent_ms + valid_for_ms * SURE + ROUNDING


def expect_deadline(answer: Answer, bound_ms: float, what: str) -> None:
    over = deadline_of(answer) - bound_ms
    expect(over <= 0, f"{what}: the client believes {over:.0f} ms too long")


def watch_checks(driver: Driver, bound_ms: float, timeout_s: float = 8.0) -> Answer:
    """Checks again and again until one fails; none may succeed at or after the bound. Returns the failed one."""
    end = now_ms() + timeout_s * 1e3
    while now_ms() < end:
        check = driver.call("check", grant="g")
        if not check["ok"]:
            return check
        late = check["before_ms"] - bound_ms
        expect(late <= 0, f"check() succeeded {late:.0f} ms after the deadline")
    raise Broken(f"check() still succeeds after {timeout_s:.0f} s without a renewal")


def expect_lost_for_good(driver: Driver) -> None:
    check = driver.call("check", grant="g")
    expect(not check["ok"], "check() succeeds although the lease was lost")
    remaining = driver.call("remaining", grant="g")["remaining_ms"]
    expect(remaining == 0, f"remaining is {remaining} ms although the lease was lost")
