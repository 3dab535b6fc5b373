"""An HTTP server in front of the real one: it records requests, passes them on, and answers in its own words where a
rule needs an answer that a real server cannot be made to give."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Optional, Union

from .clock import now_ms


@dataclass
class Request:
    method: str
    path: str
    body: dict[str, Any]
    at: float
    nonce: Optional[str] = None
    #: Which connection it came on.
    connection: int = 0

    @property
    def verb(self) -> str:
        return self.path.split("?")[0].rsplit("/", 1)[-1]


@dataclass
class Reply:
    """The answer to the client. `forward`: whether the real server carries the request out, too."""

    status: int = 200
    body: Union[dict[str, Any], bytes] = field(default_factory=dict)
    forward: bool = False
    location: Optional[str] = None


# An answer without a nonce.
LOST_NONCE = None
LOSE_ANSWER = Reply(status=0, forward=True)
Alter = Callable[[Request, dict[str, Any]], dict[str, Any]]


def error(status: int, code: str, forward: bool = False, **more: Any) -> Reply:
    return Reply(status, {"error": {"code": code, "message": f"scripted {code}", **more}}, forward)


class Scripted:
    """`decide` gives a reply, or None to pass the request on; `alter` changes the answers of the real server."""

    def __init__(self, server: Optional[tuple[str, int]] = None) -> None:
        self.server = server
        self.decide: Callable[[Request], Optional[Reply]] = lambda request: None
        self.alter: Alter = lambda request, answer: answer
        # The nonce that an answer has.
        self.echo: Callable[[Request], Optional[str]] = lambda request: request.nonce
        # Each request gets the answer to the previous one of its kind, with its nonce: every request, or those of some
        # connections.
        self.late_by_one = False
        self.late_connections: set[int] = set()
        self._before: dict[Any, tuple[Reply, Optional[str]]] = {}
        # How long a request may take before it is answered 504, as by a proxy, and how many were.
        self.most_seconds: Optional[float] = None
        self.timed_out = 0
        self.requests: list[Request] = []
        self._connections = itertools.count(1)
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                self.number = next(scripted._connections)

            def handle_request(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                text = self.rfile.read(length)
                if len(text) < length:
                    # A client that was interrupted has asked nothing.
                    self.close_connection = True
                    return
                nonce = self.headers.get("Palisade-Nonce")
                body = json.loads(text or b"{}")
                request = Request(self.command, self.path, body, now_ms(), nonce, self.number)
                scripted.requests.append(request)
                reply = scripted.decide(request)
                if reply is None or reply.forward:
                    status, answer = scripted.forward(request, text)
                    if reply is None:
                        reply = Reply(status, scripted.alter(request, answer))
                if reply.status == 0:
                    self.close_connection = True
                    return
                nonce = scripted.echo(request)
                reply, nonce = scripted.late(request, reply, nonce)
                body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                if nonce is not None:
                    self.send_header("Palisade-Nonce", nonce)
                if reply.location:
                    self.send_header("Location", reply.location)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = handle_request

            def log_message(self, *_: Any) -> None:
                pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """A client that closes its connection is no error."""

        self.http = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def late(self, request: Request, reply: Reply, nonce: Optional[str]) -> tuple[Reply, Optional[str]]:
        """Replaces the answer to a renewal by the one before. The first renewal has none before it, so it gets its
        own answer with the nonce of a request that is gone."""
        kind = request.verb, request.connection if request.connection in self.late_connections else 0
        before = self._before.get(kind, (reply, "gone"))
        self._before[kind] = reply, nonce
        is_late = self.late_by_one or request.connection in self.late_connections
        return before if is_late and request.verb == "renew" else (reply, nonce)

    def forward(self, request: Request, text: bytes) -> tuple[int, dict[str, Any]]:
        assert self.server is not None, "this scripted server has no real one behind it"
        connection = http.client.HTTPConnection(*self.server, timeout=self.most_seconds or 60)
        try:
            connection.request(request.method, request.path, text or None)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except TimeoutError:
            self.timed_out += 1
            return 504, {"message": "upstream request timeout"}
        finally:
            connection.close()

    def of(self, verb: str) -> list[Request]:
        return [request for request in list(self.requests) if request.verb == verb]

    def ids(self, verb: str = "acquire") -> set[Any]:
        return {request.body.get("request_id") for request in self.of(verb)}

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
