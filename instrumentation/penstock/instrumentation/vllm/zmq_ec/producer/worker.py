"""A producer's worker: copies encoder outputs to the host cache, from which the server sends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from penstock.instrumentation.vllm.zmq_ec.producer.host_cache import HostCache
from penstock.instrumentation.vllm.zmq_ec.producer.responder import Responder
from penstock.instrumentation.vllm.zmq_ec.producer.server import Server
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.instrumentation.vllm.zmq_ec.wire.curve import ServerKeys

logger = logging.getLogger("vllm.penstock.zmq_ec")

_DIMENSIONS = 2


class ProducerWorker:
    """Owns the host cache and the server.

    Attributes:
        skipped: outputs whose name, shape or element type the wire cannot carry.

    """

    def __init__(
        self, host: str, port: int, model: bytes, capacity: int, keys: ServerKeys | None = None
    ) -> None:
        """Take the memory, and listen at once; with *keys* only to the clients that they allow.

        Raises:
            OutOfMemoryError: the host does not have *capacity* bytes.
            ValueError: the address cannot be listened at.

        """
        self.skipped = 0
        self.cache = HostCache(capacity)
        self.server = Server(Responder(self.cache, model), host, port, keys)
        self.server.start()

    def save(self, item: str, tensor: torch.Tensor) -> None:
        """Keep a copy of *tensor* on the host, unless one is there."""
        if self.cache.touch(item):
            return
        dtype = str(tensor.dtype).removeprefix("torch.")
        if (
            tensor.dim() != _DIMENSIONS
            or not tensor.numel()
            or dtype not in protocol.DTYPE_BYTES
            or not protocol.item_fits(item)
        ):
            self.skipped += 1
            return

        def fill(memory: Any) -> None:
            # Bytes, because numpy has no bfloat16. The copy from a device has ended when this returns.
            torch.from_numpy(memory).view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())

        if not self.cache.put(item, tensor.nbytes, fill, tensor.shape[0], tensor.shape[1], dtype):
            logger.warning(
                "ZmqECConnector: no room for item %s of %d bytes (host_cache_bytes is %d)",
                item,
                tensor.nbytes,
                self.cache.capacity,
            )
            return
        self.server.seal(item, tensor.nbytes)

    def publish_again(self, items: Iterable[str], encoder_cache: Mapping[str, torch.Tensor]) -> None:
        """Keep those of *items* that vLLM still has encoded and the host cache has evicted."""
        for item in items:
            tensor = encoder_cache.get(item)
            if tensor is not None:
                self.save(item, tensor)

    def close(self) -> None:
        """Stop the server, and let no consumer find the memory any more."""
        self.server.stop()
        self.cache.close()
