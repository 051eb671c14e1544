"""The sentence of a diagnosis among the findings. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.ctl.diagnosis.findings import NOTE, OK, Finding
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator

_SUBJECT = "transfers"


def check_diagnosis(diagnosis: admin.Diagnosis | None) -> Iterator[Finding]:
    """Yield what *diagnosis* says: a note, as the findings beside it say which engine or agent needs a repair.

    None of an agent that makes none.
    """
    if diagnosis is None:
        return
    if diagnosis.verdict == admin.DIAGNOSIS_VERDICT_CAUSES:
        yield Finding(NOTE, _SUBJECT, diagnosis.sentence, "agentctl diagnose has the evidence")
    elif diagnosis.verdict == admin.DIAGNOSIS_VERDICT_NOTHING_WRONG:
        yield Finding(OK, _SUBJECT, diagnosis.sentence)
    else:
        yield Finding(NOTE, _SUBJECT, diagnosis.sentence, "agentctl diagnose says what is missing")
