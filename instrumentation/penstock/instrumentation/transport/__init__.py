"""Threads and streams to the agent; the only package that imports grpc."""

from __future__ import annotations

from penstock.instrumentation.transport.background_thread import BackgroundThread, Message, Tag
from penstock.instrumentation.transport.backoff import Backoff

__all__ = [
    "BackgroundThread",
    "Backoff",
    "Message",
    "Tag",
]
