"""The same accounts API, written in the usual way with FastAPI, Flask, and http.server with urlparse.

PUT /accounts/{id} sets an account, whose id is an int. GET /log lists all writes, [[id, text], ...].
The version with http.server also keeps connections open, does not read the bodies of requests other than PUT,
obeys X-HTTP-Method-Override and _method, answers PUT /accounts/{id}/big with 32 MiB, and answers
PUT /accounts/{id}/unread without reading the body. None of them uses a fence.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlparse

kind, port = sys.argv[1], int(sys.argv[2])
log = []


def fastapi():
    import uvicorn
    from fastapi import FastAPI, Request

    app = FastAPI()

    @app.put("/accounts/{id}")
    async def put(id: int, request: Request):
        log.append([id, (await request.body()).decode()])

    @app.get("/log")
    def read():
        return log

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


def flask():
    from flask import Flask, abort, jsonify, request
    from werkzeug.serving import run_simple

    app = Flask(__name__)

    @app.put("/accounts/<id>")
    def put(id):
        try:
            log.append([int(id), request.get_data(as_text=True)])
        except ValueError:
            abort(404)
        return ""

    @app.get("/log")
    def read():
        return jsonify(log)

    run_simple("127.0.0.1", port, app, threaded=True)


class Accounts(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def put(self, length):
        url = urlparse(self.path)
        parts = [unquote(part) for part in url.path.split("/") if part]
        last = parts[2] if len(parts) > 2 else ""
        text = "" if last == "unread" else self.rfile.read(length).decode()
        try:
            if parts[0].lower() != "accounts":
                raise ValueError
            log.append([int(parts[1]), text])
        except (ValueError, IndexError):
            return self.answer(404)
        self.answer(200, bytes(32 << 20) if last == "big" else b"")

    def do_PUT(self):
        self.put(int(self.headers.get("Content-Length", "0")))

    def do_GET(self):
        query = parse_qs(urlparse(self.path).query)
        method = self.headers.get("X-HTTP-Method-Override", query.get("_method", ["GET"])[0])
        if method == "PUT":
            return self.put(0)
        self.answer(200, json.dumps(log).encode())

    do_HEAD = do_OPTIONS = do_POST = do_GET


def urlparsed():
    ThreadingHTTPServer(("127.0.0.1", port), Accounts).serve_forever()


{"fastapi": fastapi, "flask": flask, "urlparse": urlparsed}[kind]()
