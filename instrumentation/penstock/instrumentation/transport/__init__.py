"""Threads and streams to the agent; the only package that imports grpc."""

from __future__ import annotations

from penstock.instrumentation.transport.background_thread import BackgroundThread
from penstock.instrumentation.transport.backoff import Backoff
from penstock.instrumentation.transport.inbox import Message, Tag
from penstock.instrumentation.transport.stream import Stream, StreamEnd

__all__ = [
    "BackgroundThread",
    "Backoff",
    "Message",
    "Stream",
    "StreamEnd",
    "Tag",
]
