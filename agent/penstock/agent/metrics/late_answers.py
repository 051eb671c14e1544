"""Requests whose blocks were read late: each of the ranks that read is an entry, the answer is one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.proto.v1.common_pb2 import DIRECTION_SEND, FAILURE_MODE_LATE_READ

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.agent.batch import BatchColumns
    from penstock.agent.model import EngineKey

_FAILURE = "transfer_failure"
# Above it, the oldest is forgotten: the ranks of one read report it within seconds.
MAX_READS = 4_096


class LateAnswers:
    """The requests that were counted, so that none counts twice."""

    def __init__(self, rows: Iterable[Sequence[str]] = ()) -> None:
        """Take over what :meth:`dump` returned."""
        self._counted: dict[tuple[str, ...], None] = {tuple(row): None for row in rows}

    def dump(self) -> list[list[str]]:
        """Return the state for JSON."""
        return [list(row) for row in self._counted]

    def new(self, key: EngineKey, contents: BatchColumns) -> int:
        """Return how many requests of engine *key* have their first late read in *contents*; drills are none."""
        if _FAILURE not in contents.groups:
            return 0
        before = 0
        for _, event in contents.in_order((_FAILURE,)):
            failure = event.transfer_failure
            if (
                failure.mode != FAILURE_MODE_LATE_READ
                or failure.direction != DIRECTION_SEND
                or event.rehearsal
            ):
                continue
            row = (key.server, key.engine, event.request_id)
            if row not in self._counted:
                self._counted[row] = None
                before += 1
        while len(self._counted) > MAX_READS:
            del self._counted[next(iter(self._counted))]
        return before
