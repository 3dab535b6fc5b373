#!/usr/bin/env python3
"""Packs a static program; called by `cargo xtask release`.

    program.py PROGRAM VERSION REPOSITORY LICENCES OUT [--rehearse] [--only PART]...

Makes all of these, or the named parts (archive, wheel, image), with all times at SOURCE_DATE_EPOCH:

    OUT/palisade-VERSION-ARCH-linux.tar.gz   the program, man pages, completions, the unit of systemd, licences
    OUT/python/palisade_server-….whl         the same program for PyPI: `pip install` puts it into the environment's bin
    OUT/palisade-VERSION-image.tar.gz        the context of the container image: `docker build - <FILE`

LICENCES is a file with the licences of the program's parts. Man pages and completions are printed by the program, so
it must run on this machine. A program that needs a dynamic loader is refused, unless this is a rehearsal.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import io
import os
import pathlib
import platform
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
PARTS = ("archive", "wheel", "image")
#: Where bash, zsh and fish look below a prefix such as /usr/local.
COMPLETIONS = {
    "bash": "share/bash-completion/completions/palisade",
    "zsh": "share/zsh/site-functions/_palisade",
    "fish": "share/fish/vendor_completions.d/palisade.fish",
}
#: As the unit, the settings and the rest of the package lie in the archive.
FILES = {
    "CHANGELOG.md": "CHANGELOG.md",
    "LICENSE-APACHE": "LICENSE-APACHE",
    "LICENSE-MIT": "LICENSE-MIT",
    "deploy/alerts.yaml": "share/palisade/alerts.yaml",
    "deploy/grafana.json": "share/palisade/grafana.json",
    "deploy/palisade.service": "share/palisade/palisade.service",
    "deploy/palisade.toml": "share/palisade/palisade.toml",
}
README = """\
# palisade-server

The program of Palisade, a lock service that grants leases with fencing tokens: the lock server, the fenced store, the
gateway and the command line, as one static program.

```sh
pip install palisade-server
palisade serve
```

The client for Python is `palisade-client`. On PyPI, `palisade` is another project, with a program of the same name: do
not install both into one environment. Pages, sources and changes: {repository}
"""


def said(program: pathlib.Path, *words: str) -> bytes:
    return subprocess.run([program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout


def is_static(program: pathlib.Path) -> bool:
    """Whether it names no dynamic loader: PT_INTERP is the segment with its path."""
    headers = subprocess.run(
        ["readelf", "--program-headers", "--wide", program], capture_output=True, text=True, check=True
    )
    return "INTERP" not in headers.stdout


def archive(files: dict[str, tuple[bytes, int]], out: pathlib.Path) -> None:
    """A name that ends with a slash is a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, (content, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.type = tarfile.DIRTYPE if path.endswith("/") else tarfile.REGTYPE
            entry.size, entry.mode, entry.mtime = len(content), mode, EPOCH
            tar.addfile(entry, io.BytesIO(content))
    out.write_bytes(gzip.compress(buffer.getvalue(), 9, mtime=EPOCH))


def wheel(
    program: bytes, version: str, machine: str, texts: dict[str, bytes], repository: str, out: pathlib.Path
) -> None:
    """Compressed tags: a static program runs on every Linux, whatever its C library."""
    systems = ["manylinux_2_17", "manylinux2014", "musllinux_1_1"]
    systems = [f"{system}_{machine}" for system in systems]
    info, name = f"palisade_server-{version}.dist-info", f"palisade_server-{version}-py3-none-{'.'.join(systems)}.whl"
    metadata = f"""\
Metadata-Version: 2.4
Name: palisade-server
Version: {version}
Summary: Leases with fencing tokens: the lock server, the fenced store and the command line
Author-email: The Palisade developers <maintainers@palisade.example>
License-Expression: MIT OR Apache-2.0
{"".join(f"License-File: {text}{chr(10)}" for text in texts)}Keywords: lock,lease,fencing token,distributed lock
Classifier: Development Status :: 4 - Beta
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: System :: Distributed Computing
Project-URL: Repository, {repository}
Project-URL: Changelog, {repository}/blob/main/CHANGELOG.md
Project-URL: Issues, {repository}/issues
Requires-Python: >=3.9
Description-Content-Type: text/markdown

{README.format(repository=repository)}"""
    tags = "".join(f"Tag: py3-none-{system}\n" for system in systems)
    about = f"Wheel-Version: 1.0\nGenerator: palisade\nRoot-Is-Purelib: false\n{tags}"
    files = {
        f"palisade_server-{version}.data/scripts/palisade": program,
        **{f"{info}/licenses/{text}": content for text, content in texts.items()},
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": about.encode(),
    }
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    with zipfile.ZipFile(out / name, "w", zipfile.ZIP_DEFLATED) as zipped:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, time.gmtime(EPOCH)[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | (0o755 if "/scripts/" in path else 0o644)) << 16
            zipped.writestr(entry, content)


def image(program: bytes, texts: dict[str, bytes], out: pathlib.Path) -> None:
    """The last stage of deploy/Dockerfile, on files instead of a build."""
    _, scratch, last = (ROOT / "deploy/Dockerfile").read_text().partition("FROM scratch\n")
    wanted = "COPY --from=build /image/ /\n"
    assert wanted in last, "deploy/Dockerfile has another last stage"
    copies = (
        "COPY usr /usr\n"
        "# A new volume takes owner and mode from here.\n"
        "COPY --chown=65532:65532 --chmod=700 data /var/lib/palisade\n"
    )
    files = {
        "Dockerfile": ((scratch + last.replace(wanted, copies)).encode(), 0o644),
        "data/": (b"", 0o700),
        "usr/bin/palisade": (program, 0o755),
        **{f"usr/share/doc/palisade/{name}": (content, 0o644) for name, content in texts.items()},
    }
    archive(files, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("version")
    parser.add_argument("repository")
    parser.add_argument("licences", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--only", action="append", choices=PARTS)
    given = parser.parse_args()
    parts = given.only or PARTS
    if not is_static(given.program) and not given.rehearse:
        sys.exit(f"{given.program} needs a dynamic loader: deploy/build_static builds one that needs none")
    machine = platform.machine()
    with tempfile.TemporaryDirectory(prefix="palisade-release-") as place:
        program = pathlib.Path(place) / "palisade"
        shutil.copy(given.program, program)
        subprocess.run(["strip", "--strip-unneeded", program], check=True)
        pages = pathlib.Path(place) / "man"
        pages.mkdir()
        said(program, "man", os.fspath(pages))
        files = {"bin/palisade": (program.read_bytes(), 0o755)}
        files |= {target: ((ROOT / source).read_bytes(), 0o644) for source, target in FILES.items()}
        files |= {path: (said(program, "completions", shell), 0o644) for shell, path in COMPLETIONS.items()}
        files |= {f"share/man/man1/{page.name}": (page.read_bytes(), 0o644) for page in pages.iterdir()}
        files["LICENSES-OF-PARTS.txt"] = (given.licences.read_bytes(), 0o644)
        name = f"palisade-{given.version}-{machine}-linux"
        if "archive" in parts:
            archive({f"{name}/{path}": file for path, file in files.items()}, given.out / f"{name}.tar.gz")
        texts = {name: files[name][0] for name in ("LICENSE-APACHE", "LICENSE-MIT", "LICENSES-OF-PARTS.txt")}
        if "wheel" in parts:
            (given.out / "python").mkdir(exist_ok=True)
            wheel(program.read_bytes(), given.version, machine, texts, given.repository, given.out / "python")
        if "image" in parts:
            image(program.read_bytes(), texts, given.out / f"palisade-{given.version}-image.tar.gz")


if __name__ == "__main__":
    main()
