"""The recorded incidents: what was caused on real engines, and what ``agentctl diagnose`` must say of it first."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RECORDED: Final = Path(__file__).parents[2] / "golden" / "incidents"
"""Where the bundles are, one NAME.bundle an incident; ``make record-incidents`` records them anew."""

NOTHING_WRONG, CAUSES, CANNOT_TELL = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Incident:
    """One recording.

    Attributes:
        name: of the bundle.
        kind: of the first cause; empty where there is none.
        words: that the verdict's sentence has.
        code: the exit code of ``agentctl diagnose``.

    """

    name: str
    kind: str
    words: tuple[str, ...]
    code: int = CAUSES

    @property
    def path(self) -> Path:
        """The bundle."""
        return RECORDED / f"{self.name}.bundle"

    @property
    def window(self) -> str:
        """``--since`` of the command that looks at it: from the fault, or the traffic that is looked at, to the bundle."""
        with zipfile.ZipFile(self.path) as archive:
            seconds = json.loads(archive.read("manifest.json"))["since_seconds"]
        return f"{seconds:.0f}s"


_ALL = (
    Incident("prefill-network-flaps", "peer_slow", ("is slow", "longer than usual")),
    Incident("half-incompatible", "incompatible_peer", ("they differ in dtype",)),
    Incident("encoder-dies", "encoder_fails", ("encoder 127.0.0.1:", "and vanished")),
    Incident("rebalances-stall", "eplb_stalls", ("stall the forward pass of engine experts/0",)),
    Incident("fail-everywhere", "policy_fails_loads", ("no-recompute", "generation 1")),
    Incident("nothing-wrong", "", ("nothing is wrong in the last",), NOTHING_WRONG),
    Incident("no-traffic", "", ("I cannot tell: no request ended, or waited for a transfer",), CANNOT_TELL),
    Incident("prefill-killed", "peer_refuses", ("refuses connections and vanished", "requests failed")),
    Incident("late-read", "late_reads", ("read after their lease had ended", "1 answer may be wrong")),
    Incident("leases-unread", "leases_expire", ("ended before a reader came",)),
    Incident("other-weights", "weights_differ", ("different weights", "3 answers may be wrong")),
    Incident("stale-reference", "answers_suspect", ("2 answers", "what they read is not what was sent")),
    Incident("router-without-parameters", "no_transfer_parameters", ("without transfer parameters",)),
    Incident("load-never-starts", "load_not_started", ("1 request waits for KV", "no transfer")),
    Incident("listener-dies", "thread_dead", ("thread nixl_handshake_listener of EngineCore ended",)),
    Incident("stuck-load", "call_stuck", ("HangingConnector.start_load_kv",)),
    Incident("forgotten-quarantine", "healthy_peer_quarantined", ("in quarantine by order of ada@ops",)),
    Incident("worker-stands-still", "worker_silent", ("worker 0 has reported nothing",)),
)
INCIDENTS: Final = {incident.name: incident for incident in _ALL}
FIVE: Final = (
    "prefill-network-flaps",
    "half-incompatible",
    "encoder-dies",
    "rebalances-stall",
    "fail-everywhere",
)
"""Those that Penstock is made for, in the order of docs/guides/incidents.md."""
