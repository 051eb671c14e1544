"""Until 0.29: all groups of the KV cache are transferred, and nothing says which layer is in which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def layer_groups(config: Any) -> Mapping[str, int]:
    """Return the group of each layer whose blocks are transferred, by a ``KVCacheConfig``."""
    groups: Mapping[str, int] | None = getattr(config, "transfer_group_index_by_layer", None)
    if groups is not None:
        return groups
    return {name: index for index, group in enumerate(config.kv_cache_groups) for name in group.layer_names}
