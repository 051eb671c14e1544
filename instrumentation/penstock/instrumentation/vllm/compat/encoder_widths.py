"""Until 0.31: vLLM does not measure how wide a model's encoder outputs are, by modality."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def encoder_widths(transfer_config: Any) -> Mapping[str, int]:
    """Return the widths that vLLM has measured, by modality; none where it measures none."""
    return getattr(transfer_config, "mm_encoder_output_widths", None) or {}
