"""Hands leases round between clients of several languages: each adopts what the one before it exported (rule H6).

    python3 handed_round.py --palisade PATH --driver 'COMMAND …' --driver 'COMMAND …'…

The lock is never free in between, and its token stays. A driver whose client cannot hand a lease over is left out.
"""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from suite.driver import Answer, Driver
from suite.servers import Palisade

LOCK = "orders"
# Longer than the round may take.
TTL_MS = 60_000
KINDS: dict[str, dict[str, Any]] = {
    "one lock": {},
    "three locks": {"also": ["stock", "a"]},
    "permits": {"permits": {"count": 2, "of": 3}},
    "a reader": {"mode": "shared"},
    "a reader that may upgrade": {"mode": "update"},
}


def asked(driver: Driver, do: str, **command: Any) -> Answer:
    answer = driver.call(do, **command)
    if not answer["ok"]:
        raise SystemExit(f"{driver.hello['client']}: {do} failed: {answer}")
    return answer


def held(server: Palisade) -> dict[int, Any]:
    """The grants of the lock, by their number, with the name of their client."""
    view = server.show(LOCK)
    readers = view.get("readers") or []
    grants = readers or [view["holder"]] * (view["holder"] is not None)
    return {grant.get("grant_id", grant["fencing_token"]): grant["client_id"] for grant in grants}


def hand_round(server: Palisade, drivers: list[Driver], kind: str) -> None:
    first = asked(
        drivers[0], "acquire", lock=LOCK, ttl_ms=TTL_MS, wait_ms=0, client_id="me", **KINDS[kind], **{"as": kind}
    )
    before, same = held(server), ["token", "authority", *(["grant_id"] if "mode" in KINDS[kind] else [])]
    same += ["slots"] if "permits" in KINDS[kind] else []
    if not before:
        raise SystemExit(f"{kind}: nobody holds the lock that was acquired")
    for exporter, adopter in zip(drivers, [*drivers[1:], drivers[0]], strict=True):
        text = asked(exporter, "export", grant=kind)["text"]
        between = held(server)
        adopted = asked(adopter, "adopt", text=text, **{"as": kind})
        names = f"{kind}, from {exporter.hello['client']} to {adopter.hello['client']}"
        for field in same:
            if first[field] != adopted.get(field):
                raise SystemExit(f"{names}: {field} {first[field]} became {adopted.get(field)}")
        if not before == between == held(server):
            raise SystemExit(f"{names}: {before} hold the lock before, {between} in between, {held(server)} after")
        asked(adopter, "check", grant=kind)
    asked(drivers[0], "release", grant=kind)
    if held(server):
        raise SystemExit(f"{kind}: {held(server)} hold the lock after its release")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--palisade", required=True)
    parser.add_argument("--driver", required=True, action="append", type=shlex.split)
    options = parser.parse_args()
    with Palisade(options.palisade) as server:
        drivers = [Driver(command) for command in options.driver]
        try:
            able = [driver for driver in drivers if "handover" in driver.hello["can"]]
            if len(able) < 2:
                raise SystemExit(
                    "fewer than two of these drivers can hand a lease over: name two with `handover` in `can`"
                )
            for driver in able:
                asked(driver, "connect", urls=[server.url], patience_ms=20_000)
            for kind in KINDS:
                hand_round(server, able, kind)
        finally:
            for driver in drivers:
                driver.end()
    print(f"handed round: {', '.join(KINDS)}, between {', '.join(driver.hello['client'] for driver in able)}")


if __name__ == "__main__":
    main()
