"""What is wrong: from the log and the engines' snapshots to causes in order, each with its evidence. Pure."""

from __future__ import annotations

from penstock.agent.diagnosis.diagnose import MAX_CAUSES, diagnose
from penstock.agent.diagnosis.facts import Facts, Held, Window
from penstock.agent.diagnosis.fold import OF_REQUESTS, RARE, WindowFold
from penstock.agent.diagnosis.merge_verdicts import merge_diagnoses
from penstock.agent.diagnosis.messages import diagnosis_message
from penstock.agent.diagnosis.verdict import Confidence, Evidence, FoundCause, Verdict, VerdictKind

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
    "diagnosis_message",
    "merge_diagnoses",
]
