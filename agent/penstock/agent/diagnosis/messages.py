"""A verdict as a message. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.proto.names import NANOS
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey

if TYPE_CHECKING:
    from penstock.agent.diagnosis.facts import Facts, FoundCause, Verdict

_MAX_PEERS: Final = 256


def diagnosis_message(verdict: Verdict, facts: Facts) -> admin.Diagnosis:
    """Return *verdict* about *facts* as a message."""
    message = admin.Diagnosis(
        verdict=int(verdict.answer),  # type: ignore[arg-type]
        sentence=verdict.sentence,
        causes=map(cause_message, verdict.causes),
        looked_at=verdict.looked_at,
        missing=verdict.missing,
        engines=len(facts.engines),
        harmless_late_reads=[
            EngineKey(server=key.server, engine=key.engine) for key in facts.harmless_late_reads
        ],
    )
    message.at.FromNanoseconds(facts.now)
    message.since.FromNanoseconds(int(facts.present.read * NANOS))
    message.baseline.FromNanoseconds(int(facts.before.read * NANOS))
    return message


def cause_message(cause: FoundCause) -> admin.DiagnosedCause:
    """Return *cause* as a message."""
    message = admin.DiagnosedCause(
        kind=cause.kind,
        sentence=cause.sentence,
        engines=[EngineKey(server=key.server, engine=key.engine) for key in cause.engines],
        peer=cause.peer,
        peers=cause.peers[:_MAX_PEERS],
        requests=cause.requests,
        seconds=round(cause.seconds, 3),
        requests_failed=cause.failed,
        harm=round(cause.harm, 3),
        confidence=int(cause.confidence),  # type: ignore[arg-type]
        evidence=[admin.DiagnosisEvidence(fact=each.fact, before=each.before) for each in cause.evidence],
        alternatives=cause.alternatives,
        commands=cause.commands,
        effects=map(cause_message, cause.effects),
    )
    if cause.until:
        message.until.FromNanoseconds(cause.until)
    if cause.since:
        message.since.FromNanoseconds(cause.since)
    return message
