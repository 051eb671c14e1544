"""What is asked for the screen, and how often. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.agent.page.screen import MOST_ENGINES, MOST_PEERS
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

# Share of a core that one question may take: what costs more is asked for less often. Three of them cost so much in a
# large fleet, and the page has a twentieth in all.
_SHARE = 0.008
_LONGEST_SECONDS = 60.0
_WAITS = 30


@dataclass(frozen=True, slots=True)
class Question:
    """A call of the admin service.

    Attributes:
        name: the field of the answers.
        every: seconds between two calls, at least.
        cost: seconds of CPU that an answer takes, by what it says of the fleet.
        costly: it reads the log, so that its time says what it costs, and the others do not wait for it.
        dated: its age is the age of the screen.

    """

    name: str
    method: str
    request: Message
    every: float
    cost: Callable[[Any], float] = lambda _: 0.0
    costly: bool = False
    dated: bool = False

    def pause(self, answer: Message, took: float) -> float:
        """Return the seconds to the next call, after an *answer* that *took* seconds: of a large fleet it is longer."""
        cost = took if self.costly else self.cost(answer)
        return max(self.every, min(cost / _SHARE, _LONGEST_SECONDS))


def _cost_of_engines(answer: admin.ListEnginesResponse) -> float:
    return 80e-6 * len(answer.engines)


def _cost_of_peers(answer: admin.ListPeersResponse) -> float:
    # To rank one and to make its row; an agent that does not rank answers with a row for each.
    return 1.6e-6 * answer.total + 20e-6 * len(answer.peers)


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
            admin.ListEnginesRequest(without_counters=True),
            1.0,
            cost=_cost_of_engines,
            dated=True,
        ),
        Question(
            "peers",
            "ListPeers",
            admin.ListPeersRequest(most_peers=MOST_PEERS, most_engines=MOST_ENGINES),
            1.0,
            cost=_cost_of_peers,
            dated=True,
        ),
        Question(
            "waits", "ListRequests", admin.ListRequestsRequest(deferred=True, limit=_WAITS), 1.0, dated=True
        ),
        Question("diagnosis", "Diagnose", diagnosis, 10.0, costly=True),
        Question("drills", "ListDrills", admin.ListDrillsRequest(), 5.0),
        Question("quarantines", "ListQuarantines", admin.ListQuarantinesRequest(), 5.0),
        Question("rollouts", "ListPolicyRollouts", admin.ListPolicyRolloutsRequest(), 5.0),
        Question("policies", "ListPolicies", admin.ListPoliciesRequest(), 5.0),
    )
