"""A stream with grpc's synchronous API, whose threads wake some 25 times a second: where the other kind cannot be used."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import grpc
from penstock.instrumentation.core import READER_THREAD, note_grpc_object
from penstock.instrumentation.transport.stream import CLOSE_WAIT, OPTIONS, Stream, StreamEnd, T

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable

    from penstock.instrumentation.transport.stream import Message


class ThreadedStream(Stream[T]):
    """A stream that owns two threads, which :meth:`close` ends: grpc's, which sends the requests, and a reader."""

    def __init__(
        self, endpoint: str, method: str, parse: Callable[[bytes], T], inbox: queue.SimpleQueue[Message]
    ) -> None:
        """Open a channel to *endpoint* and call *method*; does not wait for the connection.

        Raises RuntimeError if the system has no thread left.
        """
        super().__init__(parse, inbox)
        self._channel = grpc.insecure_channel(endpoint, options=OPTIONS)
        note_grpc_object(self._channel)
        call: Any = self._channel.stream_stream(method)
        self._reader = threading.Thread(target=self._read, name=READER_THREAD, daemon=True)
        try:
            self._call: Any = call(iter(self._requests.get, None))
            note_grpc_object(self._call)
            self._reader.start()
        except BaseException:
            # No thread was left: end grpc's, which waits for requests.
            self._requests.put(None)
            self._channel.close()
            raise

    def close(self) -> None:
        """Cancel the call and close the channel; waits at most ``CLOSE_WAIT`` seconds for the reader."""
        self._requests.put(None)
        self._call.cancel()
        self._channel.close()
        if self._reader is not threading.current_thread():
            self._reader.join(CLOSE_WAIT)

    def _read(self) -> None:
        ended = StreamEnd("OK", "the agent ended the stream")
        try:
            for answer in self._call:
                refused = self._deliver(answer)
                if refused is not None:
                    self._call.cancel()
                    ended = refused
                    break
        except grpc.RpcError as error:
            # The type of a call that failed is also a grpc.Call.
            code, details = getattr(error, "code", None), getattr(error, "details", None)
            ended = StreamEnd(
                code().name if code else "UNKNOWN", (details() if details else None) or str(error)
            )
        except Exception as error:  # noqa: BLE001  (an error of grpc's own)
            self._call.cancel()
            ended = StreamEnd("INTERNAL", f"{type(error).__name__}: {error}")
        self._tell_end(ended)
