"""A real HTTP server on 127.0.0.1 that takes posts, and answers each as a list says."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OK = 200


@dataclass
class Received:
    """What came: each request's path and JSON, whether it was accepted, and when."""

    url: str = ""
    paths: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def accepted_bodies(self) -> list[Any]:
        """The JSON of the requests that were answered with 200."""
        return [body for body, status in zip(self.bodies, self.statuses, strict=True) if status == OK]


@contextmanager
def serve_webhook(
    answers: Sequence[int] = (), *, path: str = "/hook", delay_s: float = 0.0, drips: bool = False, location: str = ""
) -> Iterator[Received]:
    """A server that gives these statuses in turn, then 200. drips: it sends its answer a byte each 0.2 s."""
    received, left, lock = Received(), list(answers), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                status = left.pop(0) if left else OK
                received.paths.append(self.path)
                received.bodies.append(body)
                received.statuses.append(status)
                received.times.append(time.monotonic())
                received.headers.append(dict(self.headers))
            time.sleep(delay_s)
            for byte in b"HTTP/1.0 200 OK\r\n" if drips else b"":
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(0.2)
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.end_headers()

        def do_GET(self) -> None:
            received.paths.append(f"GET {self.path}")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that gave up is what some tests are about."""

    with Server(("127.0.0.1", 0), Handler) as server:
        received.url = f"http://127.0.0.1:{server.server_port}{path}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield received
        finally:
            server.shutdown()
