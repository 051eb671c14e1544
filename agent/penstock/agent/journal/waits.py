"""What a transaction does to the deferrals that are open: those that begin and end in it are never written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.kinds import KindAndEvent
    from penstock.proto.v1.events_pb2 import Event


class Waits:
    """Follows the events of a transaction, in the order of the log. Pure.

    What is in the table for anything of ``ended`` or ``closed`` goes first, then :meth:`begun` is written.

    Attributes:
        ended: (epoch, request, reason) of deferrals that ended.
        closed: (epoch, request) of requests that were closed: their deferral's end may have been dropped on the way.

    """

    def __init__(self) -> None:
        self.ended: list[tuple[int, str, int]] = []
        self.closed: list[tuple[int, str]] = []
        self._begun: dict[tuple[int, str], dict[int, tuple[Event, int]]] = {}

    def follow(self, epoch: int, batch_id: int, events: Iterable[KindAndEvent]) -> None:
        """Take the events of one batch."""
        for kind, event in events:
            if kind == "deferral_start":
                reasons = self._begun.setdefault((epoch, event.request_id), {})
                reasons[event.deferral_start.reason] = (event, batch_id)
            elif kind == "deferral_end":
                reason = event.deferral_end.reason
                self._begun.get((epoch, event.request_id), {}).pop(reason, None)
                self.ended.append((epoch, event.request_id, reason))
            elif kind == "request_closed":
                self._begun.pop((epoch, event.request_id), None)
                self.closed.append((epoch, event.request_id))

    def forget(self, epoch: int) -> None:
        """Drop what a source that is gone has begun."""
        for key in [key for key in self._begun if key[0] == epoch]:
            del self._begun[key]

    def begun(self) -> list[tuple[int, str, int, bytes, int]]:
        """Return (epoch, request, reason, the start as bytes, its batch) of what has begun and not ended."""
        return [
            (epoch, request_id, reason, start.SerializeToString(), batch_id)
            for (epoch, request_id), reasons in self._begun.items()
            for reason, (start, batch_id) in reasons.items()
        ]
