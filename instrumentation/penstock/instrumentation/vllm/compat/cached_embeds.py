"""Until 0.30: vLLM's encoder cache does not keep how many embeddings an item has; it asks the request."""

from __future__ import annotations

from typing import Any


def forget_embeds(encoder_cache_manager: Any, item: str) -> None:
    """Forget how many embeddings *item* has, which has left the cache."""
    known: dict[str, int] | None = getattr(encoder_cache_manager, "num_embeds_by_hash", None)
    if known is not None:
        known.pop(item, None)
