"""A consumer's worker: copies slots of the shared region to its device."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from penstock.instrumentation.vllm.zmq_ec.consumer.item_records import Loaded
from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import RegionError, RegionName, RegionView

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.vllm.zmq_ec.consumer.item_records import LoadOrder

logger = logging.getLogger("vllm.penstock.zmq_ec")


class ConsumerWorker:
    """Loads the items that a step orders; maps the region when a step first names it."""

    def __init__(self) -> None:
        self._view: RegionView | None = None
        # In the order of the step, each once: the guard of a load may order the same again.
        self._done: dict[int, None] = {}
        self._unreadable: dict[int, None] = {}
        self._mapped = 0
        self._unmapped = ""

    def load(
        self,
        orders: Iterable[LoadOrder],
        region: RegionName | None,
        encoder_cache: dict[str, torch.Tensor],
        device: Any,
        *,
        guarded: bool = False,
    ) -> None:
        """Put every ordered item into *encoder_cache*.

        Raises:
            RegionError: one cannot be loaded. If *guarded* it is left out instead, and the guard detects that.

        """
        if region is not None:
            with contextlib.suppress(RegionError):  # the report says so, and the scheduler orders nothing
                self._map(region)
        for order in orders:
            self._done[order.slot.generation] = None
            if order.item in encoder_cache:
                continue
            try:
                encoder_cache[order.item] = self._tensor(order, region, device)
            except RegionError as error:
                self._unreadable[order.slot.generation] = None
                if not guarded:
                    raise
                logger.warning("ZmqECConnector: item %s cannot be loaded: %s", order.item, error)

    def report(self) -> Loaded | None:
        """Return what was loaded and mapped since the last call, None if nothing was."""
        report = Loaded(tuple(self._done), tuple(self._unreadable), self._mapped, self._unmapped)
        self._done.clear()
        self._unreadable.clear()
        self._mapped, self._unmapped = 0, ""
        return None if report == Loaded() else report

    def close(self) -> None:
        """Unmap the region."""
        if self._view is not None:
            with contextlib.suppress(BufferError):  # a copy that was interrupted still holds it
                self._view.close()
            self._view = None

    def _tensor(self, order: LoadOrder, name: RegionName | None, device: Any) -> torch.Tensor:
        view = self._map(name)
        view.check(order.slot)
        tensor = _copy(view.bytes_of(order.slot), getattr(torch, order.dtype), device)
        view.check(order.slot)
        return tensor.view(order.rows, order.width)

    def _map(self, name: RegionName | None) -> RegionView:
        if name is None:
            raise RegionError("the scheduler ordered a load without saying from where")
        if self._view is None or self._view.name != name:
            self.close()
            try:
                self._view = RegionView(name)
            except RegionError as error:
                self._unmapped = str(error)
                raise
            self._mapped = 1
        return self._view


def _copy(source: memoryview, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """Return the elements of *source* in new memory on *device*; the copy has ended, because the source is pageable memory.

    On a CPU into memory of numpy, which asks the kernel for huge pages; torch does not, and the first write to small pages
    takes many times as long as the copy.
    """
    elements = torch.frombuffer(source, dtype=dtype)
    if torch.device(device).type != "cpu":
        return elements.to(device, copy=True)
    memory = np.empty(len(source), dtype=np.uint8)
    return torch.from_numpy(memory).view(dtype).copy_(elements)
