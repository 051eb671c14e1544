"""What is wrong: from the log and the engines' snapshots to causes in order, each with its evidence. Pure."""

from __future__ import annotations

from penstock.agent.diagnosis.diagnose import (
    MAX_CAUSES,
    diagnose,
    diagnose_pairs,
    diagnose_shared_ids,
    diagnosis_message,
)
from penstock.agent.diagnosis.facts import (
    OF_REQUESTS,
    RARE,
    Confidence,
    Evidence,
    Facts,
    FoundCause,
    Held,
    Verdict,
    VerdictKind,
    Window,
    WindowFold,
)
from penstock.agent.diagnosis.merge_verdicts import merge_diagnoses

__all__ = [
    "MAX_CAUSES",
    "OF_REQUESTS",
    "RARE",
    "Confidence",
    "Evidence",
    "Facts",
    "FoundCause",
    "Held",
    "Verdict",
    "VerdictKind",
    "Window",
    "WindowFold",
    "diagnose",
    "diagnose_pairs",
    "diagnose_shared_ids",
    "diagnosis_message",
    "merge_diagnoses",
]
