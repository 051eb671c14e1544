"""Opens the streams of one background thread, of the kind that this process can use."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import STREAMS_THREAD
from penstock.instrumentation.transport.stream import CLOSE_WAIT

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable

    from penstock.instrumentation.transport.stream import Message, Stream, T
    from penstock.instrumentation.transport.stream_loop import StreamLoop

SEPARATE_SINCE: Final = (1, 80)
"""The version of grpc from which event loops do not disturb each other. Before it, a second loop makes grpc raise
BlockingIOError in the first, which may be the host's, and asyncio log that (grpc#25364)."""


_THREADS_OF_GRPC: Final = 8 + min(16, max(4, os.cpu_count() or 4))
"""As many as grpc's core starts at its first use, and some: where it can start one of them only, it ends the process."""


class Streams:
    """The way of one thread to its streams. Importing this is cheap; :meth:`open` imports grpc."""

    def __init__(self) -> None:
        self._loop: StreamLoop | None = None

    def open(
        self, endpoint: str, method: str, parse: Callable[[bytes], T], inbox: queue.SimpleQueue[Message]
    ) -> Stream[T]:
        """Open a channel to *endpoint* and call *method*; does not wait for the connection.

        Raises RuntimeError if the system has too few threads left.
        """
        import grpc  # noqa: PLC0415  (not before the first emit)
        from penstock.instrumentation.transport.threaded_stream import ThreadedStream  # noqa: PLC0415

        if self._loop is None or not self._loop.alive:
            require_threads(_THREADS_OF_GRPC)
        if loops_are_separate(grpc.__version__):
            from penstock.instrumentation.transport.stream_loop import StreamLoopError  # noqa: PLC0415

            with suppress(StreamLoopError):  # this process cannot use it
                return self._open_on_loop(endpoint, method, parse, inbox)
        return ThreadedStream(endpoint, method, parse, inbox)

    def _open_on_loop(
        self, endpoint: str, method: str, parse: Callable[[bytes], T], inbox: queue.SimpleQueue[Message]
    ) -> Stream[T]:
        from penstock.instrumentation.transport.loop_stream import LoopStream  # noqa: PLC0415
        from penstock.instrumentation.transport.stream_loop import LoopEndedError, StreamLoop  # noqa: PLC0415

        with suppress(LoopEndedError):
            self._loop = self._running() or StreamLoop.acquire()
            return LoopStream(self._loop, endpoint, method, parse, inbox)
        # It has ended just now.
        self.leave()
        self._loop = StreamLoop.acquire()
        return LoopStream(self._loop, endpoint, method, parse, inbox)

    def _running(self) -> StreamLoop | None:
        if self._loop is not None and not self._loop.alive:
            self.leave()
        return self._loop

    def leave(self) -> None:
        """Let the loop's thread end, if no other uses it: before a fork, and at the end. Its streams are closed.

        Waits at most ``CLOSE_WAIT`` seconds, so that a process which ends has no thread inside grpc.
        """
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.release(CLOSE_WAIT)


def loops_are_separate(version: str) -> bool:
    """Whether grpc of *version* may have a loop of ours beside one of the host's."""
    parts = version.split(".")[:2]
    return all(part.isdecimal() for part in parts) and tuple(map(int, parts)) >= SEPARATE_SINCE


def require_threads(count: int) -> None:
    """Start so many threads at once, and end them again; takes about a millisecond.

    Raises RuntimeError if the system has not that many left.
    """
    go, started = threading.Event(), []
    try:
        for _ in range(count):
            thread = threading.Thread(target=go.wait, name=STREAMS_THREAD, daemon=True)
            thread.start()
            started.append(thread)
    finally:
        go.set()
        for thread in started:
            thread.join()
