"""A KV connector whose store holds the KV of every prompt: loads in the step itself, or while the request waits.

Only the scheduler's side; what "loading" does is the toy engine's.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorMetadata,
        SupportsHMA,
    )


@dataclass(frozen=True)
class Load:
    """Fill the blocks of *request_id* (by group) with the KV of its tokens from *start* to *end*."""

    request_id: str
    blocks: tuple[list[int], ...]
    start: int
    end: int
    waits: bool


@dataclass
class ToyMetadata(KVConnectorMetadata):
    """The loads of one step."""

    loads: list[Load] = field(default_factory=list)


class ToyConnector(KVConnectorBase_V1, SupportsHMA):
    """Loads ``kv_transfer_params["stored"]`` tokens; parks the request for it if ``"waits"`` is there."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._found: dict[str, tuple[int, bool]] = {}
        self._loads: list[Load] = []

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Answer what is stored beyond the local prefix; always the same, however often a load has failed."""
        params = request.kv_transfer_params or {}
        count = max(params.get("stored", 0) - num_computed_tokens, 0)
        waits = bool(params.get("waits")) and count > 0
        self._found[request.request_id] = (num_computed_tokens, waits)
        return count, waits

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note a load."""
        if num_external_tokens:
            start, waits = self._found[request.request_id]
            end = start + num_external_tokens
            self._loads.append(Load(request.request_id, blocks.get_block_ids(), start, end, waits))

    def build_connector_meta(self, scheduler_output: Any) -> ToyMetadata:
        """Hand over the loads of this step."""
        del scheduler_output
        loads, self._loads = self._loads, []
        return ToyMetadata(loads)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Keep no blocks."""
        del request, block_ids
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Belongs to the worker's side."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Belongs to the worker's side."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Belongs to the worker's side."""

    def wait_for_save(self) -> None:
        """Belongs to the worker's side."""
