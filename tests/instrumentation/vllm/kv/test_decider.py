"""The decision about a failed KV load."""

from __future__ import annotations

from penstock.instrumentation.vllm.kv.decider import KvFailureDecider
from penstock.instrumentation.vllm.requests.affected import Affected
from penstock.instrumentation.vllm.requests.record import RequestRecord
from penstock.rules.decisions import Outcome

from tests.support.engine.recorder import policy


def test_a_request_that_cannot_be_rewound_fails() -> None:
    """A request that waits with blocks of its own fails, whatever the policy says, and the reason says why."""
    decider = KvFailureDecider(own=Outcome.FAILED)
    decider.on_policy_change(policy("recompute"))
    settled = decider.decide(RequestRecord("r"), Affected("r", 0, 1, held=True), lambda decision, _: decision)
    assert settled.decision.outcome is Outcome.FAILED
    assert "cannot be rewound" in settled.decision.reason
