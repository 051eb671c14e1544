"""The daemon's own metrics: of the state directory and of degradations, and what is wrong now, by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.agent.daemon.health import REASONS
from penstock.agent.metrics import Family, Sample
from penstock.agent.metrics.catalogue import from_agent as c
from penstock.agent.state import size_of
from penstock.proto.names import NANOS
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.daemon.health import Health
    from penstock.agent.journal import Journal
    from penstock.agent.state import StateDirectory


_CONFIDENCE: Final = {
    admin.DIAGNOSIS_CONFIDENCE_CERTAIN: "certain",
    admin.DIAGNOSIS_CONFIDENCE_LIKELY: "likely",
}
_MOST_CONDITIONS: Final = 512
"""Series at most: a cause may be about each of many engines."""


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


def condition_families(judgement: admin.Diagnosis | None) -> Iterator[Family]:
    """Yield the families of *judgement*: what has ended has no series, nor what another cause explains."""
    if judgement is None:
        return
    found = {
        labels: Sample(labels, 1)
        for cause in judgement.causes
        if not cause.HasField("until")
        for labels in _condition_labels(cause)
    }
    yield Family(c.CONDITION, list(found.values())[:_MOST_CONDITIONS])
    harmless = [
        Sample((key.server, key.engine), 1) for key in judgement.harmless_late_reads[:_MOST_CONDITIONS]
    ]
    yield Family(c.HARMLESS_LATE_READS, harmless)
    yield Family(c.JUDGED, [Sample((), judgement.at.ToNanoseconds() / NANOS)])


def _condition_labels(cause: admin.DiagnosedCause) -> Iterator[tuple[str, ...]]:
    confidence = _CONFIDENCE.get(cause.confidence, "possible")
    places = [(key.server, key.engine) for key in cause.engines] or [("", "")]
    for server, engine in places:
        yield cause.kind, server, engine, cause.peer, confidence
