"""P: certificates of clients: one that is replaced in time, and one that ends."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from typing import Any

from .clock import now_ms, pause, until
from .driver import Driver
from .rules import rule
from .servers import Palisade
from .trial import Trial, deadline_of, expect

# `palisade auth cert` counts in days. openssl takes an end to the second.
CONFIGURATION = """
[ca]
default_ca = short
[short]
database = {place}/index.txt
new_certs_dir = {place}
certificate = {place}/ca.pem
private_key = {place}/ca.key
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
[req]
distinguished_name = any
"""


class Authority:
    """A CA with a server that asks for a client's certificate, and the files of a client."""

    def __init__(self, trial: Trial) -> None:
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="palisade-suite-"))
        trial.ends.append(lambda: shutil.rmtree(self.place, ignore_errors=True))
        for subject in ("127.0.0.1", "me"):
            command = [trial.binary, "auth", "cert", "--dir", str(self.place), subject]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (self.place / "openssl.cnf").write_text(CONFIGURATION.format(place=self.place))
        (self.place / "index.txt").touch()
        own = ["--tls-cert", f"{self.place}/127.0.0.1.pem", "--tls-key", f"{self.place}/127.0.0.1.key"]
        self.server = Palisade(trial.binary, flags=[*own, "--tls-client-ca", f"{self.place}/ca.pem"])
        trial.ends.append(self.server.stop)
        self.ca, self.cert, self.key = (str(self.place / name) for name in ("ca.pem", "client.pem", "client.key"))

    def short(self, seconds: int) -> int:
        """Gives the client a certificate that ends so soon; returns when it has, in seconds of the wall clock."""
        ends = int(time.time()) + 1 + seconds
        asked, made, key = (f"{self.place}/short.{kind}" for kind in ("csr", "pem", "key"))
        config = ["-config", f"{self.place}/openssl.cnf"]
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key]
        name = ["-subj", "/CN=me", "-addext", "subjectAltName=DNS:me"]
        dates = ["-startdate", stamp(ends - 3600), "-enddate", stamp(ends)]
        openssl("req", "-new", *config, *new, *name, "-out", asked)
        openssl("ca", "-batch", "-notext", *config, *dates, "-in", asked, "-out", made)
        self.take("short")
        # Its last second is one in which it is valid.
        return ends + 1

    def take(self, name: str) -> None:
        """As Kubernetes does: the new file takes the old one's place."""
        for kind in ("pem", "key"):
            shutil.copy(self.place / f"{name}.{kind}", self.place / "fresh")
            os.replace(self.place / "fresh", self.place / f"client.{kind}")

    def connect(self, driver: Driver, patience_ms: int) -> None:
        tls = {"ca": self.ca, "cert": self.cert, "key": self.key}
        answer = driver.call("connect", urls=[self.server.url], patience_ms=patience_ms, tls=tls)
        expect(answer["ok"], f"connect failed: {answer}")


def stamp(seconds: int) -> str:
    return time.strftime("%y%m%d%H%M%SZ", time.gmtime(seconds))


def openssl(*arguments: str) -> None:
    ended = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"openssl {arguments[0]} failed: {ended.stderr}")


def connected(trial: Trial, patience_ms: int, do: str, **command: Any) -> tuple[Authority, Driver, int]:
    """A driver whose command was carried out under a certificate that ends soon."""
    driver = trial.bare_driver()
    trial.needs(driver, "tls")
    authority = Authority(trial)
    # On a machine that is busy the first one may have ended before the command.
    for seconds in (2, 8, 32):
        ends = authority.short(seconds)
        authority.connect(driver, patience_ms)
        answer = driver.call(do, **command)
        if answer["ok"]:
            break
    expect(answer["ok"], f"{do} failed: {answer}")
    return authority, driver, ends


@rule("P-certificate", "a client whose certificate was replaced in time keeps its lease and goes on", wire="http")
def replaced_in_time(trial: Trial) -> None:
    ttl_ms = 4000
    authority, driver, ends = connected(trial, 5000, "acquire", **trial.wish(ttl_ms))
    authority.take("me")
    ends_ms = now_ms() + (ends - time.time()) * 1e3

    def is_renewed() -> bool:
        pause(50)  # real time: asked again, up to a deadline
        remaining = driver.call("remaining", grant="g")
        return remaining["remaining_ms"] == 0 or deadline_of(remaining) > ends_ms + ttl_ms

    expect(until(is_renewed, 40.0), "the lease is not renewed after the end of the old certificate")
    check = driver.call("check", grant="g")
    expect(check["ok"], f"the lease ended with the old certificate: {check}")
    another = driver.call("acquire", **trial.wish(ttl_ms, **{"as": "h", "lock": "another"}))
    expect(another["ok"], f"acquire failed: {another}")


@rule("P-certificate-ended", "the error of a client whose certificate has ended says so", wire="http")
def ended(trial: Trial) -> None:
    authority, driver, ends = connected(trial, 1000, "show", lock=trial.lock)
    pause((ends - time.time()) * 1e3)  # real time: a certificate ends by the wall clock
    for where in ("on the old connection", "on a new connection"):
        for do, command in (("show", {"lock": trial.lock}), ("acquire", trial.wish(2000))):
            refused = driver.call(do, **command)
            said = str(refused.get("message")).lower()
            expect(not refused["ok"], f"{do}: it was admitted {where}")
            expect("certificate" in said and "expired" in said, f"{do} {where}: {refused}")
        authority.connect(driver, 1000)
