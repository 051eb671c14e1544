"""The way of a push: stream, decode, apply between two steps, ACK."""

from __future__ import annotations

from penstock.instrumentation.policy.active_policy import ActivePolicy, fits_always
from penstock.instrumentation.policy.applier import PolicyApplier

__all__ = [
    "ActivePolicy",
    "PolicyApplier",
    "fits_always",
]
