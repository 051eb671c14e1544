"""Metrics of the judgement: what is wrong now, by kind. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.agent.metrics import Family, Sample
from penstock.agent.metrics.catalogue import from_agent as c
from penstock.proto.names import NANOS
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFIDENCE: Final = {
    admin.DIAGNOSIS_CONFIDENCE_CERTAIN: "certain",
    admin.DIAGNOSIS_CONFIDENCE_LIKELY: "likely",
}
_MOST: Final = 512
"""Series at most: a cause may be about each of many engines."""


def condition_families(judgement: admin.Diagnosis | None) -> Iterator[Family]:
    """Yield the families of *judgement*: what has ended has no series, nor what another cause explains."""
    if judgement is None:
        return
    found = {
        labels: Sample(labels, 1)
        for cause in judgement.causes
        if not cause.HasField("until")
        for labels in _labels(cause)
    }
    yield Family(c.CONDITION, list(found.values())[:_MOST])
    harmless = [Sample((key.server, key.engine), 1) for key in judgement.harmless_late_reads[:_MOST]]
    yield Family(c.HARMLESS_LATE_READS, harmless)
    yield Family(c.JUDGED, [Sample((), judgement.at.ToNanoseconds() / NANOS)])


def _labels(cause: admin.DiagnosedCause) -> Iterator[tuple[str, ...]]:
    confidence = _CONFIDENCE.get(cause.confidence, "possible")
    places = [(key.server, key.engine) for key in cause.engines] or [("", "")]
    for server, engine in places:
        yield cause.kind, server, engine, cause.peer, confidence
