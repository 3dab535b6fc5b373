#!/usr/bin/env python3
"""Looks up names with a static program, beside each C library and configuration that it may meet.

    check_names.py PROGRAM [--library ROOT]...

Called by deploy/check_release.py, as root. Each place is a root folder with the program, /etc/hosts and
/etc/resolv.conf as a container engine makes them, and a name server on loopback. Some have nsswitch.conf and this
machine's libraries, from which a static glibc takes the modules that the file names; `--library` adds the root folder
of another glibc. In each place one name is in the file, one at the name server, one in its search domain, and one
nowhere. The last must fail, with its name, and so must the one at the name server once that is gone. A program that
needs libraries makes this fail.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from typing import Iterator, Optional

from check_package import SOON, Wrong, enter, must, step

DOMAIN = "locks.test"
IN_FILE, IN_DNS, IN_SEARCH, NOWHERE = f"file.{DOMAIN}", f"dns.{DOMAIN}", "dns", f"nowhere.{DOMAIN}"
#: Of Debian with avahi, of Ubuntu and Fedora with systemd-resolved, of older systems.
SWITCHES = {
    "avahi": "hosts: files mdns4_minimal [NOTFOUND=return] dns",
    "resolved": "hosts: files mymachines myhostname resolve [!UNAVAIL=return] dns",
    "hesiod": "hosts: hesiod compat files dns\npasswd: compat systemd\n",
}
A, AAAA, MISSING = 1, 28, 3


def answer(query: bytes) -> bytes:
    """127.0.0.1 for one name, no IPv6 address, and no other name: RFC 1035."""
    end = query.index(b"\0", 12) + 5
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    known, kind = ".".join(labels).lower() == IN_DNS, struct.unpack("!H", query[end - 4 : end - 2])[0]
    found = known and kind == A
    head = query[:2] + struct.pack("!HHHHH", 0x8580 | (0 if known else MISSING), 1, int(found), 0, 0)
    record = struct.pack("!HHHIH", 0xC00C, A, 1, 1, 4) + socket.inet_aton("127.0.0.1")
    return head + query[12:end] + (record if found else b"")


@contextlib.contextmanager
def name_server() -> Iterator[None]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.bind(("127.0.0.1", 53))

        def serve() -> None:
            query, caller = asked.recvfrom(512)
            while query:
                asked.sendto(answer(query), caller)
                query, caller = asked.recvfrom(512)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            asked.sendto(b"", asked.getsockname())
            thread.join()


class Place:
    """A root folder in which the program runs."""

    def __init__(
        self, folder: pathlib.Path, program: pathlib.Path, switch: str = "", library: Optional[pathlib.Path] = None
    ) -> None:
        self.root = folder
        for name in ("usr", "etc", "dev", "tmp", "opt"):
            (folder / name).mkdir(parents=True)
        subprocess.run(["mount", "--bind", "/dev", folder / "dev"], check=True)
        shutil.copy(program, folder / "opt/palisade")
        (folder / "etc/hosts").write_text(f"127.0.0.1 localhost {IN_FILE}\n")
        (folder / "etc/resolv.conf").write_text(
            f"nameserver 127.0.0.1\nsearch {DOMAIN}\noptions timeout:1 attempts:2 ndots:5\n"
        )
        if switch:
            (folder / "etc/nsswitch.conf").write_text(switch)
        if library:
            subprocess.run(["mount", "--bind", "-o", "ro", library / "usr", folder / "usr"], check=True)
            for name in ("lib", "lib64"):
                (folder / name).symlink_to(f"usr/{name}")

    def look_up(self, name: str) -> tuple[bool, str]:
        """Whether it found the server by this name, and what it said."""
        ended = subprocess.run(
            [shutil.which("chroot") or "chroot", self.root, "/opt/palisade", "ls", "--authority", f"http://{name}:7420"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SOON, check=False, env={},
        )  # fmt: skip
        return ended.returncode == 0, f"{ended.returncode}: {ended.stdout}{ended.stderr}"

    def check(self) -> None:
        with name_server():
            for name in (IN_FILE, IN_DNS, IN_SEARCH):
                found, said = self.look_up(name)
                must(found, f"{name} ended with {said}")
            self.not_found(NOWHERE)
        # The control: it was the name server that knew these.
        self.not_found(IN_DNS)
        must(self.look_up(IN_FILE)[0], "the file needs no name server")

    def not_found(self, name: str) -> None:
        found, said = self.look_up(name)
        must(not found and name in said and "look" in said, f"{name} must be found nowhere, but ended with {said}")


def check(place: pathlib.Path, program: pathlib.Path, libraries: list[pathlib.Path]) -> None:
    with (place / "log").open("w") as log:
        server = subprocess.Popen(
            [program, "serve", "--listen", "0.0.0.0:7420", "--insecure", "--data", place / "data"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        end = time.monotonic() + SOON
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen("http://127.0.0.1:7420/readyz", timeout=1):
                break
            must(server.poll() is None and time.monotonic() < end, f"no server: {(place / 'log').read_text()}")
            time.sleep(0.05)  # real time: asked again, up to a deadline
        step("names without a library: the file of hosts, the name server, the search domain")
        Place(place / "image", program).check()
        for number, library in enumerate([pathlib.Path("/"), *libraries]):
            for name, switch in SWITCHES.items():
                step(f"names beside the C library of {library}, as with {name}")
                Place(place / f"{name}{number}", program, switch, library).check()
    finally:
        server.kill()
        server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--library", type=pathlib.Path, action="append", default=[])
    arguments = parser.parse_args()
    if not enter("look-up of names"):
        return 0
    try:
        with tempfile.TemporaryDirectory(prefix="palisade-names-") as folder:
            place = pathlib.Path(folder)
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            try:
                check(place, arguments.program.resolve(), [folder.resolve() for folder in arguments.library])
            finally:
                subprocess.run(["umount", "--recursive", "--lazy", place], check=False)
    except Wrong as wrong:
        print(f"check_names: {wrong}", file=sys.stderr)
        return 1
    step("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
