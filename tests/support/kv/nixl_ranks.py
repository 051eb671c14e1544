"""Several ranks of one engine: their workers, and their answers to one scheduler through vLLM's own aggregator."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.kv.nixl_pair import Engine


def engine_of(make_engine: Callable[..., Engine], role: str, ranks: int, **options: Any) -> list[Engine]:
    """Build an engine of so many tensor-parallel ranks; the heads of the KV cache are divided between them."""
    built: list[Engine] = []
    for _ in range(ranks):
        built.append(make_engine(role, size=ranks, beside=tuple(built), **options))
    return built


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
    transfer = KVConnectorOutput(
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
