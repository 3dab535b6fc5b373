#!/usr/bin/env python3
"""A paused `terraform apply` against `palisade tfstate`, with the real Terraform or OpenTofu.

    deploy/check_terraform.py PALISADE TERRAFORM

One run is stopped (SIGSTOP) before its upload, the lock is forced open, another run applies, and the first one goes on.
The control does the same at a backend that locks and checks no token: there the second run's state must be lost. Then two
plans beside each other, an apply that waits in the queue, and a server that is killed between LOCK and upload.
Takes about half a minute; uses loopback and a temporary folder only.
"""

import http.server
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

STOPS = """
resource "terraform_data" "slow" {
  provisioner "local-exec" {
    command = "touch started; while [ ! -e go ]; do sleep 0.05; done"
  }
}
"""
PLAIN = 'resource "terraform_data" "%s" {\n  input = "%s"\n}\n'


class Unfenced(http.server.BaseHTTPRequestHandler):
    """A backend that locks, and believes every upload."""

    state: bytes = b""
    lock: dict | None = None

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            while int(self.rfile.readline(), 16):
                self.rfile.readline()
            self.rfile.readline()
            return b""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_GET(self) -> None:
        self.answer(200 if Unfenced.state else 204, Unfenced.state)

    def do_POST(self) -> None:
        Unfenced.state = self.body()
        self.answer(200)

    def do_LOCK(self) -> None:
        wanted = json.loads(self.body())
        if Unfenced.lock:
            self.answer(423, json.dumps(Unfenced.lock).encode())
            return
        Unfenced.lock = wanted
        self.answer(200)

    def do_UNLOCK(self) -> None:
        named = self.body()
        if not named or (Unfenced.lock or {}).get("ID") == json.loads(named)["ID"]:
            Unfenced.lock = None
        self.answer(200)

    def log_message(self, *_: object) -> None:
        pass


class Runs:
    """Folders with a configuration each, all of one state."""

    def __init__(self, terraform: str, folder: pathlib.Path, address: str) -> None:
        self.terraform, self.folder = terraform, folder
        keep = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
        self.environment = keep | {
            "CHECKPOINT_DISABLE": "1",
            "TF_IN_AUTOMATION": "1",
            "TF_CLI_ARGS": "-no-color",
            "TF_HTTP_ADDRESS": address,
            "TF_HTTP_LOCK_ADDRESS": address,
            "TF_HTTP_UNLOCK_ADDRESS": address,
        }

    def make(self, name: str, text: str) -> None:
        (self.folder / name).mkdir(parents=True)
        (self.folder / name / "main.tf").write_text('terraform {\n  backend "http" {}\n}\n' + text)
        self.ok(name, "init")

    def start(self, name: str, *words: str, **more: str) -> subprocess.Popen[str]:
        command = [self.terraform, *words]
        return subprocess.Popen(
            command,
            cwd=self.folder / name,
            env=self.environment | more,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, name: str, *words: str, **more: str) -> tuple[int, str]:
        process = self.start(name, *words, **more)
        text, _ = process.communicate(timeout=60)
        return process.returncode, text

    def ok(self, name: str, *words: str, **more: str) -> str:
        status, text = self.run(name, *words, **more)
        assert status == 0, f"{words}: {status}\n{text}"
        return text


def wait_for(what: str, holds) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until, f"timed out waiting for {what}"
        time.sleep(0.02)  # real time: between two looks


def inputs(address: str) -> set[str]:
    with urllib.request.urlopen(address) as answer:
        state = json.loads(answer.read() or b"{}")
    resources = state.get("resources", [])
    return {
        one["instances"][0]["attributes"].get("input", {}).get("value", "")
        for one in resources
        if one["name"] != "slow"
    }


def paused(runs: Runs, address: str) -> tuple[int, str]:
    """Stops a run while another one takes the lock and applies, and returns its result."""
    # Terraform reads the state once more before it uploads the first one of all, so there is one.
    runs.make("first", PLAIN % ("x", "older"))
    runs.ok("first", "apply", "-auto-approve")
    runs.make("paused", STOPS)
    runs.make("next", PLAIN % ("x", "newer"))
    late = runs.start("paused", "apply", "-auto-approve")
    wait_for("the provisioner", (runs.folder / "paused/started").exists)
    os.killpg(late.pid, signal.SIGSTOP)
    status, text = runs.run("next", "apply", "-auto-approve", "-lock-timeout=1s")
    assert status != 0 and "Error acquiring the state lock" in text, text
    runs.ok("next", "force-unlock", "-force", "any")
    runs.ok("next", "apply", "-auto-approve")
    assert inputs(address) == {"newer"}
    (runs.folder / "paused/go").touch()
    os.killpg(late.pid, signal.SIGCONT)
    text, _ = late.communicate(timeout=60)
    return late.returncode, text


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    palisade, terraform = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:])
    version = subprocess.run([terraform, "version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Unfenced)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        status, text = paused(Runs(terraform, folder / "unfenced", address), address)
        assert status == 0 and inputs(address) == set(), f"the control lost nothing: {status}\n{text}"
        server.shutdown()
        print("without a fence: the late upload was taken, and the newer state is lost")

        def serve(*words: str) -> tuple[subprocess.Popen[str], str]:
            process = subprocess.Popen(
                [palisade, *words, "--json"], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            return process, json.loads(process.stdout.readline())["url"]

        locks, url = serve("serve", "--listen", "127.0.0.1:0", "--data", "locks")
        states, at = serve(
            "tfstate", "--listen", "127.0.0.1:0", "--data", "states", "--authority", url, "--allow-blind-force-unlock"
        )
        try:
            address = f"{at}/v1/tf/prod"
            runs = Runs(terraform, folder / "fenced", address)
            status, text = paused(runs, address)
            assert status != 0 and "412" in text, f"{status}\n{text}"
            assert inputs(address) == {"newer"}
            errored = runs.folder / "paused/errored.tfstate"
            assert errored.exists(), text
            status, text = runs.run("paused", "state", "push", "errored.tfstate")
            assert status != 0 and "serial" in text, text
            print(
                "with the fence: 412, errored.tfstate is written, the newer state stands, and a push of the old one is refused"
            )

            plans = [runs.start("next", "plan") for _ in range(2)]
            assert [plan.communicate(timeout=60) and plan.returncode for plan in plans] == [0, 0]
            print("two plans ran beside each other")

            runs.make("second", STOPS + PLAIN % ("x", "newer"))
            first = runs.start("second", "apply", "-auto-approve")
            wait_for("the provisioner", (runs.folder / "second/started").exists)
            queued = runs.start("next", "apply", "-auto-approve", TF_HTTP_LOCK_ADDRESS=f"{address}?wait=60s")
            view = lambda: json.loads(
                subprocess.run(
                    [palisade, "show", "tf/prod", "--json", "--authority", url], capture_output=True, check=True
                ).stdout
            )
            wait_for("the second apply in the queue", lambda: view()["waiters"] == 1)
            states.kill()
            states.wait()
            port = at.rsplit(":", 1)[1]
            states, _ = serve("tfstate", "--listen", f"127.0.0.1:{port}", "--data", "states", "--authority", url)
            (runs.folder / "second/go").touch()
            text, _ = first.communicate(timeout=60)
            assert first.returncode == 0, text
            text, _ = queued.communicate(timeout=60)
            assert queued.returncode == 0, text
            print(
                "an apply whose server was killed between LOCK and upload ended well; the one in the queue followed it"
            )
        finally:
            for process in (states, locks):
                process.kill()
                process.wait()
    print(f"{version}: held")


if __name__ == "__main__":
    main()
