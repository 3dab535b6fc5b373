#!/usr/bin/env python3
"""Builds the packages of other languages from the committed files; called by `cargo xtask release`.

    packages.py OUT VERSION REPOSITORY TOOLS KIND:FOLDER:NAME…

KIND is python, npm, go or maven, and NAME the package's name in its registry. TOOLS is a folder with the programs of
xtask/tools/release.txt. Makes OUT/python, OUT/npm, OUT/go (a folder for GOPROXY) and OUT/maven (a Maven repository).
Equal commits make equal files: every time in them is SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from typing import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
TIME = datetime.datetime.fromtimestamp(EPOCH, datetime.UTC)


def run(*command: object, at: pathlib.Path = ROOT) -> bytes:
    """Returns what it prints; its errors go to the terminal."""
    words = [os.fspath(word) if isinstance(word, pathlib.Path) else str(word) for word in command]
    return subprocess.run(words, cwd=at, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout


def committed(folder: str) -> pathlib.Path:
    """A copy of the committed files of a folder."""
    place = pathlib.Path(tempfile.mkdtemp())
    archive = place / "archive.tar"
    run("git", "archive", f"--output={archive}", f"HEAD:{folder}")
    with tarfile.open(archive) as tar:
        tar.extractall(place / "package", filter="data")
    return place / "package"


def staged(folder: str, version: str, repository: str) -> pathlib.Path:
    """That copy with the changelog, and with a README whose links work outside the repository."""
    place = committed(folder)
    shutil.copy(ROOT / "CHANGELOG.md", place)
    readme = place / "README.md"
    up = "../" * len(pathlib.PurePath(folder).parts)
    readme.write_text(readme.read_text().replace(f"]({up}", f"]({repository}/blob/v{version}/"))
    return place


def python(place: pathlib.Path, out: pathlib.Path, tools: pathlib.Path) -> None:
    """The wheel is built from the source distribution, so nothing is missing there."""
    run(tools / "bin/python", "-m", "build", "--no-isolation", f"--outdir={out}", at=place)
    run(tools / "bin/twine", "check", "--strict", *out.glob("*.whl"), *out.glob("*.tar.gz"))


def npm(place: pathlib.Path, out: pathlib.Path) -> None:
    run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", at=place)
    run("npm", "pack", "--silent", f"--pack-destination={out}", at=place)
    # It publishes nothing, and says what the registry would refuse.
    run("npm", "publish", "--dry-run", "--silent", *out.glob("*.tgz"), at=place)


def go(place: pathlib.Path, module: str, version: str, out: pathlib.Path) -> None:
    """The files of a module proxy: https://go.dev/ref/mod#goproxy-protocol."""
    # Capitals are escaped, because some file systems do not tell them from small letters.
    home = out / "".join(f"!{c.lower()}" if c.isupper() else c for c in module) / "@v"
    home.mkdir(parents=True)
    name = f"v{version}"
    (home / "list").write_text(f"{name}\n")
    (home / f"{name}.info").write_text(json.dumps({"Version": name, "Time": TIME.strftime("%Y-%m-%dT%H:%M:%SZ")}))
    shutil.copy(place / "go.mod", home / f"{name}.mod")
    with zipfile.ZipFile(home / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in of_module(place):
            entry = zipfile.ZipInfo(f"{module}@{name}/{file.relative_to(place)}")
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes())


def of_module(place: pathlib.Path) -> Iterator[pathlib.Path]:
    """Its files without those of the modules inside it."""
    nested = {mod.parent for mod in place.rglob("go.mod")} - {place}
    for file in sorted(place.rglob("*")):
        if file.is_file() and not file.is_symlink() and not nested & set(file.parents):
            yield file


def maven(folders: list[str], out: pathlib.Path) -> None:
    """All of them at once, so that one finds the other before it is in any registry."""
    place = pathlib.Path(tempfile.mkdtemp())
    modules = ""
    for number, folder in enumerate(folders):
        committed(folder).rename(place / str(number))
        modules += f"<module>{number}</module>"
    reactor = place / "pom.xml"
    reactor.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>none</groupId><artifactId>none</artifactId>"
        "<version>0</version><packaging>pom</packaging>"
        "<properties><maven.deploy.skip>true</maven.deploy.skip></properties>"
        f"<modules>{modules}</modules></project>"
    )
    options = ["--batch-mode", "--quiet", "-Dstyle.color=never", "-Dmaven.test.skip=true", "-Dmdep.skip=true"]
    times = f"-Dproject.build.outputTimestamp={TIME.strftime('%Y-%m-%dT%H:%M:%SZ')}"
    to = f"-DaltDeploymentRepository=release::file://{out}"
    run("mvn", *options, times, to, "--activate-profiles=release", f"--file={reactor}", "deploy")
    # They say when this ran, and a registry makes its own.
    for file in out.rglob("maven-metadata.xml*"):
        file.unlink()


def main() -> None:
    out, version, repository, tools = pathlib.Path(sys.argv[1]).resolve(), *sys.argv[2:5]
    packages = [word.split(":", 2) for word in sys.argv[5:]]
    for kind, folder, name in packages:
        to = out / kind
        to.mkdir(parents=True, exist_ok=True)
        print(f"{name} ({kind})", flush=True)
        if kind == "python":
            python(staged(folder, version, repository), to, pathlib.Path(tools).resolve())
        elif kind == "npm":
            npm(staged(folder, version, repository), to)
        elif kind == "go":
            go(committed(folder), name, version, to)
    maven([folder for kind, folder, _ in packages if kind == "maven"], out / "maven")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="palisade-release-") as tempfile.tempdir:
        main()
