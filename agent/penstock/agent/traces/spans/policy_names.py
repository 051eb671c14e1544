"""Names the policies behind the hash of an outcome or a span. Pure; a look-up is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from penstock.agent.model import PolicySource, Source
from penstock.agent.traces.spans import semconv
from penstock.agent.traces.spans.attributes import enum_word, present
from penstock.agent.traces.spans.model import EventEntry
from penstock.proto.v1.common_pb2 import Channel, DecidedBy
from penstock.rules import SLOW_PEER, START_WAIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.traces.spans.model import AttributeValue, Span
    from penstock.proto.v1.events_pb2 import LoadOutcome

PolicyLookup: TypeAlias = Callable[[Source, str, int], Sequence[PolicySource]]
"""Returns the policies behind a hash in the engine of a source at a time, nanoseconds; empty if they are not known."""

# What decides about a failed load, the first of them that a policy sets; by the word of ``DecidedBy``.
_FIELDS = {
    "policy": ("{}LoadFailure.action",),
    "quarantine": ("{}LoadFailure.action",),
    "budget": ("{}LoadFailure.recomputeBudget.tokensPerSecond", "{}LoadFailure.action"),
    "deadline": ("deferral.onTimeout", "{}LoadFailure.action"),
}
_REFLEX = "reflex"


def no_policies(_source: Source, _hash: str, _unix_nano: int) -> Sequence[PolicySource]:
    """Know no policy: the hash is shown."""
    return ()


def deciding_policies(outcome: LoadOutcome, sources: Sequence[PolicySource]) -> Sequence[PolicySource]:
    """Return the one of *sources* that set the field by which *outcome* was decided; all where none did."""
    channel = enum_word(Channel, outcome.channel)
    return _deciding(enum_word(DecidedBy, outcome.decided_by), channel, outcome.reason, sources)


def with_policy_names(spans: Sequence[Span], lookup: PolicyLookup) -> list[Span]:
    """Return *spans*, those with a policy's hash with its name, generation and author, if they are known.

    Where several policies were merged and none of them alone decided, with their names only. *spans* has all spans of a
    request: one of them has the outcome, whose time counts.
    """
    decided: dict[tuple[str, str], int] = {}
    for span in spans:
        for entry in span.entries:
            if isinstance(entry, EventEntry) and entry.event.HasField("load_outcome"):
                key = (span.request_id, entry.event.load_outcome.policy_hash)
                decided.setdefault(key, entry.event.time_unix_nano)
    return [_named(span, decided, lookup) for span in spans]


def _named(span: Span, decided: Mapping[tuple[str, str], int], lookup: PolicyLookup) -> Span:
    attributes = span.attributes
    hash_ = str(attributes.get(semconv.POLICY_HASH, ""))
    if not hash_:
        return span
    sources = lookup(span.source, hash_, decided.get((span.request_id, hash_), span.end_unix_nano))
    if span.name != semconv.POLICY_APPLY:
        decided_by, channel, reason = (
            str(attributes.get(name, "")) for name in (semconv.DECIDED_BY, semconv.CHANNEL, semconv.REASON)
        )
        sources = _deciding(decided_by, channel or "kv", reason, sources)
    return replace(span, attributes={**attributes, **_attributes(sources)}) if sources else span


def _deciding(
    decided_by: str, channel: str, reason: str, sources: Sequence[PolicySource]
) -> Sequence[PolicySource]:
    fields = _FIELDS.get(decided_by, ())
    if decided_by == _REFLEX:
        # Its reason names it.
        fields = tuple(f"{name}.action" for name in (START_WAIT, SLOW_PEER) if name in reason)
    for field in fields:
        found = [source for source in sources if field.format(channel) in source.fields]
        if found:
            return found
    return sources


def _attributes(sources: Sequence[PolicySource]) -> dict[str, AttributeValue]:
    if len(sources) != 1:
        return {semconv.POLICY_NAME: ", ".join(source.name for source in sources)}
    (source,) = sources
    return present(
        {
            semconv.POLICY_NAME: source.name,
            semconv.POLICY_GENERATION: source.generation,
            semconv.POLICY_AUTHOR: source.author,
        }
    )
