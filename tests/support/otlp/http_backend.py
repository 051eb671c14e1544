"""A real OTLP/HTTP trace backend on a loopback port."""

from __future__ import annotations

import gzip
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator


class HttpBackend:
    """Takes spans over HTTP, as *decide* says: status, headers and body for the names of a call's spans."""

    def __init__(self, decide) -> None:
        self.decide = decide
        self.taken: list[str] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one call."""
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if handler.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        found = [
            span.name
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        self.requests.append((handler.path, dict(handler.headers)))
        status, headers, content = self.decide(found)
        self.taken.extend(found if status == 200 else [])
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


@contextmanager
def http_backend(decide=lambda _found: (200, {}, b"")) -> Iterator[HttpBackend]:
    """Run one."""
    backend = HttpBackend(decide)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 5

        def do_POST(self) -> None:
            backend.answer(self)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        backend.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield backend
        finally:
            server.shutdown()
            thread.join()
