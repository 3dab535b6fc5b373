#!/usr/bin/env python3
"""Follows docs/start/first-hour/*.md, each in an empty folder, with the packages that a release would publish.

    check_first_hour.py --program PALISADE [PAGE …]    packages made of the committed files, around this program
    check_first_hour.py --release FOLDER [PAGE …]      those that `cargo xtask release` made

Each page is followed a second time, as its control, without the fence: then the zombie's write must go through.

A page's blocks run in order, in one shell. A block `LANGUAGE FILE` is saved as FILE, and the page says so. In a block
`sh` the lines that begin with `#` are what the lines before them print, where `…` stands for anything; lines without
such output must succeed, and an empty line begins new ones. A line that ends with `&` is ready when it has printed
something, unless its output goes to a file. Blocks below `## Install` reach the registries; the rest runs in a network
of its own, where the ports are free, with PostgreSQL at SHOP_URL. It needs root.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs/start/first-hour"
CACHE = ROOT / "target/first-hour"
MOST_LINES = 120
#: For a page: compilers and package managers are slow on a loaded machine.
LONG = 900
FENCE = '\npalisade fence install postgres "$SHOP_URL" orders\n'
#: Lines up to their output, an empty line or a line that ends with `&`.
COMMANDS = r"((?:^[^#\n].*(?<!&)\n)*^[^#\n].*\n)((?:^#.*\n)*)"
UNFENCED = """
async fn unfenced<T, F>(db: &mut tokio_postgres::Client, _: palisade_fence::Pass<'_>, work: F) -> Result<T, Error>
where F: AsyncFnOnce(&mut tokio_postgres::Transaction<'_>) -> Result<T, Error> {
    let mut tx = db.transaction().await?;
    let done = work(&mut tx).await?;
    tx.commit().await?;
    Ok(done)
}
pub async fn order"""
#: What a reader writes who forgets the fence.
CONTROLS = {
    "shell": [("SELECT palisade_claim('orders', $PALISADE_FENCING_TOKEN)", "SELECT 1")],
    "python": [
        ('postgres.transact(db, "orders", grant)', "db.transaction()"),
        ('postgres.transact(engine, "orders", grant)', "engine.begin()"),
    ],
    "typescript": [('transact(pool, "orders", lease, (db) => db.query(add))', "pool.query(add)")],
    "go": [('palisadepgx.Transact(ctx, db, "orders", lease,', "pgx.BeginFunc(ctx, db,")],
    "java": [
        ('PostgresFence.transact(connection, "orders", lease, inside ->', "for (int once = 0; once < 1; once++) {"),
        ('inside.createStatement().executeUpdate("UPDATE orders SET total = total + 1"));',
         'connection.createStatement().executeUpdate("UPDATE orders SET total = total + 1"); }'),
    ],
    "rust": [
        ('transact(db, "orders", lease.pass(), Some(lease.remaining()),', "unfenced(db, lease.pass(),"),
        ("pub async fn order", UNFENCED),
    ],
}  # fmt: skip
#: What a zombie prints whose write went through.
WRITTEN = re.compile(r"total|written")
#: Assignments and lines of five columns.
CRON = """#!/bin/bash
variables=()
while read -r line; do
    case $line in
    [A-Z]*=*) variables+=("$line") ;;
    *) env -i HOME="$HOME" LOGNAME=root "${variables[@]}" /bin/sh -c "${line#* * * * * }" ;;
    esac
done
"""


class Wrong(Exception):
    """The page is wrong."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise Wrong(what)


def run(*command: object, cwd: str | pathlib.Path | None = None, env: dict[str, str] | None = None) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    must(done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


@dataclass
class Step:
    """Some lines of a shell and what they print; or a file."""

    text: str
    installs: bool
    file: str = ""
    prints: list[str] = field(default_factory=list)


def steps(page: str) -> list[Step]:
    found: list[Step] = []
    parts = re.split(r"^```([^\n]*)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    section = ""
    for prose, words, text in zip(parts[0::3], parts[1::3], parts[2::3], strict=False):
        section = (re.findall(r"^## (.*)$", prose, re.MULTILINE) or [section])[-1]
        language, _, file = words.partition(" ")
        if file:
            must(f"`{file}`" in prose, f"the page does not say to save `{file}`")
            found.append(Step(text, section == "Install", file))
            continue
        must(language == "sh", f"a block of {words!r}, which nobody runs")
        for commands, output in re.findall(COMMANDS, text, re.MULTILINE):
            found.append(Step(commands, section == "Install", prints=[line[2:] for line in output.splitlines()]))
    return found


def matches(promised: list[str], printed: str) -> bool:
    """`…` alone stands for any lines, and within a line for any text."""
    pattern = "".join("(?:.*\n)*" if line == "…" else like(line) + "\n" for line in promised)
    return re.fullmatch(pattern, printed if printed.endswith("\n") or not printed else printed + "\n") is not None


def like(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split("…"))


def script(found: list[Step], place: pathlib.Path) -> str:
    """Each step's output goes to a file of its own; the first one that fails ends the page."""
    lines = []
    for at, step in enumerate(found):
        if step.file:
            (place / f"{at}.file").write_text(step.text)
            lines += [f"mkdir -p $(dirname {step.file}); cp ../{at}.file {step.file}"]
            continue
        out = f"../{at}.out"
        lines += [f"{{ {step.text.strip()}\n}} >{out} 2>&1", f"echo $? >../{at}.status"]
        if step.text.rstrip().endswith("&") and ">" not in step.text:
            lines += [f"until [ -s {out} ]; do kill -0 $! || exit 9; sleep 0.1; done"]
    return "\n".join(lines) + "\n"


POSTGRES = """
ip link set lo up
$AS_POSTGRES $POSTGRES/postgres -D "$PLACE/postgres/data" -k "$PLACE/postgres" \\
    -c listen_addresses=127.0.0.1 -c fsync=off >../postgres.log 2>&1 &
until psql -q "$SHOP_URL" -c "" 2>&1; do kill -0 $! || exit 9; sleep 0.1; done
"""


def postgres(place: pathlib.Path) -> dict[str, str]:
    """A new directory for it. It does not run as root."""
    programs = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    must(bool(programs), "PostgreSQL is missing: install the Debian package postgresql")
    place.chmod(0o755)
    folder = place / "postgres"
    folder.mkdir()
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
    if user:
        shutil.chown(folder, "postgres", "postgres")
    run(*user, programs[-1] / "initdb", "-D", folder / "data", "-A", "trust", "-U", "postgres", "--no-sync", cwd="/")
    return {
        "PLACE": os.fspath(place),
        "POSTGRES": os.fspath(programs[-1]),
        "AS_POSTGRES": " ".join(user),
        "SHOP_URL": "postgres://postgres@127.0.0.1:5432/postgres",
        "JDBC_URL": "jdbc:postgresql://127.0.0.1/postgres?user=postgres",
    }


def follow(name: str, release: Release, control: bool) -> None:
    page = (PAGES / f"{name}.md").read_text()
    must(page.count("\n") <= MOST_LINES, f"{page.count(chr(10))} lines are more than {MOST_LINES}")
    found = steps(page)
    if control:
        without_the_fence(name, found)
    with tempfile.TemporaryDirectory(prefix="palisade-first-hour-") as folder:
        place = pathlib.Path(folder)
        (place / "shop").mkdir()
        environment = release.environment(name, place) | postgres(place)
        for step in found:
            step.text = release.local(step.text)
        split = sum(step.installs for step in found)
        must(all(step.installs for step in found[:split]), "## Install comes first")
        # The second half has a network, processes and shared memory of its own, which end with its shell.
        alone = "exec unshare --net --ipc --pid --fork --kill-child --mount-proc bash ../rest.sh\n"
        text = script(found, place)
        lines = script(found[:split], place)
        (place / "rest.sh").write_text(POSTGRES + text.removeprefix(lines))
        (place / "page.sh").write_text(lines + alone)
        with (place / "said").open("w") as said:
            process = subprocess.Popen(
                ["bash", "../page.sh"], cwd=place / "shop", env=environment, stdin=subprocess.DEVNULL,
                stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip
        try:
            watch(found, place, process, control)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def watch(found: list[Step], place: pathlib.Path, process: subprocess.Popen[bytes], control: bool) -> None:
    """Judges each step when it has ended, because the page of a failed one may wait for ever."""
    end = time.monotonic() + LONG
    for at, step in enumerate(found):
        status = place / f"{at}.status"
        while not step.file and not (status.exists() and status.read_text()):
            if process.poll() is not None or time.monotonic() > end:
                out = place / f"{at}.out"
                printed = out.read_text(errors="replace") if out.exists() else "nothing"
                raise Wrong(f"{step.text}did not end; it printed\n{printed}\n{(place / 'said').read_text()}")
            time.sleep(0.05)  # real time: asked again, up to a deadline
        if not step.file:
            printed = (place / f"{at}.out").read_text(errors="replace")
            judge(step, int(status.read_text()), printed, control)


def judge(step: Step, status: int, printed: str, control: bool) -> None:
    if control and "kill -CONT" in step.text:
        must(
            WRITTEN.search(printed) is not None, f"without the fence, the zombie's write did not go through:\n{printed}"
        )
    elif step.prints and not control:
        must(matches(step.prints, printed), f"{step.text}printed\n{printed}")
    else:
        must(status == 0 or bool(step.prints), f"{step.text}ended with {status}:\n{printed}")


def without_the_fence(name: str, found: list[Step]) -> None:
    for old, new in [(FENCE, "\n"), *CONTROLS[name]]:
        with_it = [step for step in found if old in step.text]
        must(bool(with_it), f"the page has no {old!r}, which its control replaces")
        for step in with_it:
            step.text = step.text.replace(old, new)


class Release:
    """The folder of a release, or of the parts of one that these pages need."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    @staticmethod
    def of(program: pathlib.Path, pages: list[str], folder: pathlib.Path) -> Release:
        version = re.findall(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[0]
        os.environ["SOURCE_DATE_EPOCH"] = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
        where = "https://palisade.example/palisade"
        parts = ["--only=archive"] * (pages != ["python"]) + ["--only=wheel"] * ("python" in pages)
        program_py = ROOT / "deploy/release/program.py"
        run(program_py, program, version, where, ROOT / "LICENSE-MIT", folder, "--rehearse", *parts)
        sys.path.insert(0, os.fspath(program_py.parent))
        import packages  # noqa: PLC0415

        tempfile.tempdir = os.fspath(folder / "tmp")
        (folder / "tmp").mkdir()
        if "python" in pages:
            place = packages.staged("clients/python", version, where)
            run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={folder}/python", place)
        if "typescript" in pages:
            (folder / "npm").mkdir()
            packages.npm(packages.staged("clients/typescript", version, where), folder / "npm")
        if "go" in pages:
            for inside, module in (("", ""), ("/palisadepgx", "/palisadepgx")):
                place = packages.committed(f"clients/go{inside}")
                packages.go(place, f"palisade.example/palisade{module}", version, folder / "go")
        if "java" in pages:
            packages.maven(["clients/java", "clients/java-spring"], folder / "maven")
        tempfile.tempdir = None
        return Release(folder)

    def one(self, pattern: str) -> str:
        found = list(self.folder.glob(pattern))
        must(len(found) == 1, f"{pattern} in {self.folder}: {found}")
        return os.fspath(found[0])

    def local(self, text: str) -> str:
        """Names of packages that no registry has yet become files."""
        lines = text.splitlines(keepends=True)
        return "".join(
            line.replace("palisade-client", self.one("npm/*.tgz")) if line.startswith("npm install") else line
            for line in lines
        )

    def environment(self, name: str, place: pathlib.Path) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PALISADE_")}
        for archive in self.folder.glob("palisade-*-linux.tar.gz"):
            shutil.copy(archive, place / "shop")
        own = getattr(self, f"_{name}", None)
        return environment | (own(place) if own else {})

    def _shell(self, place: pathlib.Path) -> dict[str, str]:
        """A cron that runs each line of its table once, at once, with the environment that cron gives it."""
        cron = place / "bin/crontab"
        cron.parent.mkdir()
        cron.write_text(CRON)
        cron.chmod(0o755)
        return {"PATH": f"{cron.parent}:{os.environ['PATH']}"}

    def _python(self, place: pathlib.Path) -> dict[str, str]:
        self.one("python/palisade_client-*.whl")
        return {"PIP_FIND_LINKS": f"{self.folder}/python", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_QUIET": "1"}

    def _go(self, place: pathlib.Path) -> dict[str, str]:
        newest = run(ROOT / "clients/go/newest").strip()
        path = f"{newest}:{os.environ['PATH']}"
        ask = {**os.environ, "PATH": path}
        had, proxy = run("go", "env", "GOMODCACHE", "GOPROXY", env=ask).split()
        return {
            "PATH": path,
            "GOMODCACHE": os.fspath(place / "modules"),
            "GOPROXY": f"file://{self.folder}/go,file://{had}/cache/download,{proxy}",
            "GONOSUMDB": "palisade.example",
            "GOFLAGS": "-modcacherw",
            "GOTOOLCHAIN": "local",
        }

    def _java(self, place: pathlib.Path) -> dict[str, str]:
        """A repository that keeps what others published; ours is copied into it anew."""
        local = CACHE / "m2"
        shutil.rmtree(local / "example", ignore_errors=True)
        shutil.copytree(self.folder / "maven", local, dirs_exist_ok=True)
        return {"MAVEN_OPTS": f"-Dmaven.repo.local={local}"}

    def _rust(self, place: pathlib.Path) -> dict[str, str]:
        """The packed crates, or, without them, their folders in the tree."""
        packed = list(self.folder.glob("crates/*.crate"))
        for file in packed:
            run("tar", "-xzf", file, "-C", place)
        folders = [place / file.stem for file in packed] or [
            ROOT / "crates" / f"palisade-{it}" for it in ("client", "fence")
        ]
        lines = [f'{re.sub("-[0-9.]+$", "", folder.name)} = {{ path = "{folder}" }}\n' for folder in folders]
        (place / ".cargo").mkdir()
        (place / ".cargo/config.toml").write_text("[patch.crates-io]\n" + "".join(lines))
        (CACHE / "cargo").mkdir(parents=True, exist_ok=True)
        (place / "shop/target").symlink_to(CACHE / "cargo")
        return {"CARGO_PROFILE_DEV_DEBUG": "0"}


def outcome(name: str, release: Release, control: bool) -> bool:
    began, what = time.monotonic(), f"{name}{', without the fence' * control}"
    try:
        follow(name, release, control)
    except Wrong as error:
        print(f"{what}: {error}", file=sys.stderr, flush=True)
        return False
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="all without it")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--program", type=pathlib.Path)
    given.add_argument("--release", type=pathlib.Path)
    options = parser.parse_args()
    pages = options.pages or list(CONTROLS)
    with tempfile.TemporaryDirectory(prefix="palisade-release-") as folder:
        if options.program:
            release = Release.of(options.program.resolve(), pages, pathlib.Path(folder))
        else:
            release = Release(options.release.resolve())
        # The two runs of a page share its caches, so they take turns; pages wait for registries most of the time.
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            done = pool.map(lambda page: [outcome(page, release, control) for control in (False, True)], pages)
        return 0 if all(all(both) for both in done) else 1


if __name__ == "__main__":
    sys.exit(main())
