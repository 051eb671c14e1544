"""A tab of the page without a browser: reads the event stream, asks questions, writes."""

from __future__ import annotations

import http.client
import json
import socket
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

_SECONDS = 120.0
# Of a tab from its opening to its end: pulses come for ever, also where nothing else does.
_PATIENCE = 300.0
MAX_BYTES = 64 * 1024
"""What a message and an answer may have at most."""


@dataclass(frozen=True)
class Sent:
    """A message of the stream."""

    event: str
    data: Any
    id: str
    size: int


@dataclass(frozen=True)
class Answer:
    """An answer of HTTP."""

    status: int
    body: Any
    headers: Mapping[str, str]


class Tab:
    """One connection to ``/api/stream``.

    Attributes:
        last: the id of the last message that had one.
        seen: all messages, in their order.

    """

    def __init__(
        self,
        page: str,
        after: str = "",
        headers: Mapping[str, str] | None = None,
        patience: float = _PATIENCE,
        *,
        token: str = "",
    ) -> None:
        """Open the stream; *token* goes into the query, as a browser has to say it."""
        place = urlsplit(page)
        self.last = after
        self.seen: list[Sent] = []
        self._end = time.monotonic() + patience
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=_SECONDS)
        self._connection.connect()
        # The response takes it away from the connection.
        self._socket: socket.socket = self._connection.sock
        own = {"Last-Event-ID": after} if after else {}
        path = f"/api/stream?{urlencode({'token': token})}" if token else "/api/stream"
        self._connection.request("GET", path, headers={**own, **(headers or {})})
        self._response = self._connection.getresponse()
        self.status = self._response.status

    def __enter__(self) -> Self:
        """Return it; it is open already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the tab."""
        self.close()

    def close(self) -> None:
        """Go away."""
        self._response.close()
        self._connection.close()

    def leave(self) -> None:
        """End the stream while another thread reads it."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def next(self) -> Sent | None:
        """Return the next message; None at the end of the stream."""
        assert time.monotonic() < self._end, [(each.event, each.id) for each in self.seen[-50:]]
        event, data, id_ = "", b"", ""
        while line := self._line():
            if line == b"\n":
                found = Sent(event, json.loads(data), id_, len(data))
                self.last = id_ or self.last
                self.seen.append(found)
                return found
            name, _, value = line.rstrip(b"\n").partition(b": ")
            if name == b"event":
                event = value.decode()
            elif name == b"id":
                id_ = value.decode()
            elif name == b"data":
                data = value
        return None

    def _line(self) -> bytes:
        try:
            return self._response.readline()
        except (ConnectionError, http.client.HTTPException):
            return b""

    def until(self, event: str, fits: Callable[[Any], object] = bool) -> Sent:
        """Read on to the first *event* whose data *fits*; the stream must not end before."""
        while (found := self.next()) is not None:
            if found.event == event and fits(found.data):
                return found
        raise AssertionError(f"the stream ended before {event}: {[each.event for each in self.seen]}")

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries of all messages so far."""
        return [entry for each in self.seen if each.event == "log" for entry in each.data["entries"]]

    def until_requests(self, *names: str) -> list[str]:
        """Read on until entries of all requests *names* have come; return the requests of all entries, in their order."""
        while not {*names} <= {entry["request"] for entry in self.entries()}:
            assert self.next() is not None, self.seen
        return [entry["request"] for entry in self.entries()]


def ask(page: str, path: str, headers: Mapping[str, str] | None = None, /, **query: object) -> Answer:
    """GET a path."""
    full = f"{path}?{urlencode(query)}" if query else path
    return _answer(page, "GET", full, None, headers or {})


def write(
    page: str,
    kind: str,
    body: object,
    headers: Mapping[str, str | None] | None = None,
    raw: bytes | None = None,
) -> Answer:
    """POST a write as the page does; *headers* replace its own, None leaves one out; *raw* replaces the body."""
    own: dict[str, str | None] = {
        "Origin": page,
        "X-Penstock": "page",
        "Content-Type": "application/json",
        **(headers or {}),
    }
    sent = {name: value for name, value in own.items() if value is not None}
    return _answer(
        page, "POST", f"/api/write/{kind}", json.dumps(body).encode() if raw is None else raw, sent
    )


def _answer(page: str, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
    place = urlsplit(page)
    with closing(
        http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=_SECONDS)
    ) as connection:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        content = response.read()
        kind = response.headers.get_content_type()
        found = json.loads(content) if kind == "application/json" else content.decode("utf-8", "replace")
        assert kind != "application/json" or len(content) <= MAX_BYTES
        return Answer(response.status, found, dict(response.headers))
