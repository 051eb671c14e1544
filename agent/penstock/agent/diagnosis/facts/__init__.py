"""What a diagnosis is made of: the two times of the log, what each of them is attributed to, and what is said. Pure."""

from __future__ import annotations

from penstock.agent.diagnosis.facts import words
from penstock.agent.diagnosis.facts.attribution import (
    EC,
    KV,
    Attribution,
    PeerTrouble,
    PolicyBlame,
    attribute,
    joined,
)
from penstock.agent.diagnosis.facts.fold import OF_REQUESTS, RARE, WindowFold
from penstock.agent.diagnosis.facts.records import Closed, Failure, LeaseEnd, LoadEnd, Loss, Rebalance
from penstock.agent.diagnosis.facts.verdict import (
    FAILED_SECONDS,
    RECOMPUTED_SECONDS,
    SUSPECT_SECONDS,
    Confidence,
    Evidence,
    FoundCause,
    Verdict,
    VerdictKind,
)
from penstock.agent.diagnosis.facts.waits import ClosedByPeer, FirstTokens
from penstock.agent.diagnosis.facts.windows import (
    Facts,
    Held,
    LostEntries,
    Window,
    ended_at,
    first_sign,
    longest_pause,
    sane,
)

__all__ = [
    "EC",
    "FAILED_SECONDS",
    "KV",
    "OF_REQUESTS",
    "RARE",
    "RECOMPUTED_SECONDS",
    "SUSPECT_SECONDS",
    "Attribution",
    "Closed",
    "ClosedByPeer",
    "Confidence",
    "Evidence",
    "Facts",
    "Failure",
    "FirstTokens",
    "FoundCause",
    "Held",
    "LeaseEnd",
    "LoadEnd",
    "Loss",
    "LostEntries",
    "PeerTrouble",
    "PolicyBlame",
    "Rebalance",
    "Verdict",
    "VerdictKind",
    "Window",
    "WindowFold",
    "attribute",
    "ended_at",
    "first_sign",
    "joined",
    "longest_pause",
    "sane",
    "words",
]
