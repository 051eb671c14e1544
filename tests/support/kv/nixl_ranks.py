"""Several ranks of one engine: their workers, what is recorded of them, and their answers to one scheduler."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from tests.support.engine.versions import connector_output

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

    from tests.support.engine import schedulers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.engine.recorder import Recorder
    from tests.support.kv.nixl_pair import Engine


def engine_of(make_engine: Callable[..., Engine], role: str, ranks: int, **options: Any) -> list[Engine]:
    """Build an engine of so many tensor-parallel ranks; the heads of the KV cache are divided between them."""
    built: list[Engine] = []
    for _ in range(ranks):
        built.append(make_engine(role, size=ranks, beside=tuple(built), **options))
    return built


def shake_hands(prefill: Sequence[Engine], decode: Sequence[Engine]) -> None:
    """Let every rank of *decode* read once from the ranks of *prefill* that have its heads."""
    lease("first", prefill)
    for rank in decode:
        rank.read("first", prefill[0])
    for rank in decode:
        rank.received("first")
    for rank in prefill:
        rank.sent("prefill-of-first")


def lease(request_id: str, prefill: Sequence[Engine]) -> None:
    """Keep the blocks of a request on all ranks of *prefill*, for longer than any test takes."""
    for rank in prefill:
        rank.lease(f"prefill-of-{request_id}", seconds=3_600.0)


def modes(recorder: Recorder, request_id: str) -> list[tuple[int, int]]:
    """Return the modes of a request's failures, each with the rank of the peer."""
    return [(each.mode, each.peer.rank) for each in recorder.take("transfer_failure", request_id)]


def park(scheduler: Any, peer: Engine) -> tuple[Any, list[int], int]:
    """Let a request wait for its load from *peer*; return it, its blocks, and how many are free."""
    params = schedulers.REMOTE | {"remote_port": peer.port, "remote_engine_id": peer.id}
    request = schedulers.request("r8", params=params)
    scheduler.add_request(request)
    schedulers.step(scheduler)
    (held,) = scheduler.kv_cache_manager.get_block_ids("r8")
    return request, held, scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


class Aggregator:
    """vLLM's aggregator of so many ranks."""

    def __init__(self, ranks: int) -> None:
        self._aggregator = KVOutputAggregator(ranks)

    def together(self, answers: Sequence[Any]) -> KVConnectorOutput:
        """Return the scheduler's output of one step in which the ranks gave these answers (``Engine.step``)."""
        combined = self._aggregator.aggregate([_output(answer) for answer in answers])
        assert combined is not None
        assert combined.kv_connector_output is not None
        return combined.kv_connector_output


def _output(answer: Any) -> ModelRunnerOutput:
    """Return what a rank's model runner makes of a step's answer."""
    results, invalid, report = answer
    transfer = connector_output(
        finished_sending=results.finished_sending or None,
        finished_recving=results.finished_recving or None,
        failed_recving=results.failed_recving,
        invalid_block_ids=invalid,
        kv_connector_worker_meta=report,
    )
    return ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=transfer)


def update(scheduler: Any, told: KVConnectorOutput) -> None:
    """Let the scheduler take a step in which the workers told this and the model nothing."""
    scheduled = scheduler.schedule()
    ids = list(scheduled.num_scheduled_tokens)
    scheduler.update_from_output(
        scheduled,
        ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={each: index for index, each in enumerate(ids)},
            sampled_token_ids=[[] for _ in ids],
            kv_connector_output=told,
        ),
    )
