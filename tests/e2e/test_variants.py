"""Production's defaults, which a CPU overrules: AsyncScheduler with fork and two ranks; one process for both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.common.steps import until
from demo.steps import bad_request, good_request, set_policy
from tests.support.engine.pairs import ASYNC_FORK_TP2, UNI
from tests.support.engine.stacks import forget_policy, named

if TYPE_CHECKING:
    from demo.stack import Stack

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize(
        "stack",
        [ASYNC_FORK_TP2, pytest.param(UNI, marks=pytest.mark.long)],
        indirect=True,
        ids=["async-fork-tp2", "uni"],
    ),
]


def _processes(stack: Stack) -> int:
    """Return how many processes the engine has; the API process, which shows with its first request, left out."""
    (engine,) = stack.agent.ctl_json("get", "engines", "--selector", "role=decode")["engines"]
    return sum(source["hello"]["process"] != "api" for source in engine["sources"])


def test_the_variant_is_what_it_says(stack: Stack) -> None:
    """AsyncScheduler decides, and scheduler and worker are processes of their own or one."""
    facts = stack.agent.metrics().select("penstock_engine_info", server="decode")[0].labels

    assert facts["scheduler_class"].endswith("AsyncScheduler")
    ranks = int(facts["tensor_parallel_size"])
    # The engine's own process, and one for each rank that is not in it.
    expected = 1 if ranks == 1 else 1 + ranks
    until(lambda: _processes(stack) == expected, f"The engine has not {expected} processes")


def test_a_transfer_is_counted_for_each_rank(stack: Stack) -> None:
    """One trace of both servers; as many transfers as ranks."""
    good = good_request(stack)

    assert good.same_text
    (load,) = named(good.spans, "kv.load")
    (prefill,) = named(good.spans, "penstock.request", "vllm-prefill")
    assert prefill.span_id in load.links


@pytest.mark.long
def test_a_failure_has_one_outcome_and_a_policy_changes_it(stack: Stack) -> None:
    """Whatever the ranks report, a request ends once: failed by vLLM, then recomputed by policy."""
    forget_policy(stack)
    failed = bad_request(stack)
    set_policy(stack, "recompute")
    recomputed = bad_request(stack)

    assert failed.answer.status >= 500
    assert recomputed.answer.status == 200
    for bad, outcome in ((failed, "failed"), (recomputed, "recomputed")):
        counted = [s for s in bad.metrics if s.name == "penstock_load_outcomes_total"]
        assert [(s.labels["outcome"], s.value) for s in counted] == [(outcome, 1)]
    assert int(recomputed.outcome["tokensRecomputed"]) == recomputed.answer.body["usage"]["prompt_tokens"]
