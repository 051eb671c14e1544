"""Threads and streams to the agent; the only package that imports grpc."""

from __future__ import annotations

from penstock.instrumentation.transport.background_thread import Message, Service, Tag
from penstock.instrumentation.transport.backoff import Backoff

__all__ = [
    "Backoff",
    "Message",
    "Service",
    "Tag",
]
