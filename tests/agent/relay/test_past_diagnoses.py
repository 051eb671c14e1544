"""A relay asked for a moment of the past: each agent answers from its own log, or says why it cannot."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack

from penstock.agent.relay import merged_answers
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.agent.agent import running_agent, short_directory
from tests.support.agent.batches import event, transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.relay import running_relay

AT = 1_750_000_000


def _answer(at: int, sentence: str = "the log shows nothing wrong in the last 10m") -> admin.Diagnosis:
    answer = admin.Diagnosis(verdict=admin.DIAGNOSIS_VERDICT_NOTHING_WRONG, sentence=sentence, engines=1)
    answer.at.FromSeconds(at)
    return answer


def test_who_answers_for_now_has_not_answered() -> None:
    """An agent that does not know the field is missing, and so is what only a comparison of agents tells."""
    request = admin.DiagnoseRequest()
    request.at.FromSeconds(AT)
    merged = merged_answers.past_diagnosis([("a", _answer(AT)), ("b", _answer(AT + 60))], request)
    assert (merged.verdict, merged.sentence, merged.at, merged.engines) == (
        admin.DIAGNOSIS_VERDICT_CANNOT_TELL,
        "I cannot tell: 1 of 2 agents gave no diagnosis",
        request.at,
        1,
    )
    assert "b: no diagnosis: its version answers for now only; upgrade it" in merged.missing
    assert any("engines of two agents" in each for each in merged.missing)


def test_all_agents_are_well_then() -> None:
    """The log says so; what has ended has ended by then."""
    request = admin.DiagnoseRequest()
    request.at.FromSeconds(AT)
    answers = [("a", _answer(AT)), ("b", _answer(AT))]
    assert (
        merged_answers.past_diagnosis(answers, request).sentence == "the log shows nothing wrong on 2 agents"
    )
    ended = answers[0][1].causes.add(kind="peer_refuses", sentence="it refused")
    ended.until.FromSeconds(AT - 60)
    merged = merged_answers.past_diagnosis(answers, request)
    assert merged.sentence == "the log shows nothing wrong then on 2 agents; 1 cause has ended"


def test_each_agent_answers_from_its_log() -> None:
    """One that saw trouble after the moment says nothing of it; the log of the other begins later."""
    with ExitStack() as parts:
        directory = parts.enter_context(short_directory())
        agents = {name: parts.enter_context(running_agent()) for name in ("first", "second")}
        first = parts.enter_context(FakeEngine(agents["first"].listen))
        first.publish(event("request_closed", "good", time_ns=time.time_ns(), finish_reason="stop"))
        moment = time.time_ns()
        later = time.time_ns()
        first.publish(*(transfer_failure(f"bad-{n}", time_ns=later) for n in range(3)))
        second = parts.enter_context(FakeEngine(agents["second"].listen))
        second.publish(event("request_closed", "good", time_ns=time.time_ns(), finish_reason="stop"))
        listed = ",".join(f"{name}={agent.admin}" for name, agent in agents.items())
        relay = parts.enter_context(running_relay(directory, f"--agents={listed}"))
        relay.wait_for(**dict.fromkeys(agents, "up"))

        request = admin.DiagnoseRequest()
        request.at.FromNanoseconds(moment)
        then = relay.call("Diagnose", request)
        assert (then.verdict, list(then.causes), then.at) == (
            admin.DIAGNOSIS_VERDICT_CANNOT_TELL,
            [],
            request.at,
        )
        (missing,) = (each for each in then.missing if each.startswith("second: no diagnosis: "))
        assert "and the log begins at" in missing
        now = relay.agentctl("diagnose", "--at", "0s", "-o", "json")
        assert (now.exit_code, json.loads(now.stdout)["causes"][0]["kind"]) == (1, "peer_refuses")
        assert relay.agentctl("diagnose", "--at", "8d").exit_code == 2
