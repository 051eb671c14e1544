"""Open deferrals of one transaction. A deferral that starts and ends in it is not written."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.agent.batch import BatchColumns
    from penstock.proto.v1.events_pb2 import Event


class OpenDeferrals:
    """Collects the starts and ends of a transaction's deferrals, in the order of the log. Pure.

    What is in the table for anything of ``ended`` or ``closed`` goes first, then :meth:`begun` is written.

    Attributes:
        ended: (epoch, request, reason) of deferrals that ended.
        closed: (epoch, request) of requests that were closed: their deferral's end may have been dropped on the way.

    """

    def __init__(self) -> None:
        self.ended: list[tuple[int, str, int]] = []
        self.closed: list[tuple[int, str]] = []
        self._begun: dict[tuple[int, str], dict[int, tuple[Event, int]]] = {}

    def add_batch(self, epoch: int, batch_id: int, contents: BatchColumns) -> None:
        """Add the events of one batch."""
        groups = contents.groups
        # Where each ended last in this batch.
        ended: dict[tuple[str, int], int] = {}
        closed: dict[str, int] = {}
        if ends := groups.get("deferral_end"):
            reasons = ends.column("reason")
            self.ended += zip(repeat(epoch), ends.request_ids, reasons, strict=False)
            ended = dict(zip(zip(ends.request_ids, reasons, strict=True), ends.places, strict=True))
        if done := groups.get("request_closed"):
            self.closed += zip(repeat(epoch), done.request_ids, strict=False)
            closed = dict(zip(done.request_ids, done.places, strict=True))
        if self._begun:
            for request_id, reason in ended:
                self._begun.get((epoch, request_id), {}).pop(reason, None)
            for request_id in closed:
                self._begun.pop((epoch, request_id), None)
        if starts := groups.get("deferral_start"):
            for place, event, request_id, reason in zip(
                starts.places, starts.events, starts.request_ids, starts.column("reason"), strict=True
            ):
                if closed.get(request_id, -1) < place and ended.get((request_id, reason), -1) < place:
                    self._begun.setdefault((epoch, request_id), {})[reason] = (event, batch_id)

    def drop_source(self, epoch: int) -> None:
        """Drop the deferrals of a source that has ended."""
        for key in [key for key in self._begun if key[0] == epoch]:
            del self._begun[key]

    def begun(self) -> list[tuple[int, str, int, bytes, int]]:
        """Return the rows of deferrals that have started and not ended: epoch, request, reason, serialized start, batch."""
        return [
            (epoch, request_id, reason, start.SerializeToString(), batch_id)
            for (epoch, request_id), reasons in self._begun.items()
            for reason, (start, batch_id) in reasons.items()
        ]
