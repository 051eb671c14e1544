"""Threads and streams to the agent; the only package that imports grpc."""

from __future__ import annotations

from penstock.instrumentation.transport.background_thread import BackgroundThread, Backoff
from penstock.instrumentation.transport.stream import CLOSE_WAIT, Message, Stream, StreamEnd, Tag

__all__ = [
    "CLOSE_WAIT",
    "BackgroundThread",
    "Backoff",
    "Message",
    "Stream",
    "StreamEnd",
    "Tag",
]
