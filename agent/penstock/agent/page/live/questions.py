"""What is asked for the screen, and how often. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from google.protobuf.message import Message

BYTES_PER_SECOND = 256 * 1024
"""Bytes of answers a second that a question may cost, on average: what the page may take of a core depends on it."""
COSTLY_SHARE = 0.04
"""Share of the time that a costly question may take."""

_LONGEST_SECONDS = 60.0
_WAITS = 30


@dataclass(frozen=True, slots=True)
class Question:
    """A call of the admin service.

    Attributes:
        name: the field of the answers.
        every: seconds between two calls, at least.
        costly: it reads the log, so that its time says more than its size.
        dated: its age is the age of the screen.

    """

    name: str
    method: str
    request: Message
    every: float
    costly: bool = False
    dated: bool = False

    def pause(self, size: int, took: float) -> float:
        """Return the seconds to the next call, after an answer of *size* bytes that *took* seconds."""
        by_size = min(size / BYTES_PER_SECOND, _LONGEST_SECONDS)
        by_time = min(took / COSTLY_SHARE, _LONGEST_SECONDS) if self.costly else 0.0
        return max(self.every, by_size, by_time)


QUESTIONS = (
    Question("status", "GetStatus", admin.GetStatusRequest(), 2.0),
    Question("engines", "ListEngines", admin.ListEnginesRequest(), 1.0, dated=True),
    Question("peers", "ListPeers", admin.ListPeersRequest(), 1.0, dated=True),
    Question(
        "waits", "ListRequests", admin.ListRequestsRequest(deferred=True, limit=_WAITS), 1.0, dated=True
    ),
    Question("diagnosis", "Diagnose", admin.DiagnoseRequest(), 10.0, costly=True),
    Question("drills", "ListDrills", admin.ListDrillsRequest(), 5.0),
    Question("quarantines", "ListQuarantines", admin.ListQuarantinesRequest(), 2.0),
    Question("rollouts", "ListPolicyRollouts", admin.ListPolicyRolloutsRequest(), 5.0),
    Question("policies", "ListPolicies", admin.ListPoliciesRequest(), 5.0),
)
