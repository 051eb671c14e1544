"""A worker's checks of the items that a step has loaded: their shape and their checksum; and the placeholder of a wrong one.

vLLM gives a connector's worker neither width nor type. Items that are encoded here show both, by modality; producers get the width
at their start (``mm_encoder_output_widths``); without either the width is that of the model's input embeddings, times one
more than the layers that DeepStack packs beside them. Where that is not known, an item is taken for right. The checksums are
those that the scheduler names.
"""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Any, Final

import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.messages import CheckedItem
from penstock.instrumentation.vllm.naming import failure_modes

if TYPE_CHECKING:
    from collections.abc import Mapping

_VISUAL: Final = frozenset({"image", "video"})
_DIMENSIONS: Final = 2
# Of one step, as for KV; what is left then is not verified.
_COMPARE_SECONDS: Final = 0.05


class Placeholders:
    """The shapes of one worker; rows times width."""

    def __init__(self, model_config: Any, measured: Mapping[str, int]) -> None:
        """Read vLLM's *model_config*; *measured* is the width by modality, where vLLM has measured it."""
        self._base: int = model_config.get_inputs_embeds_size()
        self._dtype = model_config.dtype
        self._measured = dict(measured)
        self._levels = _deepstack_levels(model_config.hf_config)
        multimodal = model_config.multimodal_config
        self._pruned = multimodal is not None and bool(multimodal.is_multimodal_pruning_enabled())
        self._encoded: dict[str, tuple[int, Any]] = {}

    def on_encoded(self, tensor: Any, modality: str) -> None:
        """Record the shape of an item of *modality* that was encoded here."""
        if tensor.dim() == _DIMENSIONS:
            self._encoded[modality] = (tensor.shape[1], tensor.dtype)

    def fault(self, tensor: Any, rows: int, modality: str) -> str:
        """Return why *tensor* cannot be an item of *rows* embeddings, empty if it can."""
        if tensor.dim() != _DIMENSIONS or tensor.shape[0] != rows:
            return f"the item has the shape {tuple(tensor.shape)}, {rows} rows of embeddings were expected"
        if not tensor.is_floating_point():
            return f"the item is of type {tensor.dtype}, which is no embedding"
        dtype = self._encoded.get(modality, (0, tensor.dtype))[1]
        if tensor.dtype != dtype:
            return f"the item is of type {tensor.dtype}, embeddings here are of type {dtype}"
        return self._width_fault(tensor.shape[1], modality)

    def _width_fault(self, width: int, modality: str) -> str:
        if self._pruned:  # what tells the pruned positions is packed beside the embedding
            return ""
        if modality in self._encoded or modality in self._measured or self._levels is not None:
            known = self.width(modality)
            return "" if width == known else f"the item is {width} wide, embeddings here are {known} wide"
        wrong = f"the item is {width} wide, which is no multiple of this model's {self._base}"
        return wrong if width % self._base else ""

    def width(self, modality: str) -> int:
        """Return how wide an item of *modality* is, as far as that is known."""
        if modality in self._encoded:
            return self._encoded[modality][0]
        packed = self._levels or 0 if modality in _VISUAL else 0
        return self._measured.get(modality, self._base * (1 + packed))

    def dtype(self, modality: str) -> Any:
        """Return the type of an item of *modality*."""
        return self._encoded.get(modality, (0, self._dtype))[1]


def _deepstack_levels(hf_config: Any) -> int | None:
    """Return how many layers are packed beside a visual embedding; None if the model does that in a way unknown here."""
    config = getattr(hf_config, "thinker_config", hf_config)
    indexes = getattr(getattr(config, "vision_config", None), "deepstack_visual_indexes", None)
    if isinstance(indexes, (list, tuple)):
        return len(indexes)
    return None if "deepstack" in str(hf_config.to_dict()) else 0


class Checksums:
    """Compares loaded items on one rank; on the worker's main thread.

    Attributes:
        enforced: an item that differs is not to be used.

    """

    def __init__(self) -> None:
        self.enforced = False
        self._wanted: Mapping[str, int | bytes] = {}
        self._spent = 0.0
        self._checked: list[CheckedItem] = []

    def before_load(self, metadata: Any) -> None:
        """Take what a step is to compare."""
        self._wanted = getattr(metadata, "penstock_checksums", {})
        self.enforced = bool(getattr(metadata, "penstock_enforced", False))
        self._spent = 0.0

    def fault(self, item: str, tensor: torch.Tensor) -> failure_modes.Failure | None:
        """Compare an item that was loaded; return the failure if it differs, None if it does not or is not compared."""
        wanted = self._wanted.get(item)
        if wanted is None:
            return None
        if self._spent > _COMPARE_SECONDS:
            self._checked.append(CheckedItem(item, mismatched=False, skipped=True))
            return None
        began = time.perf_counter()
        checksum = _checksum(tensor, wanted)
        self._spent += time.perf_counter() - began
        self._checked.append(CheckedItem(item, checksum != wanted))
        if checksum == wanted:
            return None
        text = f"the item has checksum {_hex(checksum)}, its producer's copy {_hex(wanted)}"
        return failure_modes.Failure(c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT, error_text=text)

    def drain(self) -> tuple[CheckedItem, ...]:
        """Return what was compared or skipped since the last call."""
        found, self._checked = tuple(self._checked), []
        return found


def _checksum(tensor: torch.Tensor, wanted: int | bytes) -> int | bytes:
    """Return a tensor's fingerprint if *wanted* is one, else its CRC-32, of the elements in their order; one of a device is copied to the host."""
    host = tensor.detach().contiguous().cpu()
    content = memoryview(host.reshape(-1).view(torch.uint8).numpy())
    return fingerprints.of_item(content) if isinstance(wanted, bytes) else zlib.crc32(content)


def _hex(checksum: int | bytes) -> str:
    return checksum.hex() if isinstance(checksum, bytes) else f"{checksum:08x}"
