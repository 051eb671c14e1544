"""The scheduler's side on vLLM's own schedulers: which digest a request hands on when its prefill ends more than once."""

from __future__ import annotations

import struct
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import guard
from penstock.instrumentation.vllm.compat import preempt_dropping
from penstock.instrumentation.vllm.kv.integrity import KEY, decode_digest
from penstock.instrumentation.vllm.messages import RankDigest, TransferDigest, VerifyOrder
from penstock.instrumentation.vllm.messages.worker_report import WorkerReport

from tests.support.engine.schedulers import BLOCK, LOCAL, REMOTE, request

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeScheduler = Callable[..., Any]


def _verifier(scheduler: Any, ratio: float = 1.0) -> Any:
    verifier = scheduler._penstock.loads.verifier
    verifier._rule = SimpleNamespace(enforce=True, samples=lambda _: bool(ratio))
    return verifier


def _digest(order: Any, value: int) -> RankDigest:
    """Return what a rank with both heads reports for an order of one group."""
    count = 2 * len(order.groups[0].blocks)
    return RankDigest(
        order.request_id, BLOCK, 2, (0, 1), (struct.pack("<q", value) * count,), number=order.number
    )


def _ordered(scheduler: Any) -> Any:
    (order,) = scheduler.schedule().kv_connector_metadata.penstock_digest
    return order


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_prefill_that_ends_again_is_digested_again(kind: str, make_scheduler: MakeScheduler) -> None:
    """After a preemption the first digest is dropped, even if it is reported late; the second one is sent."""
    scheduler = make_scheduler(kind, role="kv_producer")
    verifier = _verifier(scheduler)
    scheduler.add_request(request("r", params=LOCAL, max_tokens=1))
    first = _ordered(scheduler)
    # As vLLM preempts what a connector has to deliver.
    preempt_dropping(scheduler, scheduler.running.pop(), time.monotonic())
    verifier.on_reports([WorkerReport(digests=(_digest(first, 1),))])
    params: dict[str, Any] = {"do_remote_prefill": True}
    verifier.add_digest("r", params)
    assert KEY not in params
    second = _ordered(scheduler)
    assert second.number != first.number
    verifier.on_reports([WorkerReport(digests=(_digest(first, 1), _digest(second, 2)))])
    verifier.add_digest("r", params)
    sent = decode_digest(params[KEY])
    assert isinstance(sent, TransferDigest)
    assert set(struct.unpack("<6q", sent.groups[0].digests)) == {2}


def test_a_rewound_prefill_loses_its_digest(make_scheduler: MakeScheduler) -> None:
    """What is computed again, of whatever cause, has no digest until its prefill has ended again."""
    scheduler = make_scheduler(role="kv_producer")
    verifier = _verifier(scheduler)
    scheduler.add_request(request("r", params=LOCAL, max_tokens=1))
    first = _ordered(scheduler)
    verifier.on_reports([WorkerReport(digests=(_digest(first, 1),))])
    scheduler.requests["r"].num_computed_tokens = BLOCK
    output = SimpleNamespace(num_scheduled_tokens={"r": BLOCK})
    assert verifier._digest_orders(output) == ()
    params = {"do_remote_prefill": True}
    verifier.add_digest("r", params)
    assert KEY not in params


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_the_receiver_compares_what_its_own_sample_selects(
    ratio: float, make_scheduler: MakeScheduler
) -> None:
    """A digest that a client puts into the parameters does not choose for it."""
    scheduler = make_scheduler(role="kv_consumer")
    verifier = _verifier(scheduler, ratio)
    verifier.on_request_added(request("r", params={**REMOTE, KEY: {"v": 1, "problem": "x"}}))
    assert len(verifier._to_verify) == int(ratio)


def test_a_request_that_cannot_be_digested_costs_no_other_its_order(
    make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a load its comparison."""
    monkeypatch.setattr(guard, "raising", False)
    scheduler = make_scheduler(role="kv_producer")
    verifier = _verifier(scheduler)
    verifier._to_digest |= {"unknown", "known"}
    scheduler.requests["known"] = SimpleNamespace(num_computed_tokens=0, num_prompt_tokens=9)
    verifier._starting["load"] = TransferDigest(BLOCK, 2, ())
    monkeypatch.setattr(verifier, "_offer", lambda _: SimpleNamespace(orders=(), number=7))
    metadata = SimpleNamespace(reqs_to_recv={"load": None})
    verifier.attach(metadata, SimpleNamespace(num_scheduled_tokens={"unknown": 9, "known": 9}))
    assert [each.request_id for each in metadata.penstock_digest] == ["known"]
    assert metadata.penstock_verify == (VerifyOrder("load", TransferDigest(BLOCK, 2, ()), enforce=True),)
