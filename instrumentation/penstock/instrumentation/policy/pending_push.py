"""A push that is not answered yet, and the reports to the agent. Pure; protobuf comes with the first report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.proto.v1.policy_pb2 import Report


@dataclass(slots=True)
class PendingPush:
    """A push whose final answer is outstanding.

    Attributes:
        nonce: 0 if its stream has ended, so that no answer is awaited.
        hash: of the policy that it asks for.
        received_ns: wall clock.
        deadline: by the applier's clock.
        field: path of what was refused of its policy.
        error: why it was refused; empty if it was not.
        refused: why an order was refused, by its id.
        order_ids: of all its orders.
        timed_out: it has been refused because no step ended.

    """

    nonce: int
    hash: str
    received_ns: int
    deadline: float
    field: str
    error: str
    refused: Mapping[str, str]
    order_ids: tuple[str, ...]
    timed_out: bool = False

    def answer(self, hash_in_force: str, *, paused: bool) -> Report:
        """Return the ACK of what is in force now, or the NACK of a refused policy."""
        if self.error:
            return self._nack(self.error, self.refused, hash_in_force)
        answer = {"nonce": self.nonce, "hash": hash_in_force, "paused": paused}
        return _report(ack={**answer, "refused_orders": _refusals(self.refused)})

    def refuse_all(self, error: str, hash_in_force: str) -> Report:
        """Return the NACK of the policy and of every order."""
        return self._nack(error, dict.fromkeys(self.order_ids, error), hash_in_force)

    def _nack(self, error: str, refused: Mapping[str, str], hash_in_force: str) -> Report:
        answer = {"nonce": self.nonce, "field": self.field, "error": error, "hash_in_force": hash_in_force}
        return _report(nack={**answer, "refused_orders": _refusals(refused)})


def report_move(hash_: str) -> Report:
    """Return the report that the schedule has moved on to the policy with *hash_*."""
    return _report(moved={"hash": hash_})


def _refusals(refused: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"id": name, "error": error} for name, error in refused.items()]


def _report(**message: Any) -> Report:
    from penstock.proto.v1.policy_pb2 import Report  # noqa: PLC0415  (protobuf)

    return Report(**message)
