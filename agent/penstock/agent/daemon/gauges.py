"""Metrics of the state directory and of degradations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.daemon.health import REASONS
from penstock.agent.metrics import Family, Sample
from penstock.agent.metrics.catalogue import from_agent as c
from penstock.agent.state import size_of
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from penstock.agent.daemon.health import Health
    from penstock.agent.journal import Journal
    from penstock.agent.state import StateDirectory


class StateGauges:
    """The metric families of the state."""

    def __init__(self, place: StateDirectory, journal: Journal, health: Health) -> None:
        self._place = place
        self._journal = journal
        self._health = health

    def families(self) -> list[Family]:
        """Return their present values."""
        usage = self._journal.usage
        present = {trouble.reason for trouble in self._health.troubles()}
        families = [
            Family(c.DEGRADED, [Sample((reason,), reason in present) for reason in REASONS]),
            Family(c.SET_ASIDE, [Sample((kind,), count) for kind, count in self._health.set_aside().items()]),
            Family(c.RESTORED, [Sample((kind,), count) for kind, count in self._health.restored().items()]),
            Family(c.LOST_BATCHES, [Sample((), self._journal.lost_batches)]),
            Family(c.STATE_BYTES, [Sample((), size_of(self._place.path))]),
            Family(c.STATE_LIMIT, [Sample((), self._place.limit)]),
            Family(
                c.PRUNED,
                [
                    Sample(("false",), usage.unexported),
                    Sample(("true",), usage.pruned - usage.unexported),
                ],
            ),
        ]
        if usage.oldest_unix_nano:
            families.append(Family(c.LOG_OLDEST, [Sample((), usage.oldest_unix_nano / NANOS)]))
        return families
