"""The way of a push: stream, decode, apply between two steps, ACK."""

from __future__ import annotations

from penstock.instrumentation.policy.active_policy import ActivePolicy

__all__ = [
    "ActivePolicy",
]
