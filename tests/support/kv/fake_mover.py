"""KV connectors whose worker does what a test says: loads in a step or beside it, sends, blocks that fail, exceptions.

The scheduler's side is :class:`~tests.support.kv.fake_connector.ToyConnector`'s.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.engine.versions import (
    TELLS_FAILED_RECEIVES,
    KVConnectorTransferResults,
    connector_output,
    transfer_results,
)
from tests.support.kv.fake_connector import ToyConnector

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorRole,
        KVConnectorWorkerMetadata,
    )
    from vllm.v1.outputs import ModelRunnerOutput

    from tests.support.engine.schedulers import kv_cache_config

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class OwnMetadata(KVConnectorWorkerMetadata):
    """What the connector itself sends from worker to scheduler."""

    counts: list[int]

    def aggregate(self, other: Any) -> OwnMetadata:
        """Put the ranks' one behind the other."""
        return OwnMetadata(self.counts + other.counts)


@dataclass
class Script:
    """What one worker's connector answers from now on; each set is answered once."""

    received: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)
    broken: set[int] = field(default_factory=set)
    own: OwnMetadata | None = None
    raises: dict[str, Exception] = field(default_factory=dict)
    called: list[str] = field(default_factory=list)

    def call(self, name: str) -> None:
        """Note a call; raise what is to be raised by it."""
        self.called.append(name)
        if name in self.raises:
            raise self.raises[name]


class ToyMover(ToyConnector):
    """Keeps finished requests' blocks where ``kv_transfer_params["keeps"]`` says so; its worker follows a script."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.script = Script()
        self.got: list[Any] = []

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Say whether the blocks are being sent."""
        del block_ids
        return bool((request.kv_transfer_params or {}).get("keeps")), None

    def update_connector_output(self, connector_output: Any) -> None:
        """Keep what the workers sent."""
        self.got.append(connector_output.kv_connector_worker_meta)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Follow the script."""
        del forward_context, kwargs
        self.script.call("start_load_kv")

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Follow the script."""
        del layer_name
        self.script.call("wait_for_layer_load")

    def _follow(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Follow the script."""
        del finished_req_ids
        script = self.script
        results = KVConnectorTransferResults(
            finished_sending=script.sent, finished_recving=script.received, failed_recving=script.failed
        )
        script.sent, script.received, script.failed = set(), set(), set()
        return results

    if hasattr(ToyConnector, "get_transfer_results"):
        get_transfer_results = _follow
    else:  # until 0.29

        def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
            """Follow the script."""
            results = self._follow(finished_req_ids)
            return results.finished_sending, results.finished_recving

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Follow the script."""
        broken, self.script.broken = self.script.broken, set()
        return broken

    def build_connector_worker_meta(self) -> OwnMetadata | None:
        """Follow the script."""
        return self.script.own


class OtherMover(ToyMover):
    """Another connector of the same kind."""


class LateMover(ToyMover):
    """Puts its answer to what there is to load off while it is *late*."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.late = True

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[Any, bool]:
        """Answer once it is no longer late."""
        return (
            (None, False) if self.late else super().get_num_new_matched_tokens(request, num_computed_tokens)
        )


MODULE = __name__


def mover(name: str = "ToyMover", **more: Any) -> dict[str, Any]:
    """Return the KVTransferConfig of a connector here."""
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_module_path": MODULE} | more


def multi(*children: dict[str, Any]) -> dict[str, Any]:
    """Return the KVTransferConfig of a MultiConnector of *children*."""
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": list(children)},
    }


def worker(config: Any, rank: int = 0) -> Any:
    """Return the connector of one worker, as vLLM's factory builds it."""
    config.parallel_config.rank = rank
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, kv_cache_config())


def run_step(
    scheduler: Any, workers: Sequence[Any], layers: Sequence[str] = ("layer",), context: Any = None
) -> Any:
    """Do one step of the engine: what vLLM's V1 runner calls on each worker's connector, in its order.

    Args:
        scheduler: the engine's.
        workers: the connector of each rank.
        layers: names of the attention layers.
        context: vLLM's ForwardContext, for connectors that look at it.

    Returns:
        The scheduler's outputs.

    """
    scheduled = scheduler.schedule()
    answers = [work(connector, scheduled, layers, context) for connector in workers]
    return scheduler.update_from_output(scheduled, answered(scheduler, scheduled, _combined(answers)))


def work(connector: Any, scheduled: Any, layers: Sequence[str] = ("layer",), context: Any = None) -> Any:
    """Do a step of one rank; return what it tells the scheduler about its connector (``KVConnectorOutput``)."""
    connector.bind_connector_metadata(scheduled.kv_connector_metadata)
    # Until 0.29 all loads begin before the model runs.
    before = getattr(scheduled, "has_sync_kv_loads", True)
    if before:
        connector.start_load_kv(context)
    for layer in layers:
        connector.wait_for_layer_load(layer)
        kept = context.no_compile_layers[layer].kv_cache if context is not None else None
        connector.save_kv_layer(layer, kept, None)
    if not before:
        connector.start_load_kv(context)
    connector.wait_for_save()
    results = transfer_results(connector, scheduled.finished_req_ids)
    output = connector_output(
        finished_sending=results.finished_sending,
        finished_recving=results.finished_recving,
        failed_recving=results.failed_recving,
        invalid_block_ids=connector.get_block_ids_with_load_errors(),
        kv_connector_worker_meta=connector.build_connector_worker_meta(),
    )
    connector.clear_connector_metadata()
    return output


def _combined(answers: Sequence[Any]) -> Any:
    """Combine the ranks' answers as vLLM's aggregator does for a step in which they agree."""
    output = connector_output(finished_sending=set(), finished_recving=set(), failed_recving=set())
    for answer in answers:
        output.finished_sending |= answer.finished_sending
        output.finished_recving |= answer.finished_recving
        if TELLS_FAILED_RECEIVES:
            output.failed_recving |= answer.failed_recving
        output.invalid_block_ids |= answer.invalid_block_ids
        own, metadata = output.kv_connector_worker_meta, answer.kv_connector_worker_meta
        output.kv_connector_worker_meta = (
            metadata if own is None or metadata is None else own.aggregate(metadata)
        )
    return output


def answered(scheduler: Any, scheduled: Any, output: Any) -> Any:
    """Return the model's answer to a step, with the workers' *output*: a token for each request that is due one."""
    ids = list(scheduled.num_scheduled_tokens)
    requests = scheduler.requests
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={each: index for index, each in enumerate(ids)},
        sampled_token_ids=[
            [7] if requests[each].num_computed_tokens >= requests[each].num_prompt_tokens else []
            for each in ids
        ],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
        kv_connector_output=output,
    )
