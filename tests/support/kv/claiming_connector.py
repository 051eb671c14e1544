"""A KV connector for several KV cache groups that claims a prompt's KV, brings nothing, and tells the blocks: every load of it fails."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, Final

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorMetadata,
        SupportsHMA,
    )

_NULL: Final = 0
"""vLLM's block for what a sliding window has left behind."""


@dataclass
class ClaimedLoads(KVConnectorMetadata):
    """The loads of one step: by request, the ids of the blocks and whether it waits."""

    loads: dict[str, tuple[set[int], bool]] = field(default_factory=dict)


class ClaimingConnector(KVConnectorBase_V1, SupportsHMA):
    """Claims ``kv_transfer_params["claims"]`` tokens; the request waits for them if ``"waits"`` is there."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._sizes = [each.kv_cache_spec.block_size for each in kv_cache_config.kv_cache_groups]
        self._claims: dict[str, tuple[int, bool]] = {}
        self._loads: dict[str, tuple[set[int], bool]] = {}
        self._broken: set[int] = set()
        self._received: set[str] = set()

    # The scheduler's side

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Claim what is not computed here; always the same, however often a load has failed."""
        params = request.kv_transfer_params or {}
        count = max(params.get("claims", 0) - num_computed_tokens, 0)
        waits = bool(params.get("waits")) and count > 0
        self._claims[request.request_id] = (num_computed_tokens, waits)
        return count, waits

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note a load."""
        if not num_external_tokens:
            return
        start, waits = self._claims[request.request_id]
        end = start + num_external_tokens
        claimed = {
            block
            for group, size in zip(blocks.get_block_ids(), self._sizes, strict=True)
            for block in group[start // size : -(-end // size)]
        }
        self._loads[request.request_id] = (claimed - {_NULL}, waits)

    def build_connector_meta(self, scheduler_output: Any) -> ClaimedLoads:
        """Hand over the loads of this step."""
        del scheduler_output
        loads, self._loads = self._loads, {}
        return ClaimedLoads(loads)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Keep no blocks."""
        del block_ids
        self._claims.pop(request.request_id, None)
        return False, None

    # The worker's side

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Load nothing."""
        del forward_context, kwargs
        for request_id, (blocks, waits) in self._get_connector_metadata().loads.items():
            self._broken |= blocks
            if waits:
                self._received.add(request_id)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:
        """Tell which loads have ended."""
        del finished_req_ids
        received, self._received = self._received, set()
        return None, received or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks that were not loaded, once."""
        broken, self._broken = self._broken, set()
        return broken

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Wait for nothing."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Save nothing."""

    def wait_for_save(self) -> None:
        """Wait for nothing."""
