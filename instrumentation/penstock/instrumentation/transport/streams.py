"""Opens the streams of one background thread, of the kind that this process can use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.instrumentation.transport.stream import CLOSE_WAIT

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable

    from penstock.instrumentation.transport.inbox import Message
    from penstock.instrumentation.transport.stream import Stream, T
    from penstock.instrumentation.transport.stream_loop import StreamLoop

SEPARATE_SINCE: Final = (1, 80)
"""The version of grpc from which event loops do not disturb each other. Before it, a second loop makes grpc raise
BlockingIOError in the first, which may be the host's, and asyncio log that (grpc#25364)."""


class Streams:
    """The way of one thread to its streams. Importing this is cheap; :meth:`open` imports grpc."""

    def __init__(self) -> None:
        self._loop: StreamLoop | None = None

    def open(
        self, endpoint: str, method: str, parse: Callable[[bytes], T], inbox: queue.SimpleQueue[Message]
    ) -> Stream[T]:
        """Open a channel to *endpoint* and call *method*; does not wait for the connection.

        Raises RuntimeError if the system has no thread left.
        """
        import grpc  # noqa: PLC0415  (not before the first emit)
        from penstock.instrumentation.transport.threaded_stream import ThreadedStream  # noqa: PLC0415

        if loops_are_separate(grpc.__version__):
            from penstock.instrumentation.transport.loop_stream import LoopStream  # noqa: PLC0415
            from penstock.instrumentation.transport.stream_loop import StreamLoop, StreamLoopError  # noqa: PLC0415

            if self._loop is not None and not self._loop.alive:
                self.leave()
            try:
                self._loop = self._loop or StreamLoop.acquire()
                return LoopStream(self._loop, endpoint, method, parse, inbox)
            except StreamLoopError:
                pass  # this process cannot use it
        return ThreadedStream(endpoint, method, parse, inbox)

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
