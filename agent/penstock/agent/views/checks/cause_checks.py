"""What the diagnosis says, as findings: one for each cause. Pure.

Findings judge no incidents of their own; what they add is about the installation and the configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.views import text
from penstock.agent.views.checks.findings import NOTE, OK, WRONG, Finding
from penstock.agent.views.diagnosis import since_words
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SUBJECT: Final = "transfers"
_EVIDENCE: Final = "agentctl diagnose has the evidence"
# What findings of the installation say of each process, with what to do.
_OF_THE_INSTALLATION: Final = frozenset({"clock_offset", "paused", "policy_refused"})
_BLIND: Final = "agent_blind"
# Commands and effects of a cause that are shown, and causes that have ended.
_COMMANDS, _EFFECTS, _ENDED = 2, 3, 3
_LONGEST: Final = 400


class Judgement(NamedTuple):
    """The diagnosis of all engines, or why there is none.

    Attributes:
        diagnosis: None where the agent makes none.
        error: why not.
        old: it knows no such call.

    """

    diagnosis: admin.Diagnosis | None = None
    error: str = ""
    old: bool = False

    @property
    def is_known(self) -> bool:
        """Whether there is a diagnosis, which then says what is wrong with engines, peers and requests."""
        return self.diagnosis is not None

    def lasting(self) -> Sequence[admin.DiagnosedCause]:
        """Return the causes that have not ended."""
        causes = () if self.diagnosis is None else self.diagnosis.causes
        return [each for each in causes if not each.HasField("until")]

    def tells_of_disk(self, degraded: str) -> bool:
        """Return whether a cause quotes *degraded*, why an agent stores nothing."""
        words = text.one_line(degraded).removesuffix("…")
        return any(each.kind == _BLIND and words in each.sentence for each in self.lasting())


NOT_ASKED: Final = Judgement()


def check_causes(judgement: Judgement, engines: Sequence[admin.Engine] = ()) -> Iterator[Finding]:
    """Yield a finding for each cause; one for all where there is none, where it is not known, and where no diagnosis is made.

    Args:
        judgement: of the engines.
        engines: as the agent lists them; entries that their processes report as lost are findings of these.

    """
    diagnosis = judgement.diagnosis
    if diagnosis is None:
        yield _unknown(judgement)
        return
    now = diagnosis.at.ToNanoseconds() / 1e9
    lossy = {text.engine(each.key) for each in engines if any(source.drops for source in each.sources)}
    shown = [each for each in judgement.lasting() if not _is_told(each, lossy)]
    for number, cause in enumerate(shown):
        yield _lasting(cause, now, "" if number else _EVIDENCE)
    ended = [each for each in diagnosis.causes if each.HasField("until")]
    for cause in ended[:_ENDED]:
        yield Finding(NOTE, cause.kind, text.one_line(cause.sentence, _LONGEST), _advice(cause))
    if len(ended) > _ENDED:
        more = f"{text.count(len(ended) - _ENDED, 'more cause')} ended"
        yield Finding(NOTE, _SUBJECT, more, "agentctl diagnose lists all")
    if diagnosis.verdict == admin.DIAGNOSIS_VERDICT_NOTHING_WRONG:
        yield Finding(OK, _SUBJECT, diagnosis.sentence)
    elif diagnosis.verdict != admin.DIAGNOSIS_VERDICT_CAUSES:
        yield Finding(NOTE, _SUBJECT, diagnosis.sentence, "agentctl diagnose says what is missing")


def _unknown(judgement: Judgement) -> Finding:
    if judgement.old:
        what = "whether anything is wrong with them is not known: the agent makes no diagnosis, it is older than agentctl"
        return Finding(NOTE, _SUBJECT, what, "upgrade the agent")
    what = f"whether anything is wrong with them is not known: {text.one_line(judgement.error, _LONGEST)}"
    return Finding(WRONG, _SUBJECT, what, "agentctl diagnose asks again; the agent's log says why it failed")


def _is_told(cause: admin.DiagnosedCause, lossy: set[str]) -> bool:
    """Return whether the findings of the installation have *cause*, process by process."""
    if cause.kind == "entries_lost":
        return all(text.engine(key) in lossy for key in cause.engines)
    return cause.kind in _OF_THE_INSTALLATION


def _lasting(cause: admin.DiagnosedCause, now: float, more: str) -> Finding:
    level = WRONG if cause.confidence >= admin.DIAGNOSIS_CONFIDENCE_LIKELY else NOTE
    since = since_words(cause, now)
    what = text.one_line(cause.sentence, _LONGEST) + (f" ({since})" if since else "") + _effects(cause)
    advice = _advice(cause)
    return Finding(level, cause.kind, what, "; ".join(filter(None, (advice, more))))


def _effects(cause: admin.DiagnosedCause) -> str:
    """Return what *cause* brings about, to stand behind it."""
    if not cause.effects:
        return ""
    told = [text.one_line(each.sentence, _LONGEST) for each in cause.effects[:_EFFECTS]]
    left = len(cause.effects) - len(told)
    name = "its effect" if len(cause.effects) == 1 else "its effects"
    return f"; {name}: {'; '.join(told)}{f'; {left} more' if left else ''}"


def _advice(cause: admin.DiagnosedCause) -> str:
    if cause.kind == _BLIND:
        return "check the agent's disk and the files of its state directory; see docs/guides/state.md"
    # Who reads this has just run it.
    commands = [each for each in cause.commands if not each.startswith("agentctl doctor")]
    return "; ".join(text.folded(each) for each in commands[:_COMMANDS])
