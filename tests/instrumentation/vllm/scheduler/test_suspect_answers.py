"""Answers that may be wrong, of vLLM's own schedulers: NaNs that vLLM counts, and failed loads that nobody acts upon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.messages.worker_report import LoadFailure, WorkerReport
from penstock.instrumentation.vllm.naming import Peer

from tests.support.engine.schedulers import PEER, REMOTE, request, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

BOTH = pytest.mark.parametrize("kind", ["sync", "async"])


def run(scheduler: Any, nans: dict[str, int] | None = None) -> None:
    """Step until no request is left."""
    for _ in range(10):
        if not scheduler.requests:
            return
        step(scheduler, nans)
    raise AssertionError("the requests do not end")


def failure(request_id: str, *, rehearsal: bool = False) -> WorkerReport:
    """Return the report of a rank whose read of a request failed."""
    failed = LoadFailure(
        request_id, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_REMOTE_RESET, Peer(PEER), 0, rehearsal=rehearsal
    )
    return WorkerReport(failures=(failed,))


@BOTH
def test_nans_are_counted_by_request(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """The sum over the steps travels with the end of its request, and makes its answer suspect; 0 is not "not known"."""
    scheduler = make_scheduler(kind)
    scheduler.add_request(request("bad", max_tokens=3))
    scheduler.add_request(request("good", first=2, max_tokens=3))
    run(scheduler, {"bad": 5, "good": 0, "gone": 1})
    (bad,), (good,) = recorder.take("request_closed", "bad"), recorder.take("request_closed", "good")
    assert bad.nans_in_logits % 5 == 0
    assert bad.nans_in_logits >= 5
    assert good.HasField("nans_in_logits")
    assert good.nans_in_logits == 0
    (suspected,) = recorder.take("answer_suspected")
    assert recorder.take("answer_suspected", "bad") == [suspected]
    assert suspected.reason == c.SUSPECT_REASON_NAN
    assert suspected.nans_in_logits == bad.nans_in_logits
    kinds = [event.WhichOneof("body") for event in recorder.events if event.request_id == "bad"]
    assert kinds.index("answer_suspected") < kinds.index("request_closed")


@BOTH
def test_without_a_count_nothing_is_known(
    kind: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Without VLLM_COMPUTE_NANS_IN_LOGITS the field is absent, and so it is while Penstock is paused."""
    scheduler = make_scheduler(kind)
    scheduler.add_request(request("r"))
    run(scheduler)
    assert not recorder.take("request_closed", "r")[0].HasField("nans_in_logits")
    scheduler.add_request(request("paused"))
    runtime.active = False
    step(scheduler, {"paused": 7})
    runtime.active = True
    run(scheduler)
    assert not recorder.take("answer_suspected")


@BOTH
@pytest.mark.parametrize("rehearsal", [False, True], ids=["real", "drill"])
def test_a_failed_read_without_a_consequence(
    kind: str, rehearsal: bool, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A rank reports a failure, vLLM hears of none, and the request goes on: its answer is suspect."""
    scheduler = make_scheduler(kind)
    scheduler.add_request(request("r", params=REMOTE))
    step(scheduler)
    step(
        scheduler,
        finished_recving={"r"},
        kv_connector_worker_meta=failure("r", rehearsal=rehearsal),
    )
    run(scheduler)
    (closed,) = recorder.take("request_closed", "r")
    assert closed.finish_reason == "length"
    (suspected,) = recorder.take("answer_suspected", "r")
    assert suspected.reason == c.SUSPECT_REASON_FAILED_READ
    assert (suspected.mode, suspected.error_type) == (c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_REMOTE_RESET)
    assert suspected.peer.address == PEER
    assert suspected.remote_request_id == REMOTE["remote_request_id"]
    assert [each.rehearsal for each in recorder.events if each.HasField("answer_suspected")] == [rehearsal]


@BOTH
@pytest.mark.parametrize("own", ["recompute", "fail"])
def test_a_failed_read_that_vllm_acts_upon(
    kind: str, own: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A request that was recomputed, or failed, has no suspect answer."""
    scheduler = make_scheduler(kind, own=own)
    scheduler.add_request(request("r", params=REMOTE))
    step(scheduler)
    blocks = set(scheduler.kv_cache_manager.get_block_ids("r")[0])
    step(
        scheduler,
        finished_recving={"r"},
        failed_recving={"r"},
        invalid_block_ids=blocks,
        kv_connector_worker_meta=failure("r"),
    )
    run(scheduler)
    assert recorder.take("request_closed", "r")
    assert not recorder.take("answer_suspected")
