"""Real vLLM schedulers without an engine: what a step of the model would answer is made up by the test."""

from __future__ import annotations

import json
import time
import warnings
from typing import TYPE_CHECKING, Any

from tests.support.engine.versions import connector_output

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    import torch
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        KVTransferConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        VllmConfig,
    )
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

BLOCK = 32
BLOCKS = 100
PEER = "10.0.0.7:5600"
REMOTE: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "prefill-engine",
    "remote_request_id": "cmpl-x-0-0badcafe",
    "remote_host": "10.0.0.7",
    "remote_port": 5600,
    "remote_block_ids": ([1, 2, 3],),
    "tp_size": 1,
}
LOCAL: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}

# Until 0.28 at random, so once.
init_none_hash(sha256)

SCHEDULERS = {"sync": Scheduler, "async": AsyncScheduler}

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}


def vllm_config(directory: Path, **transfer: Any) -> VllmConfig:
    """Return the configuration of an engine with a tiny model; *transfer* is its KVTransferConfig, if given."""
    (directory / "config.json").write_text(json.dumps(_MODEL))
    path = str(directory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = VllmConfig(
            model_config=ModelConfig(
                model=path, tokenizer=path, skip_tokenizer_init=True, dtype="float32", max_model_len=1024
            ),
            scheduler_config=SchedulerConfig(
                max_num_seqs=8, max_num_batched_tokens=1024, max_model_len=1024, is_encoder_decoder=False
            ),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
            parallel_config=ParallelConfig(),
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=KVTransferConfig(**transfer) if transfer else None,
        )
    config.cache_config.num_gpu_blocks = BLOCKS
    return config


WINDOW = 2 * BLOCK
"""Tokens of the window that a short prompt exceeds."""
REACH = {"window": (None, WINDOW - 1), "mamba": (None, 1)}
"""By kind of a hybrid cache: how many of the last tokens each group still holds the KV of; None for all."""


def kv_cache_config(*, hybrid: bool | str = False, heads: int = 2) -> KVCacheConfig:
    """Return the KV cache of one layer, or of two, which are two groups.

    The second has a sliding window that no prompt here exceeds; with "window" one of :data:`WINDOW`, with "mamba" it is a state.
    """
    shape: dict[str, Any] = {
        "block_size": BLOCK,
        "num_kv_heads": heads,
        "head_size": 32,
        "dtype": torch.float32,
    }
    groups = [KVCacheGroupSpec(["layer"], FullAttentionSpec(**shape))]
    if hybrid == "mamba":
        state = MambaSpec(
            block_size=BLOCK, shapes=((2, 32),), dtypes=(torch.float32,), mamba_cache_mode="align"
        )
        groups.append(KVCacheGroupSpec(["mamba"], state))
    elif hybrid:
        window = WINDOW if hybrid == "window" else 32 * BLOCK
        groups.append(KVCacheGroupSpec(["sliding"], SlidingWindowSpec(**shape, sliding_window=window)))
    return KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)


def build(scheduler_class: Any, config: VllmConfig, *, hybrid: bool | str = False) -> Any:
    """Return a scheduler of that class (or from that factory), as EngineCore builds it."""
    if hybrid == "mamba":
        config.cache_config.mamba_cache_mode = "align"
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=kv_cache_config(hybrid=hybrid),
        block_size=BLOCK,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
    )


def make_room_for_items(scheduler: Any, *, rows: int = 4096, chunk: int = 1024) -> None:
    """Let a scheduler of a text model have encoder inputs: *rows* in its encoder cache, *chunk* tokens in a step."""
    scheduler.max_num_encoder_input_tokens = 1024
    scheduler.max_num_scheduled_tokens = chunk
    manager = scheduler.encoder_cache_manager
    manager.cache_size = manager.num_free_slots = manager.num_freeable_slots = rows


def request(
    request_id: str,
    *,
    tokens: int = 3 * BLOCK,
    first: int = 1,
    max_tokens: int = 2,
    params: Mapping[str, Any] | None = None,
    trace_headers: Mapping[str, str] | None = None,
) -> Request:
    """Return a request of *tokens* prompt tokens that begins with *first*."""
    return Request(
        request_id=request_id,
        prompt_token_ids=[first] + [2 + index % 400 for index in range(tokens - 1)],
        sampling_params=SamplingParams(
            max_tokens=max_tokens,
            ignore_eos=True,
            extra_args={"kv_transfer_params": dict(params)} if params else None,
        ),
        pooling_params=None,
        trace_headers=trace_headers,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )


def step(scheduler: Any, nans: dict[str, int] | None = None, **transfer: Any) -> Any:
    """Schedule, let the model answer one token for each request that is due one, and update.

    Args:
        scheduler: it.
        nans: NaNs among the logits of each request, where vLLM counts them.
        transfer: the KVConnectorOutput of the workers in this step.

    """
    scheduled = scheduler.schedule()
    ids = list(scheduled.num_scheduled_tokens)
    sampled: Sequence[Any] = [
        [7]
        if scheduler.requests[each].num_computed_tokens >= scheduler.requests[each].num_prompt_tokens
        else []
        for each in ids
    ]
    output = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={each: index for index, each in enumerate(ids)},
        sampled_token_ids=list(sampled),
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
        kv_connector_output=connector_output(**transfer) if transfer else None,
        num_nans_in_logits=nans,
    )
    return scheduler.update_from_output(scheduled, output)


def given_blocks(scheduler: Any) -> set[int]:
    """Return a set to which each block is added that a scheduler gives to a request from now on."""
    pool = scheduler.kv_cache_manager.block_pool
    give, given = pool.get_new_blocks, set[int]()

    def noted(*args: Any, **kwargs: Any) -> Any:
        blocks = give(*args, **kwargs)
        given.update(block.block_id for block in blocks)
        return blocks

    pool.get_new_blocks = noted
    return given


def preempt(scheduler: Any) -> None:
    """Preempt the last request, as vLLM does for want of blocks."""
    scheduler._preempt_request(scheduler.running.pop(), time.monotonic())
