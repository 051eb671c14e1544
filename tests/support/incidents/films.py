"""The films: an incident from a calm minute before it until ten minutes after its remedy, and what is said first at each phase.

``make record-films`` records them on real engines, one bundle a phase.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.incidents.table import CANNOT_TELL, CAUSES, NOTHING_WRONG

if TYPE_CHECKING:
    from collections.abc import Mapping

RECORDED: Final = Path(__file__).parents[2] / "golden" / "films"
"""Where they are: NAME/PHASE.bundle."""

ALERTS: Final = "alerts.json"
"""Beside them: the alerts of a real Prometheus that fire at each phase."""

PHASES: Final = {
    "calm": 0.0,
    "seconds": 10.0,
    "minute": 50.0,
    "five": 240.0,
    "remedied": 15.0,
    "after": 585.0,
}
"""How many seconds after the phase before each is recorded: calm, the fault's beginning, the remedy, ten minutes later."""


_FAULT: Final = ("seconds", "minute", "five")


@dataclass(frozen=True, slots=True)
class Film:
    """What must be said of one film.

    Attributes:
        lasting: the kind of the first cause at each phase of the fault; empty where nothing is wrong.
        said: likewise by phase, where it is another: just after the remedy it may not be known yet that the fault has ended.
        alerts: those that fire in it, at any phase.
        nobody: phases in which no engine is there, and nothing can be told.

    """

    name: str
    lasting: str = ""
    said: Mapping[str, str] = field(default_factory=dict)
    alerts: frozenset[str] = frozenset()
    nobody: frozenset[str] = frozenset()

    def expected(self, phase: str) -> tuple[int, str]:
        """Return the exit code of ``agentctl diagnose`` at *phase*, and the kind of the first cause that lasts."""
        kind = self.said.get(phase, self.lasting if phase in _FAULT else "")
        if phase in self.nobody:
            return CANNOT_TELL, ""
        return (CAUSES if kind else NOTHING_WRONG), kind


# Of a share of few requests it cannot be said whether that is new.
_ROUTER: Final = {"seconds": "", "remedied": "no_transfer_parameters"}
_ALL = (
    Film("calm"),
    Film("no-traffic"),
    Film("router-without-parameters", "no_transfer_parameters", {"remedied": "no_transfer_parameters"}),
    Film("router-of-a-third", "no_transfer_parameters", _ROUTER),
    Film("router-and-agent", "no_transfer_parameters", _ROUTER, frozenset({"PenstockStalled"})),
    # The router still sends requests to where nothing listens.
    Film("policy-of-fail", "policy_fails_loads", {"remedied": "addresses_refuse"}),
    Film("two-causes", "healthy_peer_quarantined", {"remedied": "no_transfer_parameters"}),
    Film(
        "forgotten-quarantine",
        "healthy_peer_quarantined",
        alerts=frozenset({"PenstockPeerQuarantined", "PenstockRequestsFailing"}),
    ),
    Film("pod-killed", "peer_resets", {"remedied": "peer_resets"}),
    Film("pod-undrained", "peer_resets", {"remedied": "peer_resets"}, frozenset({"PenstockRequestsFailing"})),
    Film("network-flaps", "peer_slow", {"seconds": "", "remedied": "peer_slow"}),
    Film("stale-reference", "answers_suspect", {"remedied": "answers_suspect"}),
    Film("worker-stands-briefly", "peer_slow", {"remedied": "peer_slow"}),
    Film("pod-stands-still", "peer_slow", alerts=frozenset({"PenstockEngineDark", "PenstockTransferStuck"})),
    Film(
        "late-reads",
        "late_reads",
        {"seconds": "", "remedied": "late_reads"},
        frozenset({"PenstockLateReads"}),
    ),
    Film("leases-unread", "leases_expire", {"seconds": "", "remedied": "leases_expire"}),
    Film("other-weights", "weights_differ", alerts=frozenset({"PenstockWeightsDiffer"})),
    Film(
        "encoder-dies",
        "encoder_fails",
        {"remedied": "encoder_fails"},
        frozenset({"PenstockEngineDark"}),
    ),
    Film(
        "incompatible-pod",
        "incompatible_peer",
        {"remedied": "incompatible_peer"},
        frozenset({"PenstockIncompatiblePeers", "PenstockRequestsFailing"}),
    ),
    Film("wrong-engine", "wrong_engine_at_address", {"remedied": "wrong_engine_at_address"}),
    Film("disk-full", "agent_blind", alerts=frozenset({"PenstockAgentDegraded"})),
    Film("rolling-restart"),
    Film("pod-drained"),
    # Of a worker that may only be late, possible; vLLM ends the engine after five minutes.
    Film("worker-stands-still", "worker_silent", alerts=frozenset({"PenstockStalled"})),
    # vLLM has ended the engine.
    Film("stuck-load", "call_stuck", {"seconds": "", "five": ""}, frozenset({"PenstockStalled"})),
    Film("listener-dies", "thread_dead", alerts=frozenset({"PenstockStalled"})),
    Film(
        "load-never-starts",
        "load_not_started",
        {"seconds": "peer_slow"},
        frozenset({"PenstockRequestsDeferred", "PenstockStalled"}),
    ),
    # Its ranks come and go.
    Film(
        "rebalances-stall",
        "eplb_stalls",
        {"remedied": "eplb_stalls"},
        nobody=frozenset({"calm", "seconds", "after"}),
    ),
)
FILMS: Final = {film.name: film for film in _ALL}
"""By name."""
