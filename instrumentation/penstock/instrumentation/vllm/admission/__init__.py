"""Which peers a scheduler loads from, on all its channels: quarantine by policy, by orders, by the results of loads."""

from __future__ import annotations

from penstock.instrumentation.vllm.admission.peer_gate import INCONCLUSIVE, PeerGate

__all__ = ["INCONCLUSIVE", "PeerGate"]
