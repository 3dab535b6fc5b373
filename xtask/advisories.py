#!/usr/bin/env python3
"""Writes the list of advisories that `cargo xtask check --only advisories` compares Cargo.lock with.

    git clone https://github.com/RustSec/advisory-db
    xtask/advisories.py advisory-db > xtask/advisories.txt

One line for each advisory that was not withdrawn: its id, its kind, the crate, and the versions that are not affected. Only
these facts are kept. The texts stand under the id at https://rustsec.org/advisories/. Needs Python 3.11.
"""
import pathlib
import subprocess
import sys
import tomllib

clone = pathlib.Path(sys.argv[1])
head = subprocess.run(["git", "-C", clone, "log", "-1", "--format=%h of %cs"], capture_output=True, text=True, check=True)
print(f"# The RustSec advisory database (https://github.com/RustSec/advisory-db), commit {head.stdout.strip()}.")
print("# Written by xtask/advisories.py: id, kind, crate, versions that are not affected.")
for path in sorted(clone.glob("crates/*/RUSTSEC-*.md")):
    record = tomllib.loads(path.read_text().split("```toml\n", 1)[1].split("\n```", 1)[0])
    advisory, versions = record["advisory"], record.get("versions", {})
    if "withdrawn" in advisory:
        continue
    fine = versions.get("patched", []) + versions.get("unaffected", [])
    print("\t".join([advisory["id"], advisory.get("informational", "vulnerability"), advisory["package"], " | ".join(fine)]))
