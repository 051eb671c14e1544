"""Verified transfers between engines: wrong blocks are found before they are used, good ones raise no alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.steps import until
from tests.support.engine.pairs import CPU_DEFAULTS, HYBRID, TP1_TO_TP2, TP2_TO_TP1

if TYPE_CHECKING:
    from penstock.proto.v1.events_pb2 import TransferFailure, Verification

    from tests.support.kv.bench import Bench, Prefilled

KEY = "penstock_digest"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize(
        "stack",
        [
            CPU_DEFAULTS,
            *(pytest.param(each, marks=pytest.mark.long) for each in (TP2_TO_TP1, TP1_TO_TP2, HYBRID)),
        ],
        indirect=True,
        ids=lambda each: each.name,
    ),
]


def _verify(kv: Bench, action: str) -> None:
    """Verify all requests on both engines."""
    kv.enforce(
        selector={}, integrity={"sampleRatio": 1.0, "action": action}, kvLoadFailure={"action": "recompute"}
    )
    until(lambda: KEY in kv.prefilled().params, "The prefill engine sends no digest")


def _stale(kv: Bench) -> Prefilled:
    """Compute two prompts and point the reader of the second to the blocks of the first, as a stale reference does."""
    other, request = kv.prefilled(6), kv.prefilled(6)
    blocks: Any = [
        theirs[: len(own)]
        for theirs, own in zip(
            other.params["remote_block_ids"], request.params["remote_block_ids"], strict=True
        )
    ]
    return request.redirected(remote_block_ids=blocks)


def _verification(kv: Bench, request: Prefilled) -> Verification:
    (found,) = kv.closed(request).request_closed.verifications
    assert found.channel == c.CHANNEL_KV
    assert found.peer.address == request.peer
    return found


def _failures(kv: Bench, request: Prefilled) -> list[TransferFailure]:
    """Return what the ranks have found wrong, each of its own KV heads."""
    kv.event("transfer_failure", request.name)
    kv.closed(request)
    return [event.transfer_failure for event in kv.events("transfer_failure", request.name)]


def _explained(kv: Bench, request: Prefilled, words: str) -> None:
    until(
        lambda: words in kv.ctl("explain", request.name),
        f"`explain` does not say {words!r} of {request.name}",
    )


def test_good_transfers_are_verified(kv: Bench) -> None:
    """Prompts of several lengths: each is compared to the last valid token, and none is a false alarm."""
    _verify(kv, "enforce")
    for times in (1, 2, 5, 9):
        request = kv.prefilled(times)
        assert kv.decode(request).completion == request.text
        found = _verification(kv, request)
        assert (found.ok, found.mismatch, found.unverified) == (1, 0, 0), found
        assert found.compared == found.transferred > 0
        assert not kv.events("transfer_failure", request.name)
        # The worker's part comes in a message of its own.
        _explained(kv, request, "(verified)")
    labels = {"channel": "kv", "result": "ok", "peer": request.peer}
    until(lambda: kv.value("penstock_verified_transfers_total", **labels) >= 4, "No transfer is verified")


def test_a_stale_reference_is_recomputed(kv: Bench) -> None:
    """The blocks of another prompt arrive without any error; under enforce the answer is right nevertheless."""
    _verify(kv, "enforce")
    request = _stale(kv)
    assert kv.decode(request).completion == request.text
    failures, outcome = _failures(kv, request), kv.outcome(request)
    assert {each.mode for each in failures} == {c.FAILURE_MODE_TRANSFER}
    assert {each.error_type for each in failures} == {c.ERROR_TYPE_CORRUPT}
    assert all(each.mismatched and not each.used for each in failures)
    assert failures[0].peer.address == request.peer
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
    assert _verification(kv, request).mismatch == 1
    assert "differ from the sender's digest" in kv.ctl("explain", request.name)
    labels = {"channel": "kv", "result": "mismatch"}
    until(lambda: kv.value("penstock_verified_transfers_total", **labels) >= 1, "No mismatch is counted")


def test_a_stale_reference_is_reported_only_under_observe(kv: Bench) -> None:
    """Nothing but the report differs: vLLM answers from the wrong blocks."""
    _verify(kv, "observe")
    request = _stale(kv)
    assert kv.decode(request).completion != request.text
    failures = _failures(kv, request)
    assert {(each.error_type, each.used) for each in failures} == {(c.ERROR_TYPE_CORRUPT, True)}
    assert not kv.events("load_outcome", request.name)
    assert _verification(kv, request).mismatch == 1


def test_without_a_policy_there_is_no_digest(kv: Bench) -> None:
    """The parameters are vLLM's own, and nothing is said about the request."""
    request = kv.prefilled()
    assert KEY not in request.params
    assert kv.decode(request).completion == request.text
    assert not kv.closed(request).request_closed.verifications


def test_a_digest_that_does_not_come_is_unverified(kv: Bench) -> None:
    """A router that drops the key, or a prefill engine without Penstock: the load is used, and not called verified."""
    _verify(kv, "enforce")
    request = kv.prefilled()
    lost = request.redirected()
    del lost.params[KEY]  # type: ignore[attr-defined]
    assert kv.decode(lost).completion == request.text
    found = _verification(kv, lost)
    assert (found.unverified, found.reason) == (1, "no digest came with the request")
