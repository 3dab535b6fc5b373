"""Starts moto, one request at a time.

moto checks a condition and then changes the item, on as many threads as there are requests and without a
lock, so two conditional writes can both pass the check. S3 and DynamoDB decide and change in one step. The
body is read before the turn: a client that stalls in the middle of its request delays no other client.
"""

import io
import sys
import threading

import moto.server

turn = threading.Lock()
serve = moto.server.run_simple


def serve_one_at_a_time(host, port, app, **options):
    def one_at_a_time(environ, start_response):
        body = environ["wsgi.input"]
        length = environ.get("CONTENT_LENGTH")
        if length:
            environ["wsgi.input"] = io.BytesIO(body.read(int(length)))
        elif environ.get("wsgi.input_terminated"):
            environ["wsgi.input"] = io.BytesIO(body.read())
        with turn:
            answer = app(environ, start_response)
            try:
                return [b"".join(answer)]
            finally:
                getattr(answer, "close", lambda: None)()

    serve(host, port, one_at_a_time, **options)


moto.server.run_simple = serve_one_at_a_time
sys.exit(moto.server.main(sys.argv[1:]))
