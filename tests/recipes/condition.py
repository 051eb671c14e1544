"""A condition that the judge finds: an engine whose scheduler is not vLLM's."""

from __future__ import annotations

import os

from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.agent.diagnosis import Confidence, VerdictKind

from tests.recipes.edits import Edit, Recipe
from tests.support.agent.agent import running_agent
from tests.support.agent.diagnosed import DECODE, calm, engine, verdict_of
from tests.support.samples.stand_in_engine import StandInEngine

_KIND = "foreign_scheduler"
_CLASS = "acme.sched.Scheduler"
_SENTENCE = (
    f"runs the scheduler {_CLASS}, which is not vLLM's: what it does beside vLLM's own is not recorded"
)
_RULES = "agent/penstock/agent/diagnosis/rules/engines.py"
_RULE = f"""def _schedulers(facts: Facts) -> Iterator[FoundCause]:
    for each in facts.engines:
        name = each.facts.scheduler_class
        if not name or name.startswith("vllm."):
            continue
        key = words.key_of(each.key)
        yield FoundCause(
            "{_KIND}",
            f"engine {{key}} runs the scheduler {{words.cut(name)}}, which is not vLLM's: what it does beside vLLM's own "
            "is not recorded",
            (key,),
            (Evidence(f"engine {{key}} reports scheduler_class {{words.cut(name)}}"),),
            other_harm=_TELEMETRY_SECONDS,
            confidence=Confidence.CERTAIN,
            alternatives=("it only extends vLLM's, and all is recorded",),
            commands=(f"agentctl describe engine {{key}}",),
        )


"""
_TEST = f'''

@pytest.mark.parametrize(
    ("name", "kinds"), [("{_CLASS}", ["{_KIND}"]), ("vllm.v1.core.sched.scheduler.Scheduler", []), ("", [])]
)
def test_a_scheduler_that_is_not_vllms(name: str, kinds: list[str]) -> None:
    """Its class says so."""
    verdict = verdict_of(calm(), engines=[engine(facts={{"scheduler_class": name}})])
    assert [cause.kind for cause in verdict.causes] == kinds
'''
RECIPE = Recipe(
    "How to add a condition",
    (
        Edit(_RULES, "    yield from _clocks(facts)\n", after="    yield from _schedulers(facts)\n"),
        Edit(_RULES, "def _clocks(", before=_RULE),
        Edit("tests/agent/diagnosis/rules/test_rules.py", "", after=_TEST),
        Edit(
            "docs/guides/runbook.md",
            "| `entries_lost`, `clock_offset` | ",
            before=f"| `{_KIND}` | an engine's scheduler is not vLLM's | what does it do that vLLM's does not? |\n",
        ),
    ),
    checks=(
        "tests/agent/diagnosis/rules/test_rules.py",
        "tests/docs/test_field_incidents.py::test_each_kind_of_the_rules_is_in_the_runbook",
        "tests/docs/test_field_incidents.py::test_each_kind_has_a_test_of_its_rule",
    ),
)


def prove() -> None:
    """Judge facts that have it, by the judge's face; and let ``diagnose`` print it of a running engine."""
    verdict = verdict_of(calm(), engines=[engine(facts={"scheduler_class": _CLASS})])
    (cause,) = verdict.causes
    assert (verdict.answer, cause.kind, cause.engines) == (VerdictKind.CAUSES, _KIND, (DECODE,))
    assert cause.sentence == f"engine {DECODE} {_SENTENCE}", cause.sentence
    assert (cause.confidence, cause.harm) == (Confidence.CERTAIN, 1.0), cause
    with running_agent() as agent:
        stand_in = StandInEngine({"PENSTOCK_ENDPOINT": agent.listen}, scheduler_class=_CLASS).start()
        stand_in.emit("request_closed", "r-1", finish_reason="stop")
        stand_in.settle()
        os.environ["AGENTCTL_ADDRESS"] = agent.admin
        shown = CliRunner().invoke(cli, ["diagnose"], catch_exceptions=False)
        stand_in.stop()
    assert shown.exit_code == 1, shown.output
    assert f"1. engine 0 {_SENTENCE} ({_KIND}, certain)" in " ".join(shown.output.split()), shown.output


if __name__ == "__main__":
    prove()
