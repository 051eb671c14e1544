"""One HTTP call that ends in time, whatever the server sends and however slowly."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ANSWER_BYTES: Final = 1 << 20


class Exchange(NamedTuple):
    """What is asked.

    Attributes:
        method: such as ``POST``.
        url: http or https. Nothing that the environment says of proxies counts, and no redirect is followed.
        body: None for none.

    """

    method: str
    url: str
    body: bytes | None
    headers: Mapping[str, str]

    def answer(self, ends: float) -> tuple[int, bytes]:
        """Return status and body; *ends* is the time of the monotonic clock by which they are there.

        Raises:
            TimeoutError: they are not.
            OSError: there is no connection, or it ends.
            http.client.HTTPException: what comes is no HTTP.
            ValueError: it is too large.

        """
        seconds = max(0.1, ends - time.monotonic())
        said: Future[tuple[int, bytes]] = Future()
        opened: list[socket.socket] = []
        # A timeout of sockets is one of each piece: only another thread ends what comes byte by byte.
        threading.Thread(target=self._ask, args=(seconds, said, opened), daemon=True).start()
        try:
            return said.result(seconds)
        finally:
            # One that has no connection yet asks nothing any more.
            said.cancel()
            for each in opened:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _ask(self, seconds: float, said: Future[tuple[int, bytes]], opened: list[socket.socket]) -> None:
        with closing(self._connection(seconds)) as connection:
            try:
                connection.connect()
                opened.append(connection.sock)
            except Exception as error:  # noqa: BLE001  (the caller's)
                if said.set_running_or_notify_cancel():
                    said.set_exception(error)
                return
            if not said.set_running_or_notify_cancel():
                return
            try:
                said.set_result(self._told(connection))
            except Exception as error:  # noqa: BLE001  (the caller's)
                said.set_exception(error)

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port or kind.default_port, timeout=seconds)

    def _told(self, connection: http.client.HTTPConnection) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        connection.request(self.method, target, self.body, {**self.headers, "Connection": "close"})
        with connection.getresponse() as response:
            body = response.read(MAX_ANSWER_BYTES + 1)
            if len(body) > MAX_ANSWER_BYTES:
                raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
            return response.status, body
