#!/usr/bin/env python3
"""Runs of the real Terraform or OpenTofu against `palisade tfstate`, among them an apply that is paused.

    deploy/check_terraform.py PALISADE TERRAFORM      # deploy/tofu/build FOLDER builds OpenTofu

One run is stopped (SIGSTOP) before its upload, the lock is forced open, another run applies, and the first one goes on.
The control does the same at a backend that locks and checks no token: there the second run's state must be lost. It says
what it ran: plans beside each other and an apply that waits for them, lost answers, a server that is killed between LOCK
and upload, passwords and unlocks by force, large and encrypted states. Takes a minute; uses loopback and a temporary
folder only.
"""

import http.client
import http.server
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from typing import Any, Callable

STOPS = """
resource "terraform_data" "slow" {
  provisioner "local-exec" {
    command = "touch started; while [ ! -e go ]; do sleep 0.05; done"
  }
}
"""
# Between its two resources it uploads what it has, if that is 20 s after it began.
LONG = (
    STOPS
    + """
resource "terraform_data" "after" {
  input      = "late"
  depends_on = [terraform_data.slow]
}
"""
)
PLAIN = 'resource "terraform_data" "%s" {\n  input = "%s"\n}\n'
# 17 MiB, twice in the state: as input and as output.
LARGE = """
resource "terraform_data" "x" {
  input = join("", [for i in range(17) : join("", [for j in range(1024) : join("", [for k in range(64) : "0123456789abcdef"])])])
}
"""
ENCRYPTED = """
terraform {
  encryption {
    key_provider "pbkdf2" "key" {
      passphrase = "%s"
    }
    method "aes_gcm" "method" {
      keys = key_provider.pbkdf2.key
    }
    state {
      method   = method.aes_gcm.method
      enforced = true
    }
  }
}
"""
PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/use/terraform.md"
ACCESS = """[auth]
principals = [{ name = "ci" }, { name = "viewer" }, { name = "operator" }]
rules = [
    { principal = "ci", prefix = "tf/", verbs = ["hold", "share", "observe"] },
    { principal = "viewer", prefix = "tf/", verbs = ["share", "observe"] },
    { principal = "operator", prefix = "tf/", verbs = ["observe", "break"] },
]
"""


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status: int, body: bytes = b"", md5: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if md5:
            self.send_header("Content-MD5", md5)
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            while int(self.rfile.readline(), 16):
                self.rfile.readline()
            self.rfile.readline()
            return b""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def log_message(self, *_: object) -> None:
        pass


class Unfenced(Handler):
    """A backend that locks, and believes every upload."""

    state: bytes = b""
    lock: dict[str, Any] | None = None

    def do_GET(self) -> None:
        self.answer(200 if self.state else 204, self.state)

    def do_POST(self) -> None:
        type(self).state = self.body()
        self.answer(200)

    def do_LOCK(self) -> None:
        wanted = json.loads(self.body())
        if self.lock:
            self.answer(423, json.dumps(self.lock).encode())
            return
        type(self).lock = wanted
        self.answer(200)

    def do_UNLOCK(self) -> None:
        named = self.body()
        if not named or (self.lock or {}).get("ID") == json.loads(named)["ID"]:
            type(self).lock = None
        self.answer(200)


def listen(handler: type[Handler]) -> str:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def unfenced() -> str:
    return listen(type("Own", (Unfenced,), {}))


class Between:
    """Stands before a backend: loses answers, keeps unlocks waiting, and remembers what was answered."""

    def __init__(self, backend: str) -> None:
        self.answers: list[tuple[str, int]] = []
        self.to_lose: list[str] = []
        self.waiting = 0
        self.unlocks = threading.Event()
        self.unlocks.set()
        between = self

        class Forward(Handler):
            def forward(self) -> None:
                body = self.body()
                if self.command == "UNLOCK":
                    between.waiting += 1
                    between.unlocks.wait()
                with_backend = http.client.HTTPConnection(backend.removeprefix("http://"))
                headers = {
                    name: self.headers[name] for name in ("Authorization", "Content-MD5") if name in self.headers
                }
                with_backend.request(self.command, self.path, body, headers)
                got = with_backend.getresponse()
                content = got.read()
                between.answers.append((self.command, got.status))
                if self.command in between.to_lose:
                    between.to_lose.remove(self.command)
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                else:
                    self.answer(got.status, content, got.headers["Content-MD5"])

            do_GET = do_POST = do_LOCK = do_UNLOCK = forward

        self.address = listen(Forward)


class Runs:
    """Folders with a configuration each, all of one state."""

    def __init__(self, terraform: str, folder: pathlib.Path, address: str, **more: str) -> None:
        self.terraform, self.folder = terraform, folder
        keep = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
        self.environment = keep | {
            "CHECKPOINT_DISABLE": "1",
            "TF_IN_AUTOMATION": "1",
            "TF_CLI_ARGS": "-no-color",
            "TF_HTTP_ADDRESS": address,
            "TF_HTTP_LOCK_ADDRESS": address,
            "TF_HTTP_UNLOCK_ADDRESS": address,
            **more,
        }

    def make(self, name: str, text: str, backend: str = "") -> None:
        (self.folder / name).mkdir(parents=True)
        (self.folder / name / "main.tf").write_text(f'terraform {{\n  backend "http" {{\n{backend}  }}\n}}\n{text}')
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
        return ended(self.start(name, *words, **more))

    def ok(self, name: str, *words: str, **more: str) -> str:
        status, text = self.run(name, *words, **more)
        assert status == 0, f"{words}: {status}\n{text}"
        return text

    def fails(self, said: str, name: str, *words: str, **more: str) -> str:
        status, text = self.run(name, *words, **more)
        # It wraps its lines.
        assert status != 0 and said in " ".join(text.replace("│", " ").split()), (
            f"{words}: {status}, not {said!r}\n{text}"
        )
        return text

    def pause(self, name: str) -> subprocess.Popen[str]:
        """An apply that has the lock, and whose resource is not made before `go_on`."""
        run = self.start(name, "apply", "-auto-approve")
        wait_for("the provisioner", (self.folder / name / "started").exists)
        return run

    def go_on(self, name: str) -> None:
        (self.folder / name / "go").touch()


def ended(run: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = run.communicate(timeout=180)
    return run.returncode, text


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until, f"timed out waiting for {what}"
        time.sleep(0.02)  # real time: between two looks


def get(address: str, **headers: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
        return bytes(answer.read())


def inputs(address: str) -> set[str]:
    state = json.loads(get(address) or b"{}")
    resources = state.get("resources", [])
    return {
        one["instances"][0]["attributes"].get("input", {}).get("value", "")
        for one in resources
        if one["name"] != "slow"
    }


def holder(text: str) -> str:
    """The ID of the lock that was in the way, as it is printed: after ID= in Terraform up to 1.14."""
    found = re.search(r"ID=([0-9a-f-]{36})", text) or re.search(r"ID:\s+([0-9a-f-]{36})", text)
    assert found, text
    return found[1]


def paused(runs: Runs, address: str, configuration: str = STOPS, seconds: int = 0) -> tuple[int, str]:
    """Stops a run while another one takes the lock and applies, and returns its result."""
    # Terraform reads the state once more before it uploads the first one of all, so there is one.
    runs.make("first", PLAIN % ("x", "older"))
    runs.ok("first", "apply", "-auto-approve")
    runs.make("paused", configuration)
    runs.make("next", PLAIN % ("x", "newer"))
    late = runs.pause("paused")
    time.sleep(seconds)  # real time: the program counts it
    os.killpg(late.pid, signal.SIGSTOP)
    text = runs.fails("Error acquiring the state lock", "next", "apply", "-auto-approve", "-lock-timeout=1s")
    runs.ok("next", "force-unlock", "-force", holder(text))
    runs.ok("next", "apply", "-auto-approve")
    assert inputs(address) == {"newer"}
    runs.go_on("paused")
    os.killpg(late.pid, signal.SIGCONT)
    return ended(late)


class Check:
    """The servers, and the states that are run."""

    def __init__(self, palisade: str, terraform: str, folder: pathlib.Path) -> None:
        self.palisade, self.terraform, self.folder = palisade, terraform, folder
        self.processes: list[subprocess.Popen[str]] = []
        self.locks = self.serve("serve", "--listen", "127.0.0.1:0", "--data", "locks")
        self.at = self.states("states", self.locks, "--allow-blind-force-unlock")

    def serve(self, *words: str) -> str:
        process = subprocess.Popen(
            [self.palisade, *words, "--json"],
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.processes.append(process)
        assert process.stdout is not None
        return str(json.loads(process.stdout.readline())["url"])

    def states(self, data: str, locks: str, *words: str, port: str = "0") -> str:
        return self.serve("tfstate", "--listen", f"127.0.0.1:{port}", "--data", data, "--authority", locks, *words)

    def runs(self, name: str, address: str, **more: str) -> Runs:
        return Runs(self.terraform, self.folder / name, address, **more)

    def view(self, lock: str) -> dict[str, Any]:
        command = [self.palisade, "show", lock, "--json", "--authority", self.locks]
        said: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return said

    def a_paused_apply(self) -> None:
        address = unfenced()
        status, text = paused(self.runs("unfenced", address), address)
        assert status == 0 and inputs(address) == set(), f"the control lost nothing: {status}\n{text}"
        print("without a fence: the late upload was taken, and the newer state is lost")
        address = f"{self.at}/v1/tf/prod"
        runs = self.runs("fenced", address)
        status, text = paused(runs, address)
        assert status != 0 and "412" in text, f"{status}\n{text}"
        assert inputs(address) == {"newer"}
        assert (runs.folder / "paused/errored.tfstate").exists(), text
        print("with the fence: 412, errored.tfstate is written, and the newer state stands")
        # Each of them advises this push, and compares the serials only. OpenTofu's is the higher one.
        status, text = runs.run("paused", "state", "push", "errored.tfstate")
        assert status == 0 or "serial" in text, text
        assert inputs(address) == (set() if status == 0 else {"newer"})
        for version, expected in ((1, "older"), (2, "newer")):
            (runs.folder / "next/old.tfstate").write_bytes(get(f"{address}?version={version}"))
            runs.ok("next", "state", "push", "-force", "old.tfstate")
            assert inputs(address) == {expected}
        pushed = "overwrites the newer state" if status == 0 else "is refused by its serial"
        print(f"a push of errored.tfstate {pushed}; a push of a version that was kept brings it back")

    def a_long_apply(self) -> None:
        """As the one before, after an upload in between that was refused, too: then each program's file has the higher serial."""
        address = f"{self.at}/v1/tf/long"
        runs = self.runs("long", address)
        status, text = paused(runs, address, LONG, 21)
        assert status != 0 and text.count("HTTP error: 412") > 1, f"{status}\n{text}"
        assert inputs(address) == {"newer"}
        runs.ok("paused", "state", "push", "errored.tfstate")
        # The run ended at that refusal, so its second resource was not made.
        assert inputs(address) == set()
        print("after more than 20 s a push of errored.tfstate overwrites the newer state")

    def plans_and_an_apply(self) -> None:
        """Two plans have the lock at the same time, because neither may unlock; an apply waits for both."""
        between = Between(self.at)
        runs = self.runs("plans", f"{between.address}/v1/tf/plans")
        runs.make("a", PLAIN % ("x", "a"))
        between.unlocks.clear()
        plans = [runs.start("a", "plan") for _ in range(2)]
        wait_for("both plans to have the lock", lambda: between.waiting == 2)
        assert between.answers.count(("LOCK", 200)) == 2 and ("LOCK", 423) not in between.answers
        runs.fails("already locked", "a", "apply", "-auto-approve")
        queued = runs.start(
            "a", "apply", "-auto-approve", TF_HTTP_LOCK_ADDRESS=f"{between.address}/v1/tf/plans?wait=60s"
        )
        wait_for("the apply in the queue", lambda: self.view("tf/plans")["waiters"] == 1)
        between.unlocks.set()
        assert [ended(plan)[0] for plan in plans] == [0, 0]
        status, text = ended(queued)
        assert status == 0, text
        # A control: a lock that plans do not share.
        between = Between(unfenced())
        runs = self.runs("plans-unfenced", between.address)
        runs.make("a", PLAIN % ("x", "a"))
        between.unlocks.clear()
        plan = runs.start("a", "plan")
        wait_for("the plan to have the lock", lambda: between.waiting == 1)
        runs.fails("already locked", "a", "plan")
        between.unlocks.set()
        assert ended(plan)[0] == 0
        print(
            "two plans had the lock together, one apply was refused meanwhile, and one waited for both (not so at the other backend)"
        )

    def a_lock_timeout(self) -> None:
        between = Between(self.at)
        runs = self.runs("timeout", f"{between.address}/v1/tf/timeout")
        runs.make("a", STOPS)
        runs.make("b", PLAIN % ("x", "b"))
        first = runs.pause("a")
        waiting = runs.start("b", "apply", "-auto-approve", "-lock-timeout=120s")
        wait_for("a second refusal", lambda: between.answers.count(("LOCK", 423)) >= 2)
        runs.make("other", PLAIN % ("x", "other"))
        other = f"{self.at}/v1/tf/team/test"
        runs.ok(
            "other",
            "apply",
            "-auto-approve",
            TF_HTTP_ADDRESS=other,
            TF_HTTP_LOCK_ADDRESS=other,
            TF_HTTP_UNLOCK_ADDRESS=other,
        )
        runs.fails("workspaces not supported", "b", "workspace", "new", "test")
        runs.go_on("a")
        for run in (first, waiting):
            status, text = ended(run)
            assert status == 0, text
        assert (inputs(f"{self.at}/v1/tf/timeout"), inputs(other)) == ({"b"}, {"other"})
        print(
            "an apply with -lock-timeout was refused, asked again and got the lock; another address was free; `workspace new` is refused"
        )

    def lost_answers(self) -> None:
        """Of LOCK, POST and UNLOCK: each is repeated, and counts once."""
        retries = {"TF_HTTP_RETRY_WAIT_MIN": "1", "TF_HTTP_RETRY_WAIT_MAX": "1"}
        for backend in (self.at, unfenced()):
            between = Between(backend)
            runs = self.runs(f"lost{backend[-5:]}", f"{between.address}/v1/tf/lost", **retries)
            runs.make("a", PLAIN % ("x", "a"))
            between.to_lose = ["LOCK", "POST", "UNLOCK"]
            if backend != self.at:
                # A control: this one takes the repeated LOCK for another run's.
                runs.fails("already locked", "a", "apply", "-auto-approve")
                continue
            runs.ok("a", "apply", "-auto-approve")
            assert between.to_lose == [], between.answers
            versions = json.loads(get(f"{self.at}/v1/tf/lost?versions"))["versions"]
            assert (len(versions), self.view("tf/lost")["holder"]) == (1, None), versions
        print(
            "lost answers to LOCK, POST and UNLOCK: one version, no lock left (the other backend locked the run out by itself)"
        )

    def a_killed_server(self) -> None:
        address = f"{self.at}/v1/tf/prod"
        runs = self.runs("killed", address)
        runs.make("first", STOPS + PLAIN % ("x", "first"))
        runs.make("second", PLAIN % ("x", "second"))
        first = runs.pause("first")
        queued = runs.start("second", "apply", "-auto-approve", TF_HTTP_LOCK_ADDRESS=f"{address}?wait=60s")
        wait_for("the second apply in the queue", lambda: self.view("tf/prod")["waiters"] == 1)
        states = self.processes[1]
        states.kill()
        states.wait()
        self.states("states", self.locks, port=self.at.rsplit(":", 1)[1])
        runs.go_on("first")
        for run in (first, queued):
            status, text = ended(run)
            assert status == 0, text
        assert inputs(address) == {"second"}
        print("an apply whose server was killed between LOCK and upload ended well; the one in the queue followed it")

    def the_pages_example(self) -> None:
        """The backend block as it stands there; only the port is another."""
        page = PAGE.read_text()
        block = page.split("```hcl\n")[1].split("```")[0]
        assert f"That is all, {len(block.splitlines())} lines" in page
        runs = self.runs("page", "")
        for name in ("ADDRESS", "LOCK_ADDRESS", "UNLOCK_ADDRESS"):
            del runs.environment[f"TF_HTTP_{name}"]
        (runs.folder / "a").mkdir(parents=True)
        example = block.replace("http://127.0.0.1:7424", self.at)
        (runs.folder / "a/main.tf").write_text(example + PLAIN % ("x", "page"))
        runs.ok("a", "init")
        runs.ok("a", "apply", "-auto-approve")
        versions = json.loads(get(f"{self.at}/v1/tf/prod?versions"))["versions"]
        assert versions[0]["fencing_token"] > 0 and inputs(f"{self.at}/v1/tf/prod") == {"page"}
        print("the page's example writes a fenced state")

    def passwords_and_force(self, is_tofu: bool) -> None:
        (self.folder / "access.toml").write_text(ACCESS)
        made = [self.palisade, "--json", "auth", "token", "new", "", "--access", str(self.folder / "access.toml")]
        who = {}
        for name in ("ci", "viewer", "operator"):
            made[5] = name
            token = json.loads(subprocess.run(made, capture_output=True, check=True).stdout)["token"]
            who[name] = {"TF_HTTP_USERNAME": "any", "TF_HTTP_PASSWORD": token}
        locks = self.serve("serve", "--listen", "127.0.0.1:0", "--data", "guarded", "--access", "access.toml")
        address = f"{self.states('guarded-states', locks)}/v1/tf/prod"
        runs = self.runs("guarded", address, **who["ci"])
        runs.make("a", STOPS)
        runs.make("b", PLAIN % ("x", "b"))
        runs.fails("requires auth", "b", "plan", TF_HTTP_USERNAME="", TF_HTTP_PASSWORD="")
        runs.ok("b", "plan", **who["viewer"])
        runs.fails("invalid auth", "b", "apply", "-auto-approve", **who["viewer"])
        first = runs.pause("a")
        lock = holder(runs.fails("already locked", "b", "apply", "-auto-approve"))
        runs.fails("code 403", "b", "force-unlock", "-force", lock, **who["viewer"])
        if is_tofu:
            unknown = "00000000-0000-0000-0000-000000000000"
            runs.fails("code 409", "b", "force-unlock", "-force", unknown, **who["operator"])
        runs.fails("force-unlock", "b", "force-unlock", "-force")  # no ID: its usage is shown
        assert lock == holder(runs.fails("already locked", "b", "apply", "-auto-approve")), "the lock stands"
        runs.ok("b", "force-unlock", "-force", lock, **who["operator"])
        runs.go_on("a")
        status, text = ended(first)
        assert status == 0, f"nobody has locked since, so its upload overwrites nothing: {text}"
        print(
            "no password, one without the verb: refused as such; an unlock by force needs `break`"
            + is_tofu * ", and a known ID"
        )
        if is_tofu:
            header = f'headers = {{ authorization = "Bearer {who["ci"]["TF_HTTP_PASSWORD"]}" }}\n'
            runs = self.runs("headers", address)
            runs.make("a", PLAIN % ("x", "header"), header)
            runs.ok("a", "apply", "-auto-approve")
            print("a header with a bearer token in place of a password")

    def large_states(self) -> None:
        address = f"{self.at}/v1/tf/large"
        runs = self.runs("large", address)
        runs.make("a", LARGE)
        runs.ok("a", "apply", "-auto-approve")
        size = len(get(address))
        assert size > 2 * 17 * 2**20
        assert "No changes" in runs.ok("a", "plan")
        small = f"{self.states('small', self.locks, '--state-bytes', '1000000')}/v1/tf/small"
        runs = self.runs("small", small)
        runs.make("a", LARGE)
        status, text = runs.run("a", "apply", "-auto-approve")
        # The server answers before it has read everything, and a client that is still writing may not see the answer.
        seen = re.search("HTTP error: 413|broken pipe|connection reset", text)
        assert status != 0 and seen and (runs.folder / "a/errored.tfstate").exists(), text[-2000:]
        print(f"a state of {size >> 20} MiB; above --state-bytes `{seen[0]}`, and errored.tfstate")

    def an_encrypted_state(self) -> None:
        address = f"{self.at}/v1/tf/encrypted"
        runs = self.runs("encrypted", address)
        for name in ("older", "newer"):
            runs.make(name, PLAIN % ("x", f"secret-{name}") + ENCRYPTED % "long enough a passphrase")
            runs.ok(name, "apply", "-auto-approve")
            state = get(address)
            assert "encrypted_data" in json.loads(state) and b"secret" not in state
        assert "No changes" in runs.ok("newer", "plan")
        print("an encrypted state: nothing of it is readable here, and the next run reads it")


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    palisade, terraform = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:])
    own = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    said = subprocess.run([terraform, "version"], env=own, capture_output=True, text=True, check=True).stdout
    version = said.splitlines()[0]
    is_tofu = version.startswith("OpenTofu")
    with tempfile.TemporaryDirectory() as name:
        check = Check(palisade, terraform, pathlib.Path(name))
        try:
            check.a_paused_apply()
            check.a_long_apply()
            check.plans_and_an_apply()
            check.a_lock_timeout()
            check.lost_answers()
            check.the_pages_example()
            check.passwords_and_force(is_tofu)
            check.large_states()
            if is_tofu:
                check.an_encrypted_state()
            check.a_killed_server()
        finally:
            for process in check.processes:
                process.kill()
                process.wait()
    print(f"{version}: held")


if __name__ == "__main__":
    main()
