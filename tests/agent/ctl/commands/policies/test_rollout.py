"""agentctl rollout, against the real admin service and its leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1.common_pb2 import OUTCOME_FAILED
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.stories import closed, outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result
    from penstock.agent.model import EngineKey, Source

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

ENGINES = 24
_PREPARE = ("set-policy", "p", "--kv-load-failure", "fail", "-l", "role=decode", "--rollout-percent", "0")
_START = ("rollout", "start", "p", "--steps", "20,50,100", "--hold", "10m", "--abort-if", "failed>2x")


@pytest.fixture
def sources(harness: AdminHarness) -> list[Source]:
    """Connect engines of as many pods."""
    found = []
    for number in range(ENGINES):
        labels = {"role": "decode", "POD_NAME": f"decode-{number}"}
        found.append(harness.source(str(number), labels=labels))
        harness.engine(str(number), POD_NAME=f"decode-{number}")
    return found


def _serve(harness: AdminHarness, source: Source, *, failing: int, requests: int = 300) -> None:
    """Let an engine end requests, some of which failed with their load."""
    events = [closed(f"r{number}") for number in range(requests)]
    events += [outcome(f"r{number}", OUTCOME_FAILED) for number in range(failing)]
    harness.append(source, *events, batch=Batch())


def _with_policy(harness: AdminHarness, sources: list[Source]) -> set[EngineKey]:
    return {source.key for source in sources if harness.feed.wanted(source.key)}


def test_a_bad_policy_aborts_itself(harness: AdminHarness, agentctl: Agentctl, sources: list[Source]) -> None:
    """In status, history and audit; the engines outside its first step never have it."""
    had: set[EngineKey] = set()
    harness.store.subscribe(lambda: had.update(_with_policy(harness, sources)))
    assert agentctl(*_PREPARE).exit_code == 0
    started = agentctl(*_START, "--reason", "INC-9")
    assert started.exit_code == 0, started.stderr
    first = _with_policy(harness, sources)
    assert 3 <= len(first) < ENGINES / 2
    assert started.stdout == f"rollout of p progressing, 20 %: {len(first)} of {ENGINES} engines here\n"
    for source in sources:
        _serve(harness, source, failing=150 if source.key in first else 3)
    harness.lead()
    status = agentctl("rollout", "status", "p")
    assert "aborted" in status.stdout
    assert "failed>2x: 50 % of requests failed in" in status.stdout
    assert "worse: failed>2x: 50 % of requests failed" in status.stderr
    assert _with_policy(harness, sources) == set()
    assert had == first
    history = agentctl("rollout", "history", "p").stdout.splitlines()
    assert next(line.split()[1:3] for line in history[1:]) == ["rollout", "aborted"]
    assert "INC-9" in history[-1]
    audit = agentctl("get", "audit", "p").stdout
    assert "aborted at 20 %: failed>2x" in audit
    again = agentctl("rollout", "promote", "p")
    assert (again.exit_code, "'agentctl rollout start' begins another" in again.stderr) == (1, True)


def test_a_person_pauses_promotes_and_aborts(
    harness: AdminHarness, agentctl: Agentctl, sources: list[Source]
) -> None:
    """Each order says where the policy is."""
    agentctl(*_PREPARE)
    agentctl(*_START)
    assert agentctl("rollout", "pause", "p").stdout.startswith("rollout of p paused, 20 %: ")
    assert agentctl("rollout", "resume", "p").stdout.startswith("rollout of p progressing, 20 %: ")
    promoted = agentctl("rollout", "promote", "p", "--reason", "looks good")
    assert promoted.stdout == f"rollout of p promoted, 100 %: {ENGINES} of {ENGINES} engines here\n"
    assert len(_with_policy(harness, sources)) == ENGINES
    assert "promoted by " in agentctl("rollout", "status").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("status",), 0, "no rollouts; 'agentctl rollout start NAME' begins one"),
        (("status", "x"), 1, "policy 'x' has no rollout"),
        (("start", "x"), 1, "policy 'x' does not exist"),
        (("abort", "p"), 1, "policy 'p' has no roll-out"),
        (("start", "p", "--steps", "5,x"), 2, "write ascending percents such as 5,25,100"),
        (("start", "p", "--steps", "5,25"), 2, "the last one must be 100"),
        (("start", "p", "--abort-if", "slow>2x"), 2, "write failed>2x, deferred>1.5x or recomputed>2x"),
        (("history", "p"), 0, "policy p has had no rollout"),
    ],
)
def test_mistakes_have_a_sentence(
    harness: AdminHarness, agentctl: Agentctl, arguments: tuple[str, ...], code: int, text: str
) -> None:
    """With what to write instead."""
    agentctl(*_PREPARE)
    result = agentctl("rollout", *arguments)
    assert result.exit_code == code
    assert text in result.stderr
