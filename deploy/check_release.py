#!/usr/bin/env python3
"""Installs what `cargo xtask release` made, each package by its own tool, and uses it.

    check_release.py FOLDER

The server is the program of the wheel; each client gets a grant from it, and the tokens must rise from one to the next.
The archive's program must look up names wherever it runs. Then each package is removed, and must leave nothing. Needed:
pip, npm, Go, Maven and a JDK, and the registries for what the packages depend on.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Iterator

from check_package import ROOT, SOON, Wrong, must, step

PYTHON = """
from palisade import Client
with Client().lock("orders") as grant:
    print(grant.token)
"""
NODE = """
import { Client } from "palisade-client";
const client = new Client();
await client.withLock("orders", {}, (lease) => console.log(String(lease.token)));
await client.close();
"""
GO = """
package main

import (
	"context"
	"fmt"

	"@MODULE@"
)

func main() {
	client, err := palisade.New()
	if err != nil {
		panic(err)
	}
	err = client.With(context.Background(), "orders", func(_ context.Context, lease *palisade.Lease) error {
		fmt.Println(lease.Token())
		return nil
	})
	if err != nil {
		panic(err)
	}
}
"""
JAVA = """
package shop;

import @GROUP@.Client;
import @GROUP@.Lease;

public final class Shop {
    public static void main(String[] arguments) throws Exception {
        Client client = Client.builder().build();
        try (Lease lease = client.lock("orders").acquire()) {
            System.out.println(lease.token());
        }
    }
}
"""
#: Both are modules, so that a name or a manifest that is no module's is found.
MODULE = "module shop { requires @GROUP@; requires @GROUP@.shedlock; }"
POM = """
<project><modelVersion>4.0.0</modelVersion><groupId>shop</groupId><artifactId>shop</artifactId><version>1</version>
<properties><maven.compiler.release>17</maven.compiler.release>
<project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties>
<build><plugins>
<plugin><artifactId>maven-compiler-plugin</artifactId><version>3.16.0</version></plugin>
<plugin><artifactId>maven-dependency-plugin</artifactId><version>3.11.0</version></plugin>
</plugins></build>
<repositories><repository><id>release</id><url>file://@FOLDER@/maven</url></repository></repositories>
<dependencies><dependency><groupId>@GROUP@</groupId><artifactId>palisade-shedlock</artifactId><version>@VERSION@</version></dependency>
</dependencies></project>
"""


class Release:
    def __init__(self, folder: pathlib.Path, place: pathlib.Path) -> None:
        self.folder, self.place = folder, place
        mods = list((folder / "go").rglob("*.mod"))
        self.modules = sorted(re.findall(r"^module (\S+)$", mod.read_text(), re.MULTILINE)[0] for mod in mods)
        self.module, self.version = self.modules[0], mods[0].stem[1:]
        (pom,) = (folder / "maven").rglob("palisade-client-*.pom")
        self.group = re.findall(r"<groupId>(.+?)</groupId>", pom.read_text())[0]
        self.environment = {**os.environ, "HOME": os.fspath(place / "home"), "PALISADE_AUTHORITY": ""}
        del self.environment["PALISADE_AUTHORITY"]
        (place / "home").mkdir()
        self.archive = self.one(f"palisade-{self.version}-*-linux.tar.gz")

    def one(self, pattern: str) -> pathlib.Path:
        found = list(self.folder.glob(pattern))
        must(len(found) == 1, f"{pattern} in {self.folder}: {found}")
        return found[0]

    def run(self, *command: object, at: pathlib.Path) -> str:
        words = [str(word) for word in command]
        done = subprocess.run(
            words, cwd=at, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        must(done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def write(self, file: pathlib.Path, text: str) -> None:
        names = {"MODULE": self.module, "GROUP": self.group, "VERSION": self.version, "FOLDER": os.fspath(self.folder)}
        for name, value in names.items():
            text = text.replace(f"@{name}@", value)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def archive(release: Release) -> None:
    """From the file to the first grant, as a reader does it."""
    prefix = release.place / "prefix"
    prefix.mkdir()
    program, began = prefix / "bin/palisade", time.monotonic()
    release.run("tar", "-xzf", release.archive, "--strip-components=1", at=prefix)
    with server(release, program, "first") as url:
        release.run(program, "acquire", "orders", "--ttl", "1h", "--authority", url, at=prefix)
        print(f"from the archive to the first grant: {time.monotonic() - began:.2f} s")
    said = release.run(program, "--version", at=prefix)
    must(said.startswith(f"palisade {release.version}"), f"it says {said}")
    for path in (
        "share/man/man1/palisade-run.1",
        "share/bash-completion/completions/palisade",
        "LICENSES-OF-PARTS.txt",
    ):
        must((prefix / path).stat().st_size > 0, f"{path} is empty")


def look_up(release: Release) -> None:
    """What the tests unpacked for MySQL has a newer C library than this machine."""
    program = release.place / "prefix/bin/palisade"
    if "INTERP" in release.run("readelf", "--program-headers", "--wide", program, at=release.place):
        # Of a rehearsal: program.py refuses it otherwise.
        print("NOT RUN: the look-up of names, because this program needs a dynamic loader")
        return
    others = [folder for folder in [ROOT / "target/palisade-tools/mysql/root"] if (folder / "usr/lib64").exists()]
    libraries = [f"--library={folder}" for folder in others]
    done = subprocess.run([ROOT / "deploy/check_names.py", program, *libraries], check=False)
    must(done.returncode == 0, "the program of the archive does not find a name, as above")


def debian(release: Release) -> None:
    """It upgrades to itself."""
    package = release.one("debian/*.deb")
    done = subprocess.run([ROOT / "deploy/check_package.py", package, package], check=False)
    must(done.returncode == 0, "the Debian package fails, as above")


def sizes(release: Release) -> None:
    """Checks the checksums, too: a file without one could be anything."""
    release.run("sha256sum", "--quiet", "--strict", "--check", "SHA256SUMS", at=release.folder)
    with tarfile.open(release.archive) as files:
        member = files.getmember(f"{release.archive.name.removesuffix('.tar.gz')}/bin/palisade")
    print(f"{member.size / 2**20:8.2f} MiB  the program")
    patterns = ("*.gz", "debian/*.deb", "python/*.*", "npm/*.tgz", "maven/**/*.jar", "go/**/*.zip", "crates/*.crate")
    for file in [file for pattern in patterns for file in sorted(release.folder.glob(pattern))]:
        print(f"{file.stat().st_size / 2**20:8.2f} MiB  {file.relative_to(release.folder)}")


def python(release: Release) -> pathlib.Path:
    """An environment with both packages; its folder of programs."""
    place = release.place / "python"
    release.run(sys.executable, "-m", "venv", place, at=release.place)
    wheels = (release.one("python/palisade_server-*.whl"), release.one("python/palisade_client-*.whl"))
    release.run(place / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *wheels, at=release.place)
    return place / "bin"


@contextlib.contextmanager
def server(release: Release, program: pathlib.Path, data: str = "data") -> Iterator[str]:
    log = release.place / f"{data}.log"
    with log.open("w") as out:
        where = os.fspath(release.place / data)
        command = [os.fspath(program), "serve", "--listen", "127.0.0.1:0", "--data", where, "--json"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        end = time.monotonic() + SOON
        while not (url := re.findall(r'"url": ?"(http[^"]+)"', log.read_text())):
            must(process.poll() is None and time.monotonic() < end, f"no server: {log.read_text()}")
            time.sleep(0.05)  # real time: asked again, up to a deadline
        yield url[0]
    finally:
        process.terminate()
        process.wait(SOON)


def tokens(release: Release, programs: pathlib.Path) -> Iterator[tuple[str, int]]:
    release.write(release.place / "orders.py", PYTHON)
    yield "Python", int(release.run(programs / "python", "orders.py", at=release.place))

    shop = release.place / "npm"
    release.write(shop / "package.json", '{ "private": true, "type": "module" }')
    release.write(shop / "orders.js", NODE)
    release.run("npm", "install", "--silent", "--no-audit", "--no-fund", release.one("npm/*.tgz"), at=shop)
    yield "TypeScript", int(release.run("node", "orders.js", at=shop))
    release.run("npm", "uninstall", "--silent", "palisade-client", at=shop)
    must(not (shop / "node_modules/palisade-client").exists(), "npm left the package")

    shop = release.place / "go"
    release.write(shop / "orders.go", GO)
    os.environ["PATH"] = f"{release.run(ROOT / 'clients/go/newest', at=ROOT).strip()}:{os.environ['PATH']}"
    release.environment["PATH"] = os.environ["PATH"]
    # A module cache of its own is read-only, and cannot be removed like other files.
    release.environment |= {
        "GOPROXY": f"file://{release.folder}/go",
        "GONOSUMDB": release.module,
        "GOFLAGS": "-modcacherw",
    }
    release.environment |= {
        "GOTOOLCHAIN": "local",
        "GOCACHE": os.environ.get("GOCACHE", f"{os.environ['HOME']}/.cache/go-build"),
    }
    for module in release.modules:
        release.run("go", "mod", "download", f"{module}@v{release.version}", at=release.place)
    release.run("go", "mod", "init", "shop", at=shop)
    release.run("go", "get", f"{release.module}@v{release.version}", at=shop)
    yield "Go", int(release.run("go", "run", ".", at=shop))

    shop = release.place / "java"
    release.write(shop / "pom.xml", POM)
    release.write(shop / "src/main/java/module-info.java", MODULE)
    release.write(shop / "src/main/java/shop/Shop.java", JAVA)
    # Its user's settings may name a mirror; everything it downloads goes away with this test.
    maven = ["mvn", "--batch-mode", "--quiet", f"-Dmaven.repo.local={release.place / 'm2'}"]
    settings = pathlib.Path(os.environ["HOME"]) / ".m2/settings.xml"
    maven += ["--settings", os.fspath(settings)] if settings.exists() else []
    release.run(*maven, "compile", "dependency:build-classpath", "-Dmdep.outputFile=path", at=shop)
    path = f"target/classes:{(shop / 'path').read_text()}"
    yield "Java", int(release.run("java", "--module-path", path, "--module", "shop/shop.Shop", at=shop))


def check(release: Release) -> None:
    step("sizes")
    sizes(release)
    step("the archive")
    archive(release)
    look_up(release)
    step("the wheels")
    programs = python(release)
    with server(release, programs / "palisade") as url:
        release.environment["PALISADE_URL"] = url
        last = 0
        for language, token in tokens(release, programs):
            step(f"{language}: token {token}")
            must(token > last, f"{language} got token {token} after {last}")
            last = token
    names = ("palisade-client", "palisade-server")
    release.run(programs / "pip", "uninstall", "--yes", "--quiet", *names, at=release.place)
    left = [file for file in programs.parent.rglob("*palisade*") if file.is_file()]
    must(not left, f"pip left {left}")
    release.run("go", "clean", "-modcache", at=release.place)
    left = list((release.place / "home").rglob("*palisade*"))
    must(not left, f"in the home of its user are left {left}")
    step("the Debian package")
    debian(release)


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    place = pathlib.Path(tempfile.mkdtemp(prefix="palisade-installed-"))
    try:
        check(Release(pathlib.Path(sys.argv[1]).resolve(), place))
    except Wrong as wrong:
        print(f"check_release: {wrong}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(place)
    step("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
