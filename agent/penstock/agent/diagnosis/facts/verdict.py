"""What a diagnosis says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.agent.model import EngineKey


class Confidence(IntEnum):
    """How sure a cause is; the numbers of ``DiagnosisConfidence``."""

    POSSIBLE = 1
    LIKELY = 2
    CERTAIN = 3


class VerdictKind(IntEnum):
    """What a diagnosis comes to; the numbers of ``DiagnosisVerdict``."""

    NOTHING_WRONG = 1
    CANNOT_TELL = 2
    CAUSES = 3


class Evidence(NamedTuple):
    """A fact of the window, and the same of the time before; empty where there is nothing to compare."""

    fact: str
    before: str = ""


FAILED_SECONDS = 30.0
"""What a failed request counts for among seconds waited."""

SUSPECT_SECONDS = 60.0
"""What an answer counts for that may be wrong: worse than none."""

RECOMPUTED_SECONDS = 1.0
"""What a request counts for whose state was computed again."""


@dataclass(frozen=True, slots=True)
class FoundCause:
    """One thing that is wrong.

    Attributes:
        kind: a stable word for programs.
        sentence: without a full stop.
        engines: where it was seen, sorted.
        peer: empty where it is about none, or about several.
        peers: these several, sorted.
        pairs: which engine with which of them, where not all with all.
        requests: of the window that it did something to.
        seconds: that these waited for longer than usual.
        failed: requests that failed of it.
        other_harm: seconds of harm that is not among these: a rank of standing conditions.
        since: when its first sign was seen in what was read, nanoseconds; 0 for not known.
        until: when it ended, nanoseconds; 0 while it lasts. Its sentence is then in the past tense, and its commands only look.
        alternatives: what else it could be, and how to tell.
        commands: what to run next.
        begun: when the newest of what it is made of began, nanoseconds, such as a lease that has expired since; 0 for when it
            was seen. Where that is before another cause ended, that one may have brought it about.
        blamed: kinds of causes that bring it about where they are about the same engine.
        effects: what it brings about, and would be a cause without it.

    """

    kind: str
    sentence: str
    engines: tuple[EngineKey, ...]
    evidence: tuple[Evidence, ...]
    peer: str = ""
    requests: int = 0
    seconds: float = 0.0
    failed: int = 0
    other_harm: float = 0.0
    confidence: Confidence = Confidence.LIKELY
    alternatives: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    until: int = 0
    since: int = 0
    begun: int = 0
    blamed: frozenset[str] = frozenset()
    effects: tuple[FoundCause, ...] = ()
    peers: tuple[str, ...] = ()
    pairs: frozenset[tuple[EngineKey, str]] = frozenset()

    @property
    def harm(self) -> float:
        """What causes are ordered by, in seconds."""
        return self.seconds + FAILED_SECONDS * self.failed + self.other_harm


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a diagnosis says.

    Attributes:
        sentence: without a full stop.
        causes: the most harmful first; empty unless the answer is CAUSES.
        looked_at: what was compared, in words.
        missing: what could not be looked at.

    """

    answer: VerdictKind
    sentence: str
    causes: tuple[FoundCause, ...] = ()
    looked_at: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
