"""Opens a stream of the kind that this process can use. With the kinds themselves, the only modules that import grpc."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
from penstock.instrumentation.transport.loop_stream import LoopStream
from penstock.instrumentation.transport.stream_loop import StreamLoopError
from penstock.instrumentation.transport.threaded_stream import ThreadedStream

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable

    from penstock.instrumentation.transport.inbox import Message
    from penstock.instrumentation.transport.stream import Stream, T

ONE_LOOP_ONLY: Final = (1, 80)
"""The version of grpc from which loops do not disturb each other. Before it, a second loop of the process makes grpc raise
BlockingIOError in the first, and asyncio log it: the first may be the host's (grpc#25364)."""


def open_stream(
    endpoint: str, method: str, parse: Callable[[bytes], T], inbox: queue.SimpleQueue[Message]
) -> Stream[T]:
    """Open a channel to *endpoint* and call *method*; does not wait for the connection.

    Raises RuntimeError if the system has no thread left.
    """
    if loops_are_separate(grpc.__version__):
        try:
            return LoopStream(endpoint, method, parse, inbox)
        except StreamLoopError:
            pass
    return ThreadedStream(endpoint, method, parse, inbox)


def loops_are_separate(version: str) -> bool:
    """Whether grpc of *version* may have a loop of ours beside one of the host's."""
    parts = version.split(".")[:2]
    return all(part.isdecimal() for part in parts) and tuple(map(int, parts)) >= ONE_LOOP_ONLY
