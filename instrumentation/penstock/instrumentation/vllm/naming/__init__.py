"""How vLLM's engines, peers and failures are called on the wire."""

from __future__ import annotations

from penstock.instrumentation.vllm.naming import engine_identity, failure_modes, peers
from penstock.instrumentation.vllm.naming.failure_modes import Failure, cut, error_type_of
from penstock.instrumentation.vllm.naming.peers import UNKNOWN, Peer, address

__all__ = [
    "UNKNOWN",
    "Failure",
    "Peer",
    "address",
    "cut",
    "engine_identity",
    "error_type_of",
    "failure_modes",
    "peers",
]
