"""The verdict: what is asked of the diagnosis, and what it says, in the words of ``agentctl diagnose``. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.page.screen.model import CauseEvidence, ShownCause, ShownVerdict
from penstock.agent.page.wire import command, plain
from penstock.agent.views import text
from penstock.agent.views.diagnosis import confidence_words, since_words
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.page.screen.model import ScreenAnswers

_STATES = {admin.DIAGNOSIS_VERDICT_NOTHING_WRONG: "ok", admin.DIAGNOSIS_VERDICT_CAUSES: "causes"}
_MAX_CAUSES = 8
_MAX_PARTS = 8


def diagnose_request(since: float | None) -> admin.DiagnoseRequest:
    """Return what is asked; *since*: seconds that it is about, None for those of ``agentctl diagnose``."""
    request = admin.DiagnoseRequest()
    if since is not None:
        request.since.FromMicroseconds(round(since * 1e6))
    return request


def diagnose_command(since: float | None) -> str:
    """Return the line of agentctl that asks the same."""
    return command("diagnose", *([] if since is None else ["--since", f"{since:g}s"]))


def verdict(answers: ScreenAnswers) -> ShownVerdict:
    """Return the verdict; unknown before the first diagnosis."""
    asked = diagnose_command(answers.since)
    found = answers.diagnosis
    if found is None:
        return ShownVerdict("unknown", answers.trouble or "the first diagnosis is being computed", asked, 0.0)
    return ShownVerdict(
        state=_STATES.get(found.verdict, "unknown"),
        sentence=_line(found.sentence),
        command=asked,
        computed=answers.diagnosed * 1e3,
        causes=tuple(
            shown_cause(each, found.at.ToNanoseconds() / 1e9) for each in found.causes[:_MAX_CAUSES]
        ),
        looked=tuple(map(_line, found.looked_at[:_MAX_PARTS])),
        missing=tuple(map(_line, found.missing[:_MAX_PARTS])),
        left_out=len(found.causes[_MAX_CAUSES:]),
    )


def shown_cause(item: admin.DiagnosedCause, now: float) -> ShownCause:
    """Return a cause as the page shows it; *now* is the moment of the diagnosis."""
    return ShownCause(
        kind=plain(item.kind),
        sentence=_line(item.sentence),
        confidence=confidence_words(item),
        engines=tuple(plain(text.engine(key)) for key in item.engines[:_MAX_PARTS]),
        peer=plain(item.peer),
        evidence=tuple(_evidence(item, now)),
        alternatives=tuple(map(_line, item.alternatives[:_MAX_PARTS])),
        commands=tuple(map(_line, item.commands[:_MAX_PARTS])),
    )


def _evidence(item: admin.DiagnosedCause, now: float) -> Iterator[CauseEvidence]:
    """Yield since when it lasts, its evidence and what it brings about."""
    since = since_words(item, now)
    if since:
        yield CauseEvidence(since, "")
    for each in item.evidence[:_MAX_PARTS]:
        yield CauseEvidence(_line(each.fact), _line(each.before))
    for effect in item.effects[:_MAX_PARTS]:
        yield CauseEvidence(_line(f"its effect: {effect.sentence}"), "")


def _line(words: str) -> str:
    return plain(text.folded(words), 600)
