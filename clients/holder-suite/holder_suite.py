"""The holder suite: tests a client of any language through its driver.

    python3 holder_suite.py --palisade PATH --driver 'COMMAND …' [--rule ID]… [--report FILE]

See README.md for the rules and for how a driver speaks.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

from suite import holding, giving_up, handing_over, sharing, upgrading, permits, sets  # isort: skip  (in the order of the rules)
from suite import delays, wire, answers, between, identities, notices  # isort: skip
from suite.driver import DriverFailed
from suite.rules import RULES, Rule
from suite.servers import Palisade
from suite.trial import Broken, NotApplicable, Trial

# Importing them enters their rules.
assert (
    answers
    and between
    and delays
    and giving_up
    and handing_over
    and holding
    and identities
    and notices
    and permits
    and sets
    and sharing
    and upgrading
    and wire
)


def run(rule: Rule, palisade: str, driver: list[str], spare: Palisade, client_wire: str) -> dict[str, Any]:
    result: dict[str, Any] = {"rule": rule.id, "says": rule.says}
    if rule.wire and rule.wire != client_wire:
        return {**result, "outcome": "skipped", "why": f"the client speaks {client_wire!r}, not {rule.wire!r}"}
    began = time.monotonic()
    trial = Trial(palisade, driver, spare)
    try:
        rule.check(trial)
        outcome, why = "kept", None
    except (Broken, DriverFailed) as broken:
        outcome, why = "broken", str(broken)
    except NotApplicable as reason:
        outcome, why = "skipped", str(reason)
    except Exception as error:
        # Not what the rule looks for, so no control may count it as found.
        outcome, why = "error", f"{type(error).__name__}: {error}"
    finally:
        trial.close()
    result.update(outcome=outcome, seconds=round(time.monotonic() - began, 2))
    return {**result, "why": why} if why else result


def chosen(names: Optional[list[str]]) -> list[Rule]:
    if not names:
        return RULES
    by_id = {rule.id: rule for rule in RULES}
    unknown = [name for name in names if name not in by_id]
    if unknown:
        raise SystemExit(f"there is no rule {unknown[0]!r}; --list shows them")
    return [by_id[name] for name in names]


def wire_of(palisade: str, driver: list[str], spare: Palisade) -> str:
    trial = Trial(palisade, driver, spare)
    try:
        return str(trial.bare_driver().hello.get("wire", "http"))
    finally:
        trial.close()


def judge(results: list[dict[str, Any]], red: Optional[set[str]]) -> int:
    """The exit code. With `red`, the named rules must be broken: that is a control."""
    if red is None:
        return 1 if any(result["outcome"] in ("broken", "error") for result in results) else 0
    missed = sorted(red - {result["rule"] for result in results if result["outcome"] == "broken"})
    print(f"CONTROL FAILED: not found: {', '.join(missed)}" if missed else "control: found, as it must be")
    return 1 if missed else 0


def main() -> int:
    arguments = argparse.ArgumentParser(description="Tests the holder's side of a Palisade client.")
    arguments.add_argument("--palisade", help="the palisade binary")
    arguments.add_argument("--driver", help="the command that starts the driver")
    arguments.add_argument("--rule", action="append", help="only this rule; may be repeated")
    arguments.add_argument("--list", action="store_true", help="print the rules and end")
    arguments.add_argument("--report", help="write the results to this file, as JSON")
    arguments.add_argument("--jobs", type=int, default=8, help="how many rules at a time (default 8)")
    arguments.add_argument("--expect-red", help="a control: these rules, separated by commas, must be broken")
    options = arguments.parse_args()
    if options.list:
        for rule in RULES:
            print(f"{rule.id:22} {rule.says}")
        return 0
    if not options.palisade or not options.driver:
        arguments.error("--palisade and --driver are needed")
    rules = chosen(options.rule)
    driver = shlex.split(options.driver)
    with Palisade(options.palisade) as spare, ThreadPoolExecutor(options.jobs) as pool:
        client_wire = wire_of(options.palisade, driver, spare)
        results = list(pool.map(lambda rule: run(rule, options.palisade, driver, spare, client_wire), rules))
    # Failures come last, where the reader of a long log looks first.
    for result in sorted(results, key=lambda result: result["outcome"] in ("broken", "error")):
        print(f"{result['outcome']:8} {result['rule']:22} {result.get('why') or result['says']}")
    if options.report:
        with open(options.report, "w", encoding="utf-8") as report:
            json.dump({"driver": options.driver, "results": results}, report, indent=1)
    outcomes = ("kept", "broken", "skipped", "error")
    count = {outcome: sum(r["outcome"] == outcome for r in results) for outcome in outcomes}
    print(", ".join(f"{number} {outcome}" for outcome, number in count.items() if number or outcome != "error"))
    return judge(results, set(options.expect_red.split(",")) if options.expect_red else None)


if __name__ == "__main__":
    sys.exit(main())
