"""A field of a policy's section: losses so small that ``auto`` always recomputes them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.rules.decisions import Budgets, KvLoss, Outcome, decide_kv
from penstock.rules.recompute_budget import RecomputeBudget

from tests.recipes.edits import Edit, Recipe
from tests.support.agent.agent import running_agent
from tests.support.samples.stand_in_engine import StandInEngine

if TYPE_CHECKING:
    from click.testing import Result

_NAME = "free_recompute_tokens"
_PATH = "kvLoadFailure.freeRecomputeTokens"
_FLAG = "--kv-free-recompute-tokens"
_MEANING = "With auto, a request that lost no more tokens is recomputed, whatever the budget"
RECIPE = Recipe(
    "How to add a policy field",
    (
        Edit(
            "proto/penstock/proto/v1/policy.proto",
            "  // RECOMPUTE or FAIL.\n  FailureAction over_budget = 4;\n",
            after=f"  optional uint64 {_NAME} = 5;\n",
        ),
        Edit(
            "tests/proto/golden/contract.txt",
            "penstock.v1.KvLoadFailure.max_recompute_tokens = ",
            before=f"penstock.v1.KvLoadFailure.{_NAME} = 5 optional uint64\n",
        ),
        Edit(
            "agent/penstock/agent/policy/manifest/sections.py",
            "    max_recompute_tokens: _Tokens | None = Field(default=None, description=_TOKENS)\n",
            after=f"    {_NAME}: _Tokens | None = Field(default=None, description=_TOKENS)\n",
        ),
        Edit(
            "proto/penstock/rules/field_bounds.py",
            '    "kvLoadFailure.maxRecomputeTokens": TOKEN_BOUNDS,\n',
            after=f'    "{_PATH}": TOKEN_BOUNDS,\n',
        ),
        Edit(
            "proto/penstock/rules/policy.py",
            "    over_budget: Action | None = None\n",
            after=f"    {_NAME}: int | None = None\n",
        ),
        Edit(
            "proto/penstock/rules/decode.py",
            '        over_budget=_fallback(message.over_budget, f"{path}.overBudget"),\n',
            after=f'        {_NAME}=_number(message, "{_NAME}", path),\n',
        ),
        Edit(
            "proto/penstock/rules/decisions.py",
            "    largest = rule.max_recompute_tokens\n",
            before=f"    if rule.{_NAME} is not None and loss.tokens <= rule.{_NAME}:\n"
            f'        free = f"{{loss.tokens}} tokens lost, {{rule.{_NAME}}} are recomputed whatever the budget"\n'
            f'        return Verdict(Outcome.RECOMPUTED, decider, f"{{why}}{{free}}", "{_PATH}")\n',
        ),
        Edit(
            "agent/penstock/agent/ctl/commands/policies/fields.py",
            '    Field(\n        "--kv-recompute-budget",\n',
            before="    Field(\n"
            f'        "{_FLAG}",\n'
            f'        "{_PATH}",\n'
            "        click.INT,\n"
            f'        "{_MEANING}.",\n'
            '        "TOKENS",\n'
            "    ),\n",
        ),
        Edit(
            "agent/penstock/agent/admin/lookups/policy_impact.py",
            '            "kvLoadFailure.maxRecomputeTokens",\n',
            after=f'            "{_PATH}",\n',
        ),
        Edit(
            "scripts/crd.py",
            '    "kvLoadFailure.recomputeBudget": "How much an engine recomputes",\n',
            before=f'    "{_PATH}": "{_MEANING}",\n',
        ),
        Edit(
            "docs/guides/kv-load-failures.md",
            "| `--kv-recompute-budget` | ",
            before=f"| `{_FLAG}` | `{_PATH}` | a request that lost no more is recomputed, whatever the budget |\n",
        ),
    ),
    make=("proto", "schema", "crd"),
    checks=(
        "tests/proto/test_contract.py",
        "tests/agent/policy/test_policy_fields.py",
        "tests/agent/policy/manifest/test_json_schema.py::test_the_published_schema_is_current",
        "tests/deploy/crd/test_definition.py::test_the_file_is_current",
        "tests/deploy/crd/test_definition.py::test_kubectl_explains_each_field",
        "tests/docs/test_guides.py::test_each_field_of_a_policy_is_explained",
    ),
)


def _set(value: int, *more: str) -> Result:
    return CliRunner().invoke(
        cli, ["set-policy", "small", "--all", _FLAG, str(value), *more], catch_exceptions=False
    )


def prove() -> None:
    """Set it by its flag: the agent refuses it out of bounds, and else a running engine decides by it."""
    with running_agent() as agent:
        engine = StandInEngine({"PENSTOCK_ENDPOINT": agent.listen}).start()
        engine.settle()
        os.environ["AGENTCTL_ADDRESS"] = agent.admin
        refused = _set(-1)
        assert f"spec.{_PATH} is -1; use a whole number from 0 to 1000000000" in refused.stderr, (
            refused.stderr
        )
        idle = _set(100, "--dry-run")
        assert f"spec.{_PATH} has no effect while the action is vLLM's own" in idle.stderr, idle.stderr
        done = _set(100, "--kv-load-failure", "auto", "--kv-recompute-budget", "0", "--wait")
        assert done.exit_code == 0, done.output
        policy = engine.runtime.policy.current
        engine.stop()
    budgets = Budgets(RecomputeBudget(), RecomputeBudget())
    budgets.on_policy_change(policy)
    small, large = (
        decide_kv(KvLoss(tokens), vllm=Outcome.FAILED, policy=policy, observed=None, budgets=budgets)
        for tokens in (100, 101)
    )
    assert (small.outcome, small.field) == (Outcome.RECOMPUTED, _PATH), small
    assert small.policy == "policy small, generation 1", small
    assert large.outcome is Outcome.FAILED, large


if __name__ == "__main__":
    prove()
