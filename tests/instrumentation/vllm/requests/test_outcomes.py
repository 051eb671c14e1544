"""The fields of a load outcome, and its cause."""

from __future__ import annotations

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.kv.decider import KvFailureDecider
from penstock.instrumentation.vllm.messages.worker_report import LoadFailure
from penstock.instrumentation.vllm.naming.peers import Peer
from penstock.instrumentation.vllm.requests import outcomes
from penstock.instrumentation.vllm.requests.affected import Affected
from penstock.instrumentation.vllm.requests.record import RequestRecord
from penstock.rules.decisions import Outcome, Trigger

FAILURE = LoadFailure("r", c.FAILURE_MODE_SETUP, c.ERROR_TYPE_OTHER, Peer("p:1", "e"), 1)


def test_outcome_of_each_attempt() -> None:
    """An outcome names the attempt, the first failure of it and the peer; the next attempt starts without them."""
    record = RequestRecord("r", peer=Peer("p:1"))
    decider, affected = KvFailureDecider(own=Outcome.FAILED), Affected("r", 16, 32)
    record.begin_load(32)
    first = decider.decide(record, affected, lambda decision, _: decision)
    fields = outcomes.outcome_fields(
        affected,
        first.decision,
        outcomes.cause_of(record, affected),
        channel=c.CHANNEL_KV,
        attempt=record.present_attempt,
        peer=record.load_peer,
        connector="NixlConnector",
        policy_hash="h",
    )
    assert (fields["attempt"], fields["mode"], fields["peer"]["address"]) == (1, c.FAILURE_MODE_LOAD, "p:1")
    assert (fields["tokens_kept"], fields["tokens_recomputed"], fields["policy_hash"]) == (16, 32, "h")
    assert first.first
    assert not decider.decide(record, affected, lambda decision, _: decision).first
    record.failure = FAILURE
    assert outcomes.abandoned_cause(record) is None
    record.begin_load(32)
    assert record.failure is None
    record.failure = FAILURE
    cause = outcomes.abandoned_cause(record)
    assert cause is not None
    second = outcomes.abandoned_fields(record, cause, "NixlConnector")
    assert (second["attempt"], second["outcome"], second["mode"]) == (
        2,
        c.OUTCOME_ABORTED,
        c.FAILURE_MODE_SETUP,
    )


@pytest.mark.parametrize(
    ("affected", "failure", "expected"),
    [
        (Affected("r", 0, 1), FAILURE, (FAILURE.mode, FAILURE.error_type)),
        (Affected("r", 0, 1), None, (c.FAILURE_MODE_LOAD, c.ERROR_TYPE_OTHER)),
        (
            Affected("r", 0, 1, trigger=Trigger.DEADLINE),
            None,
            (c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT),
        ),
        (
            Affected("r", 0, 1, collateral=True),
            FAILURE,
            (c.FAILURE_MODE_COLLATERAL, c.ERROR_TYPE_OTHER),
        ),
    ],
)
def test_cause(affected: Affected, failure: LoadFailure | None, expected: tuple[int, int]) -> None:
    """What the workers said comes first, except for a request whose own load did not fail."""
    record = RequestRecord("r", failure=failure)
    cause = outcomes.cause_of(record, affected)
    assert (cause.mode, cause.error_type) == expected
