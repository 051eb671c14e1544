"""A diagnosis as text. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from penstock.agent.views import text
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFIDENCE = {
    admin.DIAGNOSIS_CONFIDENCE_CERTAIN: "certain",
    admin.DIAGNOSIS_CONFIDENCE_LIKELY: "likely",
    admin.DIAGNOSIS_CONFIDENCE_POSSIBLE: "possible",
}
_COLOURS = {
    admin.DIAGNOSIS_VERDICT_CAUSES: "red",
    admin.DIAGNOSIS_VERDICT_CANNOT_TELL: "yellow",
    admin.DIAGNOSIS_VERDICT_NOTHING_WRONG: "green",
}

# Effects of a cause that are told one by one.
_EFFECTS: Final = 8


def diagnosis_lines(diagnosis: admin.Diagnosis) -> Iterator[str]:
    """Yield the lines: the sentence, each cause with its parts, what was looked at and what was not."""
    yield text.style(text.folded(diagnosis.sentence), _COLOURS.get(diagnosis.verdict, "bold"))
    now = diagnosis.at.ToNanoseconds() / 1e9
    for number, cause in enumerate(diagnosis.causes, 1):
        yield ""
        yield from _cause(number, cause, now)
    yield ""
    for each in diagnosis.looked_at:
        yield f"looked at: {text.folded(each)}"
    for each in diagnosis.missing:
        yield f"not known: {text.folded(each)}"


def confidence_words(cause: admin.DiagnosedCause) -> str:
    """Return how sure a diagnosis is of a cause: ``certain``, ``likely`` or ``possible``."""
    return _CONFIDENCE.get(cause.confidence, "possible")


def since_words(cause: admin.DiagnosedCause, now: float) -> str:
    """Return since when a cause lasts, or lasted: ``since 21:43:10 UTC, 12m ago``; empty where it is not known."""
    if not cause.HasField("since"):
        return ""
    moment = datetime.fromtimestamp(cause.since.seconds, UTC)
    return f"since {moment:%H:%M:%S} UTC, {text.ago_of(cause.since, now)}"


def _cause(number: int, cause: admin.DiagnosedCause, now: float) -> Iterator[str]:
    yield f"{number}. {text.folded(cause.sentence)} ({cause.kind}, {confidence_words(cause)})"
    engines = ", ".join(map(text.engine, cause.engines[:8]))
    more = f" and {len(cause.engines) - 8} more" if len(cause.engines) > 8 else ""  # noqa: PLR2004
    since = since_words(cause, now)
    yield f"   harm: {_harm(cause)}; on {engines or 'no engine'}{more}{f'; {since}' if since else ''}"
    for each in cause.evidence:
        before = f" (before: {text.folded(each.before)})" if each.before else ""
        yield f"   - {text.folded(each.fact)}{before}"
    for effect in cause.effects[:_EFFECTS]:
        yield f"   - its effect: {text.folded(effect.sentence)} ({effect.kind})"
    if len(cause.effects) > _EFFECTS:
        yield f"   - {text.count(len(cause.effects) - _EFFECTS, 'more effect')}"
    for other in cause.alternatives:
        yield f"   or: {text.folded(other)}"
    for command in cause.commands:
        yield f"   → {text.folded(command)}"


def _harm(cause: admin.DiagnosedCause) -> str:
    parts = [text.count(cause.requests, "request")]
    if cause.requests_failed:
        parts.append(f"{cause.requests_failed} failed")
    if cause.seconds:
        parts.append(f"{text.span_of_time(cause.seconds)} of waiting")
    return ", ".join(parts)
