"""A typical upstream: http.server with urlparse, parsing ids as int() and pydantic do.

GET  /accounts/N   the value of account N
PUT  /accounts/N   sets it
PUT  /answers/N    sets it and answers 32 MiB
PUT  /late/N       answers 503 like a proxy in front of it, and sets it 1.5 s later
"""

import http.server
import threading
import time
from urllib.parse import unquote, urlparse

values = {}


def number(text):
    text = unquote(unquote(text))
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not value.is_integer():
            raise
        return int(value)


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def place(self):
        kind, text = urlparse(self.path).path.strip("/").split("/")
        return kind, number(text)

    def body(self):
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", "0")))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def late(self, account, value):
        time.sleep(1.5)
        values[account] = value

    def do_PUT(self):
        try:
            kind, account = self.place()
        except ValueError:
            self.body()
            return self.answer(404)
        value = self.body()
        if kind == "late":
            threading.Thread(target=self.late, args=(account, value), daemon=True).start()
            return self.answer(503)
        values[account] = value
        self.answer(200, b"x" * (32 << 20) if kind == "answers" else b"")

    # http.server does not read the bodies of these methods, so they become the next request.
    def do_GET(self):
        for name in ("x-http-method-override", "x-http-method", "x-method-override"):
            if self.headers.get(name) == "PUT":
                return self.do_PUT()
        try:
            _, account = self.place()
        except ValueError:
            return self.answer(404)
        self.answer(200, values.get(account, b"none"))

    def do_OPTIONS(self):
        self.answer(204)

    def do_TRACE(self):
        self.answer(200)

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
print(server.server_address[1], flush=True)
server.serve_forever()
