"""Until 0.28 NIXL's compatibility hash also has whether layers share blocks; until 0.27 it lacks speculation and direction."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OPEN: Final[Mapping[str, Sequence[Any]]] = {
    "transfer_mode": ("pull", "push"),
    "cross_layers_blocks": (False, True),
}


def open_factors() -> Mapping[str, Sequence[Any]]:
    """Return the factors that a configuration does not tell, and the few values of each; without the attention backend."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata

    hashed = inspect.signature(metadata.compute_nixl_compatibility_hash).parameters
    return {name: values for name, values in _OPEN.items() if name in hashed}


def speculative_factors(config: Any) -> Mapping[str, Any]:
    """Return what the hash has of speculative decoding, by a ``VllmConfig``."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata

    factors_of = getattr(metadata, "_get_speculative_compatibility_factors", None)
    return {} if factors_of is None else {"speculative_config": factors_of(config)}
