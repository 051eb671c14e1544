"""Handshakes that fail for real: no listener, a silent one, an incompatible engine, garbage."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.steps import until
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.kv.peers import garbled, impostor, stopped, with_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.proto.v1.events_pb2 import TransferFailure

    from tests.support.kv.bench import Bench, Prefilled
    from tests.support.kv.peers import Spare

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("unread"),
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]


def _fails(kv: Bench, request: Prefilled, *error_types: c.ErrorType) -> TransferFailure:
    """Send a request whose handshake must fail in one of these ways: it is recomputed, rightly, and told once everywhere."""
    kv.enforce(kvLoadFailure={"action": "recompute"})

    answer = kv.decode(request)

    assert answer.completion == request.text
    failure, outcome = kv.failure(request), kv.outcome(request)
    assert failure.mode == c.FAILURE_MODE_HANDSHAKE
    assert failure.error_type in error_types
    assert (failure.peer.address, failure.peer.engine_id) == (request.peer, request.engine_id)
    assert failure.error_class
    assert failure.error_text
    assert failure.blocks > 0
    assert failure.bytes > 0
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
    assert (outcome.mode, outcome.error_type) == (failure.mode, failure.error_type)
    assert outcome.tokens_recomputed == answer.body["usage"]["prompt_tokens"]
    labels = {"mode": "handshake", "peer": request.peer, "rehearsal": "false"}
    kv.wait_value(1, "penstock_load_outcomes_total", outcome="recomputed", **labels)
    kv.wait_value(outcome.tokens_recomputed, "penstock_recomputed_tokens_total", **labels)
    until(lambda: kv.value("penstock_transfer_failures_total", **labels) >= 1, "The failure is not counted")
    load = kv.span(request, "kv.load")
    assert load.status == "error"
    assert load.attributes["penstock.peer"] == request.peer
    return failure


def test_a_closed_port_is_refused(kv: Bench) -> None:
    """A port without a listener: refused, although ZeroMQ itself only sees a timeout.

    A machine that has no time for the engine's own attempt (``connection_refused``, half a second) leaves it a timeout.
    """

    def refused() -> bool:
        failure = _fails(kv, kv.misled(), c.ERROR_TYPE_REFUSED, c.ERROR_TYPE_TIMEOUT)
        return failure.error_type == c.ERROR_TYPE_REFUSED

    until(refused, "No closed port is reported as refused")


@pytest.mark.long
def test_a_stopped_peer_times_out(kv: Bench, spare: Spare) -> None:
    """SIGSTOP: the kernel accepts the connection, the process does not answer."""
    server = spare.server()
    request = kv.misled(port=server.side_channel_port)
    with stopped(server):
        _fails(kv, request, c.ERROR_TYPE_TIMEOUT)


def test_another_compatibility_hash_is_incompatible(kv: Bench) -> None:
    """An engine of another build: both hashes are in the event, and differ."""
    with impostor(kv.stack.prefill, with_hash("0" * 64)) as other:
        failure = _fails(kv, kv.misled(port=other.port), c.ERROR_TYPE_INCOMPATIBLE)

    assert failure.incompatibility.remote_hash == "0" * 64
    assert failure.incompatibility.local_hash not in {"", "0" * 64}
    shown = {"hash": failure.incompatibility.local_hash, "factor": "dtype", "value": "torch.float32"}
    kv.wait_value(1, "penstock_engine_compatibility_info", **shown)


@pytest.mark.parametrize("change", [garbled], ids=["garbled"])
def test_an_answer_that_is_none_cannot_be_decoded(kv: Bench, change: Callable[[bytes], bytes]) -> None:
    """Whatever listens there is no vLLM."""
    with impostor(kv.stack.prefill, change) as other:
        _fails(kv, kv.misled(port=other.port), c.ERROR_TYPE_DECODE)


def test_without_a_policy_it_is_vllms_own_answer(kv: Bench) -> None:
    """Decode is set to `fail`: a bare 500, and still the reason is recorded."""
    with impostor(kv.stack.prefill, garbled) as other:
        request = kv.misled(port=other.port)
        answer = kv.decode(request)

    assert answer.status == 500
    assert "retried" not in answer.text
    assert kv.failure(request).error_type == c.ERROR_TYPE_DECODE
    outcome = kv.outcome(request)
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_FAILED, c.DECIDED_BY_VLLM)
    assert kv.span(request, "penstock.request").status == "error"


def test_fail_by_policy_is_an_error_that_can_be_retried(kv: Bench) -> None:
    """Set by agentctl, where vLLM's own setting is the same: the client's error names mode, peer and policy."""
    kv.ctl(
        *("set-policy", kv.policy, "--selector", kv.selector, "--kv-load-failure", "fail"),
        *("--reason", "tests", "--wait"),
    )
    with impostor(kv.stack.prefill, garbled) as other:
        request = kv.misled(port=other.port)
        answer = kv.decode(request)

    assert answer.status == 503
    message = answer.body["error"]["message"]
    expected = (
        "KV load failure",
        "mode handshake",
        request.peer,
        "kvLoadFailure.action: fail",
        "can be retried",
    )
    assert all(part in message for part in expected), message
    outcome = kv.outcome(request)
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_FAILED, c.DECIDED_BY_POLICY)
    assert (outcome.mode, outcome.error_type) == (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_DECODE)
    assert kv.span(request, "penstock.request").status == "error"


def test_a_following_request_that_shares_the_prefix_is_right(kv: Bench) -> None:
    """What the failed load left behind in the prefix cache is not poison."""
    kv.enforce(kvLoadFailure={"action": "recompute"})
    with impostor(kv.stack.prefill, garbled) as other:
        first = kv.misled(6, port=other.port)
        assert kv.decode(first).completion == first.text

    follower = kv.prefilled(prompt=f"{first.prompt} and so on {uuid.uuid4().hex}")

    assert kv.decode(follower).completion == follower.text
