"""What the sides of a NIXL connector tell of themselves.

Until 0.26: the scheduler's method that leaves out what is not exchanged has another name (:func:`block_clipper`).
Until 0.27: the sides do not say in which direction they move KV; their classes do (:func:`transfer_mode`).
Until 0.28 the compatibility hash also has whether layers share blocks; until 0.27 it lacks speculation and direction
(:func:`open_factors`, :func:`speculative_factors`).
Until 0.29: all groups of the KV cache are transferred, and nothing says which layer is in which (:func:`layer_groups`).
Until 0.29: a worker's KV cache lies in memory of one type (:func:`mixes_memory_types`).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OPEN_FACTORS: Final[Mapping[str, Sequence[Any]]] = {
    "transfer_mode": ("pull", "push"),
    "cross_layers_blocks": (False, True),
}


def open_factors() -> Mapping[str, Sequence[Any]]:
    """Return the factors that a configuration does not tell, and the few values of each; without the attention backend."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata

    hashed = inspect.signature(metadata.compute_nixl_compatibility_hash).parameters
    return {name: values for name, values in _OPEN_FACTORS.items() if name in hashed}


def speculative_factors(config: Any) -> Mapping[str, Any]:
    """Return what the hash has of speculative decoding, by a ``VllmConfig``."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata

    factors_of = getattr(metadata, "_get_speculative_compatibility_factors", None)
    return {} if factors_of is None else {"speculative_config": factors_of(config)}


_CLIPPERS: Final = ("get_exchange_clipped_blocks", "get_sw_clipped_blocks")


def block_clipper(scheduler: Any) -> Any:
    """Return what a NIXL connector's scheduler uses to name the blocks that it offers; None of another's."""
    return next((found for name in _CLIPPERS if (found := getattr(scheduler, name, None)) is not None), None)


def transfer_mode(side: Any) -> str:
    """Return ``pull`` or ``push`` of a NIXL connector's scheduler or worker; empty for another's."""
    told = getattr(side, "_TRANSFER_MODE", None)
    if told is not None:
        return str(told)
    names = [each.__name__ for each in type(side).__mro__ if ".kv_connector.v1.nixl." in each.__module__]
    if not names:
        return ""
    return "push" if any(name.startswith("NixlPush") for name in names) else "pull"


def layer_groups(config: Any) -> Mapping[str, int]:
    """Return the group of each layer whose blocks are transferred, by a ``KVCacheConfig``."""
    groups: Mapping[str, int] | None = getattr(config, "transfer_group_index_by_layer", None)
    if groups is not None:
        return groups
    return {name: index for index, group in enumerate(config.kv_cache_groups) for name in group.layer_names}


def mixes_memory_types(worker: Any) -> bool:
    """Return whether a NIXL worker's KV cache lies in memory of several types, the device's and the host's."""
    return bool(getattr(worker, "_mixed_mem_types", False))
