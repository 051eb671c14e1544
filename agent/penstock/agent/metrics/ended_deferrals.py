"""Deferrals that the agent ended because their engine was away: an engine that comes back ends them again. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.model import AGENT_PROCESS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from penstock.agent.batch import BatchColumns
    from penstock.agent.model import Source
    from penstock.proto.v1.events_pb2 import Event

_ENDED = "deferral_end"
# Above it, the one that was ended first is forgotten: its engine has been away for longest.
MAX_ENDED = 10_000


class EndedByLoss:
    """What has been counted as ``engine_lost``, so that its second end is not counted: a counter takes nothing back.

    An end is known by its source's epoch, its request, its reason and its start.
    """

    def __init__(self, rows: Iterable[Sequence[int | str]] = ()) -> None:
        """Take over what :meth:`dump` returned."""
        self._ends: dict[tuple[int | str, ...], None] = {tuple(row): None for row in rows}

    def dump(self) -> list[list[int | str]]:
        """Return the state for JSON."""
        return [list(end) for end in self._ends]

    def seconds(self, source: Source, contents: BatchColumns) -> Collection[int]:
        """Return the places of *source*'s events that end what has ended, and forget that; remember what the agent ends."""
        if source.process == AGENT_PROCESS:
            self._remember(contents)
            return ()
        if not self._ends or _ENDED not in contents.groups:
            return ()
        group = contents.groups[_ENDED]
        found = set()
        for place, event in zip(group.places, group.events, strict=True):
            end = _end(source.epoch, event)
            if end in self._ends:
                del self._ends[end]
                found.add(place)
        return found

    def _remember(self, contents: BatchColumns) -> None:
        lost = [event.source_lost.epoch for _, event in contents.in_order(("source_lost",))]
        # The agent writes the loss of one source in one batch.
        if len(lost) != 1:
            return
        for _, event in contents.in_order((_ENDED,)):
            self._ends[_end(lost[0], event)] = None
        while len(self._ends) > MAX_ENDED:
            del self._ends[next(iter(self._ends))]


def _end(epoch: int, event: Event) -> tuple[int | str, ...]:
    body = event.deferral_end
    return epoch, event.request_id, body.reason, body.start_time_unix_nano
