"""What is asked for the screen, and how often. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from google.protobuf.message import Message

COSTLY_SHARE = 0.02
"""Share of the time that a costly question may take."""

# Rows that may be asked for in a second, on average: each takes about 0.4 ms of an agent, or 24 µs.
_ENGINES_PER_SECOND = 20
_PEERS_PER_SECOND = 500
_LONGEST_SECONDS = 60.0
_WAITS = 30


@dataclass(frozen=True, slots=True)
class Question:
    """A call of the admin service.

    Attributes:
        name: the field of the answers.
        every: seconds between two calls, at least.
        rows: the field of the answer that grows with the fleet; empty for none.
        per_second: rows that may be asked for in a second, on average.
        costly: it reads the log, so that its time says more than its size.
        dated: its age is the age of the screen.

    """

    name: str
    method: str
    request: Message
    every: float
    rows: str = ""
    per_second: int = 1
    costly: bool = False
    dated: bool = False

    def pause(self, answer: Message, took: float) -> float:
        """Return the seconds to the next call, after an *answer* that *took* seconds: of a large fleet it is longer."""
        by_rows = len(getattr(answer, self.rows)) / self.per_second if self.rows else 0.0
        by_time = took / COSTLY_SHARE if self.costly else 0.0
        return max(self.every, min(max(by_rows, by_time), _LONGEST_SECONDS))


def questions(since: float | None = None) -> tuple[Question, ...]:
    """Return what is asked; *since*: seconds that the diagnosis is about, None for those of ``agentctl diagnose``."""
    diagnosis = admin.DiagnoseRequest()
    if since is not None:
        diagnosis.since.FromMicroseconds(round(since * 1e6))
    return (
        Question("status", "GetStatus", admin.GetStatusRequest(), 2.0),
        Question(
            "engines",
            "ListEngines",
            admin.ListEnginesRequest(),
            1.0,
            "engines",
            _ENGINES_PER_SECOND,
            dated=True,
        ),
        Question("peers", "ListPeers", admin.ListPeersRequest(), 1.0, "peers", _PEERS_PER_SECOND, dated=True),
        Question(
            "waits", "ListRequests", admin.ListRequestsRequest(deferred=True, limit=_WAITS), 1.0, dated=True
        ),
        Question("diagnosis", "Diagnose", diagnosis, 10.0, costly=True),
        Question("drills", "ListDrills", admin.ListDrillsRequest(), 5.0),
        Question("quarantines", "ListQuarantines", admin.ListQuarantinesRequest(), 2.0),
        Question("rollouts", "ListPolicyRollouts", admin.ListPolicyRolloutsRequest(), 5.0),
        Question("policies", "ListPolicies", admin.ListPoliciesRequest(), 5.0),
    )
