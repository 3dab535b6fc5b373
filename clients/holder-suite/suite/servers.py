"""Real servers for the suite: one `palisade serve` on a free port, in a temporary folder."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
import tempfile
import urllib.parse
from types import TracebackType
from typing import Any, Optional, Sequence


class Palisade:
    """A running `palisade serve`; it ends with the `with` block."""

    def __init__(self, binary: str, manual_clock: bool = False, flags: Sequence[str] = ()) -> None:
        self.folder = tempfile.mkdtemp(prefix="palisade-suite-")
        command = [binary, "serve", "--listen", "127.0.0.1:0", "--data", f"{self.folder}/data", *flags]
        if manual_clock:
            command += ["--clock", "manual"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.host = "127.0.0.1"
        self.port = self._port()
        scheme = "https" if "--tls-cert" in flags else "http"
        self.url = f"{scheme}://{self.host}:{self.port}"

    def _port(self) -> int:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            listening = re.search(r"https?://127\.0\.0\.1:(\d+)", line)
            if listening:
                return int(listening[1])
        raise SystemExit(f"{self.process.args!r} ended before it listened: is it a palisade binary?")

    def ask(self, method: str, path: str, body: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        """One request; the answer's JSON with its `status`."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return {**json.loads(answer.read()), "status": answer.status}
        finally:
            connection.close()

    def lock(self, name: str, verb: str, **body: Any) -> dict[str, Any]:
        return self.ask("POST", f"/v1/locks/{urllib.parse.quote(name, safe='')}/{verb}", body)

    def show(self, name: str) -> dict[str, Any]:
        return self.ask("GET", f"/v1/locks/{urllib.parse.quote(name, safe='')}")

    def authority(self) -> str:
        return str(self.ask("GET", "/v1/status")["authority"])

    def next_token(self) -> int:
        return int(self.ask("GET", "/v1/status")["next_token"])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Palisade:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.stop()
