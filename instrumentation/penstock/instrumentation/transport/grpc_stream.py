"""One stream to the agent, on a channel of its own. The only module that calls grpc."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import grpc
from penstock.instrumentation.core import READER_THREAD
from penstock.instrumentation.transport.inbox import Message, Tag
from penstock.instrumentation.transport.stream_errors import explain_end

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_MEBIBYTE: Final = 1 << 20

OPTIONS: Final = (
    # A stopped peer on a unix socket is found by HTTP/2 pings alone, within 5 seconds: 2 of silence, 3 without an
    # answer. Without the third option it takes a minute.
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Each attempt has a channel of its own, and our back-off is the only one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # A sidecar is never behind a proxy; the host's http_proxy is not for us.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _MEBIBYTE),
    ("grpc.max_send_message_length", _MEBIBYTE),
)

ANSWERS_MAX: Final = 256
"""Answers that may wait in the inbox; an agent never sends that many ahead."""

_JOIN: Final = 0.5


class StreamEnd:
    """How a stream ended: a status code by name (``"UNAVAILABLE"``) and its text."""

    def __init__(self, code: str, details: str) -> None:
        self.code = code
        self.details = details

    def __repr__(self) -> str:
        return f"{self.code}: {self.details}"

    @property
    def reason(self) -> str:
        """A sentence for an operator."""
        return explain_end(self.code, self.details)


class Stream(Generic[T]):
    """A bidirectional call. Its answers arrive in an inbox as ANSWER, its end as one ENDED with a :class:`StreamEnd`.

    It owns two threads, which :meth:`close` ends: grpc's, which sends the requests, and a reader.
    """

    def __init__(
        self, endpoint: str, method: str, parse: Callable[[bytes], T], inbox: queue.SimpleQueue[Message]
    ) -> None:
        """Open a channel to *endpoint* and call *method*; does not wait for the connection.

        Raises RuntimeError if the system has no thread left.
        """
        self._inbox = inbox
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(endpoint, options=OPTIONS)
        call: Any = self._channel.stream_stream(method, response_deserializer=parse)
        self._reader = threading.Thread(target=self._read, name=READER_THREAD, daemon=True)
        try:
            self._call: Any = call(iter(self._requests.get, None))
            self._reader.start()
        except BaseException:
            # No thread was left: end grpc's, which waits for requests.
            self._requests.put(None)
            self._channel.close()
            raise

    @property
    def backlog(self) -> int:
        """How many requests grpc has not fetched yet."""
        return self._requests.qsize()

    def send(self, request: bytes) -> None:
        """Queue one serialized request; the caller keeps the backlog bounded."""
        self._requests.put(request)

    def close(self) -> None:
        """Cancel the call and close the channel; waits at most half a second for the reader."""
        self._requests.put(None)
        self._call.cancel()
        self._channel.close()
        if self._reader is not threading.current_thread():
            self._reader.join(_JOIN)

    def _read(self) -> None:
        try:
            for answer in self._call:
                if self._inbox.qsize() >= ANSWERS_MAX:
                    self._call.cancel()
                    ended = StreamEnd("RESOURCE_EXHAUSTED", f"more than {ANSWERS_MAX} answers waited")
                    break
                self._inbox.put(Message(Tag.ANSWER, self, answer))
            else:
                ended = StreamEnd("OK", "the agent ended the stream")
        except grpc.RpcError as error:
            # The type of a call that failed is also a grpc.Call.
            code, details = getattr(error, "code", None), getattr(error, "details", None)
            ended = StreamEnd(
                code().name if code else "UNKNOWN", (details() if details else None) or str(error)
            )
        except Exception as error:  # noqa: BLE001  (an answer that cannot be parsed)
            self._call.cancel()
            ended = StreamEnd("INTERNAL", f"{type(error).__name__}: {error}")
        self._inbox.put(Message(Tag.ENDED, self, ended))
