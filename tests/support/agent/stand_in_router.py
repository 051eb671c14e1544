"""A small HTTP server that takes workers out and in as vllm-router and sglang-router do.

The real ones are in ``tests/routers``.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class StandInRouter:
    """What :func:`stand_in_router` yields.

    Attributes:
        url: its address.
        workers: the type of each worker that it has.
        calls: what has been asked that changes something, such as ``POST /remove_worker http://…``.
        refuse: returns status and text for a call that is refused, None for one that is not.

    """

    def __init__(self, *workers: str) -> None:
        self.url = ""
        self.workers = dict.fromkeys(workers, "regular")
        self.calls: list[str] = []
        self.refuse: Callable[[str], tuple[int, bytes] | None] = lambda _: None

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Do what is asked, and return status and text."""
        parts = urlsplit(path)
        query = parse_qs(parts.query).get("url", [""])
        url = json.loads(body)["url"] if body else query[0]
        if parts.path.startswith("/workers/"):
            url = bytes.fromhex(parts.path.removeprefix("/workers/")).decode()
        call = f"{method} {parts.path.removesuffix(url.encode().hex())} {url}".strip()
        if method != "GET":
            self.calls.append(call)
        if (refused := self.refuse(call)) is not None:
            return refused
        if method == "GET":
            listed = [
                {"id": each.encode().hex(), "url": each, "worker_type": kind}
                for each, kind in self.workers.items()
            ]
            return 200, json.dumps({"workers": listed}).encode()
        if method == "DELETE" or parts.path == "/remove_worker":
            self.workers.pop(url, None)
            return 200, b"removed"
        if url in self.workers:
            return 400, f"Worker {url} already exists".encode()
        self.workers[url] = "regular"
        return 202, b"added"


@contextmanager
def stand_in_router(*workers: str) -> Iterator[StandInRouter]:
    """Serve one with these workers."""
    router = StandInRouter(*workers)

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, text = router.answer(self.command, self.path, body)
            self.send_response(status)
            if status // 100 == 3:
                self.send_header("Location", text.decode())
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    router.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield router
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
