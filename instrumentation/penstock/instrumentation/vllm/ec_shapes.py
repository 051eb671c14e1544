"""What encoder outputs look like in this engine: to tell a wrong one, and to put a placeholder in its place.

vLLM tells a connector's worker neither width nor type. Items that are encoded here show both; producers are told the width
at their start (``mm_encoder_output_widths``); without either the width is that of the model's input embeddings, times one
more than the layers that DeepStack packs beside them. Where it is not known for sure, an item gets the benefit of the doubt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_VISUAL: Final = frozenset({"image", "video"})
_DIMENSIONS: Final = 2


class Shapes:
    """The shapes of one worker; rows times width."""

    def __init__(self, model_config: Any, measured: Mapping[str, int]) -> None:
        """Read vLLM's *model_config*; *measured* is the width by modality, where vLLM has measured it."""
        self._base: int = model_config.get_inputs_embeds_size()
        self._dtype = model_config.dtype
        self._measured = dict(measured)
        self._levels = _deepstack_levels(model_config.hf_config)
        multimodal = model_config.multimodal_config
        self._pruned = multimodal is not None and bool(multimodal.is_multimodal_pruning_enabled())
        self._encoded: dict[int, Any] = {}

    def encoded(self, tensor: Any) -> None:
        """Learn from an item that was encoded here."""
        if tensor.dim() == _DIMENSIONS:
            self._encoded[tensor.shape[1]] = tensor.dtype

    def fault(self, tensor: Any, rows: int, modality: str) -> str:
        """Return why *tensor* cannot be an item of *rows* embeddings, empty if it can."""
        if tensor.dim() != _DIMENSIONS or tensor.shape[0] != rows:
            return f"the item has the shape {tuple(tensor.shape)}, {rows} rows of embeddings were expected"
        if not tensor.is_floating_point():
            return f"the item is of type {tensor.dtype}, which is no embedding"
        width = tensor.shape[1]
        known = {*self._encoded, *filter(None, [self._measured.get(modality)])}
        if known and width not in known:
            return f"the item is {width} wide, embeddings here are {', '.join(map(str, sorted(known)))} wide"
        if not known and not self._pruned and width % self._base:
            return f"the item is {width} wide, which is no multiple of this model's {self._base}"
        dtype = self._encoded.get(width)
        if dtype is not None and tensor.dtype != dtype:
            return f"the item is of type {tensor.dtype}, embeddings here are of type {dtype}"
        return ""

    def width(self, modality: str) -> int:
        """Return how wide an item of *modality* is, as far as that is known."""
        if modality in self._measured:
            return self._measured[modality]
        width = self._base * (1 + self._levels) if modality in _VISUAL else self._base
        return width if width in self._encoded else next(iter(self._encoded), width)

    def dtype(self, modality: str) -> Any:
        """Return the type of an item of *modality*."""
        return self._encoded.get(self.width(modality), self._dtype)


def _deepstack_levels(hf_config: Any) -> int:
    config = getattr(hf_config, "thinker_config", hf_config)
    indexes = getattr(getattr(config, "vision_config", None), "deepstack_visual_indexes", None)
    return len(indexes) if isinstance(indexes, (list, tuple)) else 0
