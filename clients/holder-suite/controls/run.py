"""Runs the suite against a holder without a flaw, which must keep every rule, and against each flaw, which must not."""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

# A flaw of controls/holder.py, and rules that it breaks.
RED = {
    "deadline-from-answer": "H1-acquire,H1-renew,H1-drift,H1-waited,H1-late-grant,H6-adopt",
    "remaining-ms": "H1-waited",
    "ignores-deadline": "H2-late-answer,H2-stopped-renewal,H2-cut,H2-silence,H4-announced,H4-sigstop,H4-stays-lost",
    "revives": "H2-late-answer",
    "new-request-ids": "H5-lost-reply,H5-same-id,P-garbled,P-not-leader,P-no-leader,P-proxy,S-upgrade-once",
    "forgets-cancelled": "H5-cancel-waiting,H5-cancel-granted,H5-abandon,S-upgrade-cancel",
    "releases-late": "H3-before-release",
    "exports-and-releases": "H6-export,H6-adopt,H6-over",
    "exports-and-renews": "H6-export",
    "loses-exported": "H6-export",
    "adopts-unasked": "H6-adopt,H6-unacknowledged,H6-over",
    "monotonic": "H1-clock",
    "one-attempt": "H3-silent-release",
    "names-by-token": "S-readers,S-grant-id,S-upgrade-renews",
    "any-slots": "Slots-own,Slots-fewer",
    "forgets-delays": "Delays-at-least-for,Delays-lock-delay",
    "late-downgrade": "S-downgrade-before",
    "keeps-writer": "S-downgrade,S-downgrade-before",
    "keeps-token": "S-upgrade,S-upgrade-held,S-upgrade-names",
    "keeps-reader": "S-upgrade",
    "believes-upgrade": "S-upgrade-held",
    "rests-while-upgrading": "S-upgrade-renews",
    "upgrades-lost": "S-upgrade-late",
    "superseded-is-loss": "S-upgrade-superseded",
    "upgrades-anything": "S-upgrade-plain",
    "abandons-upgrade": "S-upgrade-given-up",
    "follows-redirects": "P-redirect",
    "follows-leaders": "P-leader-loop",
    "one-by-one": "M-whole,M-one-token",
    "renews-first": "M-part-revoked,M-round",
    "late-round": "M-deadline",
    "part-by-part": "M-all-acknowledged",
    "hurries-round": "M-slow",
    "finishes-round": "M-silent",
    "release-is-loss": "M-released-renewal",
    "forgets-part": "M-part-again",
    "leaves-rest": "M-part-revoked",
    "forgets-also": "M-repeat",
    "believes-any-answer": "P-other-nonce,P-late-by-one",
    "same-nonce": "P-nonce",
    "keeps-connection": "P-other-nonce,P-late-connection",
    "believes-other-lock": "P-other-lock",
    "believes-renewal": "P-other-renewal,P-other-release",
    "patient-acquire": "P-silent,P-half-open,P-slow,P-two-silent",
    "bounds-reads": "P-trickling",
    "stays": "P-moves-on,P-silent,P-slow",
    "denied-by-202": "P-waiting",
    "no-poll": "P-poll,P-route-timeout",
    "rests-after-break": "P-proxy",
    "one-certificate": "P-certificate",
    "nameless-certificate": "P-certificate-ended",
    "fork-holds": "P-fork",
    "fork-releases": "P-fork",
    "deaf": "N-break-heard,N-wanted",
    "told-is-lost": "N-upgrade",
    "forgets-unwanted": "N-wanted",
    "suspends-nobody": "N-suspended-order",
    "always-listens": "N-off",
    "names-all": "N-hundred",
    "hurries-listen": "N-no-storm,N-old-server",
    "listen-suspends": "N-no-storm",
}
HERE = pathlib.Path(__file__).resolve().parent


def suite(name: str, palisade: str, driver: str, *more: str) -> int:
    command = [sys.executable, str(HERE.parent / "holder_suite.py"), "--palisade", palisade, "--driver", driver, *more]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    lines = [line for line in ended.stdout.splitlines() if not line.startswith(("kept", "skipped"))]
    print("\n".join([name, *lines]), flush=True)
    return ended.returncode


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--palisade", required=True)
    arguments.add_argument("--flaw", action="append", choices=RED, help="only this one")
    options = arguments.parse_args()
    driver = f"{sys.executable} {HERE / 'holder.py'}"
    failed = []
    if not options.flaw:
        failed += ["no flaw"] if suite("no flaw", options.palisade, driver) else []

    def is_missed(flaw: str) -> int:
        rules = [part for rule in RED[flaw].split(",") for part in ("--rule", rule)]
        return suite(flaw, options.palisade, f"{driver} --flaw {flaw}", *rules, "--expect-red", RED[flaw])

    flaws = options.flaw or list(RED)
    # Most of their time is waiting.
    with ThreadPoolExecutor(4) as pool:
        failed += [flaw for flaw, missed in zip(flaws, pool.map(is_missed, flaws)) if missed]
    print(f"controls failed: {', '.join(failed)}" if failed else "all controls as they must be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
