"""What counts as wrong of what was said."""

from __future__ import annotations

import pytest
from penstock.proto.v1 import admin_pb2 as admin

from tests.calm.watch import Alert, Cause, Said, causes_of

_AWAY = admin.DiagnosedCause(
    kind="engine_away",
    sentence="engine decode/0 is not connected",
    engines=[{"server": "decode", "engine": "0"}],
    confidence=admin.DIAGNOSIS_CONFIDENCE_LIKELY,
)


def _cause(**fields: object) -> Cause:
    cause = admin.DiagnosedCause()
    cause.CopyFrom(_AWAY)
    if "until" in fields:
        cause.until.FromSeconds(1)
    if "confidence" in fields:
        cause.confidence = admin.DIAGNOSIS_CONFIDENCE_POSSIBLE
    (found,) = causes_of(admin.Diagnosis(causes=[cause]))
    return found


@pytest.mark.parametrize(
    ("cause", "true", "wrong"),
    [
        (_cause(), frozenset(), 1),
        (_cause(), frozenset({"engine_away"}), 0),
        (_cause(), frozenset({"agent_blind"}), 1),
        (_cause(until=True), frozenset(), 0),
        (_cause(confidence="possible"), frozenset(), 0),
    ],
)
def test_a_lasting_cause_that_is_not_true_is_wrong(cause: Cause, true: frozenset[str], wrong: int) -> None:
    """At likely and above; once, however often and in whatever words it is said."""
    said = Said("restart", true)
    said.heard([cause], [], 1.0)
    said.heard([Cause(cause.kind, cause.subject, cause.confidence, cause.lasts, "other words")], [], 4.0)
    assert len(said.violations()) == wrong
    (span,) = said.causes.values()
    assert (span.first, span.last, span.times) == (1.0, 4.0, 2)


@pytest.mark.parametrize(("severity", "wrong"), [("critical", 1), ("warning", 0)])
def test_a_critical_alert_is_wrong_in_every_phase(severity: str, wrong: int) -> None:
    """Whatever is true in it."""
    said = Said("disk full", frozenset({"agent_blind", "engine_away"}))
    said.heard([], [Alert("PenstockEngineDark", severity, "Engine 0 vanished")], 1.0)
    assert len(said.violations()) == wrong


def test_a_cause_is_about_its_peer_or_its_first_engine() -> None:
    """So that two causes of one kind are two."""
    assert _cause().subject == "decode/0"
    (of_peer,) = causes_of(admin.Diagnosis(causes=[admin.DiagnosedCause(kind="peer_slow", peer="a:1")]))
    assert of_peer.subject == "a:1"
