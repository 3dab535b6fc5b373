#!/usr/bin/env python3
"""Builds the container image from deploy/Dockerfile, and runs its program.

    check_image.py [--program FILE] [--without STEP]

Called by `cargo xtask package image`, as root, with buildah. No image can be fetched here, so the Dockerfile's first stage,
which only has Rust in it, is this machine: `deploy/build_static` runs on it, as the Dockerfile runs it. Everything else is the
Dockerfile's own. Then the image's command is started in its root, as its user, with processes and a network of its own.

`--program` takes a program that is already built; one that needs libraries makes this fail. `--without ownership` leaves the
volume to root, and must make this fail, too.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import Any

from check_package import ROOT, SOON, Wrong, enter, must, step

NAME = "locks.example"
URL = "http://127.0.0.1:7420"
CHROOT = shutil.which("chroot") or "chroot"


class Image:
    def __init__(self, place: pathlib.Path, stage: pathlib.Path) -> None:
        self.place = place
        (place / "nothing").mkdir()
        stages, file = f"--build-context=build={stage}", f"--file={ROOT / 'deploy/Dockerfile'}"
        self.buildah("bud", "--isolation=chroot", stages, file, "--tag=palisade", os.fspath(place / "nothing"))
        self.container = self.buildah("from", "--pull-never", "palisade").strip()
        config = json.loads(self.buildah("inspect", "--type=image", "palisade"))["OCIv1"]["config"]
        self.config: dict[str, Any] = config
        self.root = pathlib.Path(self.buildah("mount", self.container).strip())
        self.log = place / "log"

    def buildah(self, *command: str) -> str:
        store = [f"--root={self.place / 'store'}", f"--runroot={self.place / 'run'}", "--storage-driver=vfs"]
        ended = subprocess.run(
            ["buildah", *store, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        must(ended.returncode == 0, f"buildah {' '.join(command)}: {ended.stderr}")
        return ended.stdout

    def command(self, *words: str) -> list[str]:
        """Runs the image's own command, as a runtime does, unless another one is given."""
        words = words or tuple(self.config["Cmd"])
        user = self.config["User"]
        return [CHROOT, f"--userspec={user}", os.fspath(self.root), *self.config["Entrypoint"], *words]

    def environment(self) -> dict[str, str]:
        return dict(variable.split("=", 1) for variable in self.config["Env"])

    def run(self, *words: str, fails: bool = False) -> str:
        ended = subprocess.run(
            self.command(*words),
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SOON,
            check=False,
        )
        must((ended.returncode != 0) == fails, f"{words} ended with {ended.returncode}: {ended.stdout}")
        return ended.stdout

    def serve(self) -> subprocess.Popen[bytes]:
        with self.log.open("w") as log:
            server = subprocess.Popen(
                self.command("serve", "--insecure"),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + SOON
        while True:
            must(server.poll() is None, f"it ended: {self.log.read_text()}")
            try:
                with urllib.request.urlopen(f"{URL}/readyz", timeout=1):
                    return server
            except OSError:
                must(time.monotonic() < end, f"it does not serve: {self.log.read_text()}")
                time.sleep(0.05)  # real time: asked again, up to a deadline


def check(image: Image) -> None:
    step("what is in it")
    files = [file for file in image.root.rglob("*") if not file.is_dir() or not any(file.iterdir())]
    program = image.root / "usr/bin/palisade"
    held = image.root / "var/lib/palisade"
    must(sorted(files) == [program, held], f"more than the program and its volume: {files}")
    must(image.config["User"].split(":")[0] not in ("", "0", "root"), "it runs as root")
    must(image.config["Volumes"] == {"/var/lib/palisade": {}}, "the data are no volume")
    print(f"one file of {program.stat().st_size / 2**20:.1f} MiB")
    # The directories that every runtime provides.
    for name in ("dev", "proc"):
        (image.root / name).mkdir()
        subprocess.run(["mount", "--rbind", f"/{name}", image.root / name], check=True)
    step("its own command asks who may reach it")
    said = image.run(fails=True)
    must("--tls-cert" in said and "--insecure" in said, f"it does not say what to do: {said}")
    step("serve, and a client that knows a name")
    (image.root / "etc").mkdir()
    (image.root / "etc/hosts").write_text(f"127.0.0.1 localhost {NAME}\n")
    server = image.serve()
    must((held / "data").stat().st_mode & 0o777 == 0o700, "others may read the data")
    image.run("acquire", "orders", "--ttl", "1h", "--authority", f"http://{NAME}:7420")
    step("kill, and start again")
    server.kill()
    server.wait()
    server = image.serve()
    must("orders is held" in image.run("show", "orders", "--authority", URL), "the lock is gone")
    server.terminate()
    must(server.wait(SOON) == 0, f"it ended with {server.returncode}: {image.log.read_text()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path)
    parser.add_argument("--without", choices=["ownership"])
    arguments = parser.parse_args()
    if not enter("image"):
        return 0
    try:
        with tempfile.TemporaryDirectory(prefix="palisade-image-") as place:
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            try:
                stage = pathlib.Path(place) / "stage"
                step("build")
                subprocess.run(
                    [ROOT / "deploy/build_static", stage / "image", *filter(None, [arguments.program])], check=True
                )
                if arguments.without == "ownership":
                    os.chown(stage / "image/var/lib/palisade", 0, 0)
                check(Image(pathlib.Path(place), stage))
            finally:
                subprocess.run(["umount", "--recursive", "--lazy", place], check=False)
    except Wrong as wrong:
        print(f"check_image: {wrong}", file=sys.stderr)
        return 1
    step("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
