"""Policies in a bucket of NATS JetStream KV."""

from __future__ import annotations

__all__ = []
