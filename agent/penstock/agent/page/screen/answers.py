"""What the admin service answered last, from which a screen is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.proto.v1 import admin_pb2 as admin


@dataclass(frozen=True, slots=True)
class ScreenAnswers:
    """The last answer to each question; None before the first.

    Attributes:
        now: seconds since the epoch.
        data_time: when the oldest of the answers about engines, peers and requests was asked for, seconds; 0 for never.
        diagnosed: when the diagnosis was asked for, seconds.
        effective: the merged policy by the hash that engines are to have.
        since: seconds that the diagnosis is about; None for those of ``agentctl diagnose``.
        trouble: why the admin service does not answer; empty while it does.

    """

    now: float
    data_time: float = 0.0
    diagnosed: float = 0.0
    status: admin.AgentStatus | None = None
    engines: admin.ListEnginesResponse | None = None
    peers: admin.ListPeersResponse | None = None
    waits: admin.ListRequestsResponse | None = None
    diagnosis: admin.Diagnosis | None = None
    drills: admin.ListDrillsResponse | None = None
    quarantines: admin.ListQuarantinesResponse | None = None
    rollouts: admin.ListPolicyRolloutsResponse | None = None
    policies: admin.ListPoliciesResponse | None = None
    effective: Mapping[str, admin.EffectivePolicy] = field(default_factory=dict)
    coverage: admin.RelayCoverage | None = None
    since: float | None = None
    trouble: str = ""
