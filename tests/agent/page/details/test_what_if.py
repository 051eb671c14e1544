"""What a dry run says of the last hour: in sentences, never for long, and never in the way of the rest."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from penstock.agent.page.details import what_if as module
from penstock.agent.page.details.what_if import in_words, what_if
from penstock.agent.page.wire import AnswerError
from penstock.proto.v1 import admin_pb2 as admin

_CHANGE = admin.ApplyPolicyResponse(name="late", engines=[{"key": {"engine": "gone"}}])


def _engine(name: str, was: dict[str, Any], would: dict[str, Any], *policies: str) -> admin.WhatIfEngine:
    return admin.WhatIfEngine(key={"engine": name}, was=was, would=would, policies=policies)


class _Calls:
    """Answers one question."""

    coverage = None

    def __init__(self, answer: admin.WhatIfResponse | AnswerError | None) -> None:
        self._answer = answer
        self.asked: list[admin.WhatIfRequest] = []
        self.ended = False

    async def call(self, method: str, request: admin.WhatIfRequest, _seconds: float) -> admin.WhatIfResponse:
        assert method == "WhatIf"
        self.asked.append(request)
        if isinstance(self._answer, AnswerError):
            raise self._answer
        if self._answer is None:
            try:
                await asyncio.Event().wait()
            finally:
                self.ended = True
        assert self._answer is not None
        return self._answer


def test_all_engines_of_the_policy_are_counted() -> None:
    """Those that have it, and those that it takes leave of; not those that have nothing to do with it."""
    answer = admin.WhatIfResponse(
        engines=[
            _engine(
                "0",
                {"loads": 20, "failed": 12, "recomputed": 3, "waited": {"seconds": 30}},
                {"recomputed": 15, "waited": {"seconds": 12}},
                "late",
            ),
            _engine(
                "gone",
                {"loads": 2, "waited": {"seconds": 10}},
                {"loads": 2, "waited": {"seconds": 10}},
                "other",
            ),
            _engine("stranger", {"loads": 99, "failed": 99}, {"loads": 99}, "other"),
        ]
    )
    found = in_words(answer, _CHANGE)
    assert found.sentences == (
        "Of the 22 remote loads of the last hour: failed 12 → 0, recomputed 3 → 15, waited 40s → 22s.",
    )
    (table,) = found.sections
    assert table.kind == "table"
    assert [row.cells for row in table.rows] == [  # type: ignore[union-attr]
        ("0", "20", "12 → 0", "3 → 15", "30s → 12s"),
        ("gone", "2", "0", "0", "10s"),
    ]


def test_nothing_different_is_said_so() -> None:
    """With what there was."""
    same = {"loads": 1, "failed": 1}
    answer = admin.WhatIfResponse(engines=[_engine("0", same, same, "late")])
    assert in_words(answer, _CHANGE).sentences == (
        "Of the 1 remote load of the last hour none would have ended otherwise: failed 1, recomputed 0, waited 0s.",
    )


def test_what_is_not_known_is_said_plainly() -> None:
    """No loads, a log that is longer, batches that cannot be read, loads with an unknown end, agents that are away."""
    none = in_words(admin.WhatIfResponse(engines=[_engine("stranger", {"loads": 9}, {})]), _CHANGE)
    assert none == (
        (
            "What it would have changed is not known: no remote load of its engines is recorded in the last hour.",
        ),
        (),
    )
    answer = admin.WhatIfResponse(
        engines=[_engine("0", {"loads": 3, "failed": 3}, {"failed": 1, "unknown": 2}, "late")],
        entries=100_000,
        truncated=True,
        unreadable_batches=1,
    )
    assert in_words(answer, _CHANGE, "1 of 2 agents answered; not: b (away)").sentences[1:] == (
        "Of 2 of them it is not known what they would have become.",
        "The log is longer: only its newest 100000 entries were replayed.",
        "1 batch of the log cannot be read.",
        "Agents: 1 of 2 agents answered; not: b (away).",
    )


@pytest.mark.parametrize(("mode", "words"), [("observe", 2), ("enforce", 1)])
def test_a_policy_that_observes_is_replayed_as_enforced(mode: str, words: int) -> None:
    """And says so."""
    calls: Any = _Calls(admin.WhatIfResponse(engines=[_engine("0", {"loads": 1}, {"loads": 1}, "late")]))
    found = asyncio.run(what_if(calls, json.dumps({"spec": {"mode": mode}}), _CHANGE))
    assert len(found.sentences) == words
    assert found.sentences[-1].endswith("mode enforce.") == (mode == "observe")


def test_an_error_is_a_sentence() -> None:
    """The dry run itself goes on."""
    calls: Any = _Calls(AnswerError(503, "the journal cannot be read"))
    found = asyncio.run(what_if(calls, "{}", _CHANGE))
    assert found.sentences == ("what it would have changed is not known: the journal cannot be read",)
    (request,) = calls.asked
    assert (list(request.manifests_json), request.since.seconds, request.only) == (["{}"], 3600, False)


def test_a_replay_that_takes_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told to end, and not waited for."""
    monkeypatch.setattr(module, "_SECONDS", 0.01)
    calls: Any = _Calls(None)
    found = asyncio.run(what_if(calls, "{}", _CHANGE))
    assert found.sentences == (
        "what it would have changed is not known: the replay of the last hour takes longer than 0.01 s",
    )
    assert calls.ended
