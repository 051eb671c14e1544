"""A worker's comparison of the items that a step has loaded with the checksums that the scheduler names."""

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

# Of one step, as for KV; what is left then is not verified.
_STEP_SECONDS: Final = 0.05


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
        if self._spent > _STEP_SECONDS:
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
