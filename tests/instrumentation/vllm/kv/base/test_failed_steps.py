"""Steps that fail in an engine that goes on (``--enable-fault-tolerance``): what their workers told comes later, and counts once.

vLLM 0.33 ends all requests at the fault. The workers' connector outputs of the failed step join the next step's
(``KVOutputAggregator.ft_defer_kv_connector_outputs``); those of steps behind it come with an empty ``SchedulerOutput``
(``EngineCoreSentinel._drain_batch_queue``).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.rules import NO_POLICY

from tests.support.ec.fake_ec import LEFT
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, request
from tests.support.engine.versions import from_version
from tests.support.kv.fake_mover import answered, mover, run_step, work, worker

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

pytestmark = from_version(0, 33, "ends with a failed step")

RANKS = 2
STORED = 2 * BLOCK


class Engine:
    """A scheduler, the connectors of two ranks and vLLM's aggregator of their outputs."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.workers = [worker(scheduler.vllm_config, rank) for rank in range(RANKS)]
        self._aggregator = KVOutputAggregator(RANKS)

    def work(self) -> tuple[Any, Sequence[Any]]:
        """Schedule a step and let the ranks do it; its result is not in."""
        scheduled = self.scheduler.schedule()
        return scheduled, [
            answered(self.scheduler, scheduled, work(connector, scheduled)) for connector in self.workers
        ]

    def fail(self, outputs: Sequence[Any]) -> None:
        """Do what vLLM does with the outputs of a step in which a worker failed."""
        self._aggregator.ft_defer_kv_connector_outputs([each.kv_connector_output for each in outputs])

    def abort_all(self) -> None:
        """Do what vLLM does with the requests at a fault."""
        self.scheduler.finish_requests(None, LEFT)

    def update(self, scheduled: Any, outputs: Sequence[Any]) -> None:
        """Hand in the result of a step."""
        self.scheduler.update_from_output(scheduled, self._aggregator.aggregate(list(outputs)))

    def drain(self, outputs: Sequence[Any]) -> None:
        """Hand in the workers' outputs of a step that stood behind the failed one."""
        merged = self._aggregator.aggregate(list(outputs)).kv_connector_output
        assert not merged.is_empty()
        output = ModelRunnerOutput.with_kv_conn_output_only(merged)
        self.scheduler.update_from_output(SchedulerOutput.make_empty(), output)

    def break_block(self, request_id: str, index: int) -> None:
        """Let the first rank not load a block."""
        (blocks,) = self.scheduler.kv_cache_manager.get_block_ids(request_id)
        self.workers[0].script.broken = {blocks[index]}

    def cached(self, like: Any) -> int:
        """Return how many tokens of such a prompt the prefix cache has."""
        probe = request("probe", tokens=like.num_prompt_tokens, first=like.prompt_token_ids[0])
        return int(self.scheduler.kv_cache_manager.get_computed_blocks(probe)[1])


@pytest.fixture
def engine(make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Give an engine that goes on after a failed step, with a policy that recomputes."""
    monkeypatch.setattr(
        "penstock.instrumentation.vllm.scheduler.session.outlives_failures", lambda _config: True
    )
    runtime.policy.swap(policy("recompute"), 1.0)
    return Engine(make_scheduler(**mover(kv_role="kv_consumer")))


def load_and_break(engine: Engine) -> tuple[Any, Any, Sequence[Any]]:
    """Return a request whose load of a step leaves out its second block on one rank, that step, and the ranks' outputs."""
    loading = request("lost", tokens=STORED + 5, first=300, params={"stored": STORED})
    engine.scheduler.add_request(loading)
    scheduled = engine.scheduler.schedule()
    engine.break_block("lost", 1)
    outputs = [
        answered(engine.scheduler, scheduled, work(connector, scheduled)) for connector in engine.workers
    ]
    return loading, scheduled, outputs


def counted(recorder: Recorder) -> tuple[list[tuple[str, int]], list[tuple[str, int, int]]]:
    """Return the transfers (request, rank) and the failures (request, rank, blocks) told so far."""
    transfers = [(each["request_id"], each["rank"]) for each in recorder.transfers]
    failures = [
        (each.request_id, each.rank, each.transfer_failure.blocks)
        for each in recorder.events
        if each.WhichOneof("body") == "transfer_failure"
    ]
    return sorted(transfers), failures


@pytest.mark.parametrize("drained", [False, True], ids=["with the next step", "with an empty output"])
def test_counts_once(drained: bool, engine: Engine, recorder: Recorder) -> None:
    """Transfers and failures of the failed step are told once, nothing is decided about requests that are gone, no poison stays."""
    loading, scheduled, outputs = load_and_break(engine)
    if drained:
        engine.abort_all()
        del scheduled
        engine.drain(outputs)
    else:
        engine.fail(outputs)
        engine.abort_all()
        del scheduled
        assert engine.scheduler._penstock.loads.unconfirmed.steps
        engine.scheduler.add_request(request("next", first=400))
        engine.update(*engine.work())
    assert engine.cached(loading) == BLOCK
    for _ in range(3):
        run_step(engine.scheduler, engine.workers)
    # The request is gone: whose the missing block was is not known any more.
    assert counted(recorder) == ([("lost", 0), ("lost", 1)], [("", 0, 1)])
    assert not recorder.take("load_outcome")


def test_vanilla_keeps_the_poison(engine: Engine) -> None:
    """Without a policy the blocks that were not loaded stay in vLLM's prefix cache."""
    runtime.policy.swap(NO_POLICY, 2.0)
    loading, scheduled, outputs = load_and_break(engine)
    engine.fail(outputs)
    engine.abort_all()
    del scheduled
    engine.scheduler.add_request(request("next", first=400))
    engine.update(*engine.work())
    assert engine.cached(loading) == STORED


def test_nothing_is_kept_for_a_failed_step(engine: Engine, recorder: Recorder) -> None:
    """It awaits no result once the next one is in, and an engine with nothing to do is in no step."""
    _, scheduled, outputs = load_and_break(engine)
    unconfirmed = engine.scheduler._penstock.loads.unconfirmed
    assert len(unconfirmed.steps) == 1
    assert recorder.snapshot().progress.step_start_time_unix_nano
    engine.fail(outputs)
    engine.abort_all()
    del scheduled
    assert recorder.snapshot().progress.step_start_time_unix_nano == 0
    engine.scheduler.add_request(request("next", first=400))
    engine.update(*engine.work())
    assert not unconfirmed.steps


def test_two_reports_of_a_rank(engine: Engine, recorder: Recorder) -> None:
    """A load that the request waits for, of which two steps in a row miss a block, is one failure of two blocks."""
    waiting = request(
        "waiting", tokens=STORED + 5, first=300, params={"stored": STORED, "waits": True}, max_tokens=1
    )
    engine.scheduler.add_request(waiting)
    engine.update(*engine.work())
    engine.break_block("waiting", 0)
    engine.fail(engine.work()[1])
    engine.break_block("waiting", 1)
    for connector in engine.workers:
        connector.script.received = {"waiting"}
    engine.update(*engine.work())
    transfers, failures = counted(recorder)
    assert failures == [("waiting", 0, 2)]
    assert transfers == [("waiting", 0), ("waiting", 1)]
    (outcome,) = recorder.take("load_outcome", "waiting")
    assert outcome.outcome == c.OUTCOME_RECOMPUTED
