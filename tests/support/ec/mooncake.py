"""vLLM's own ECMooncakeConnector, scheduler and workers, in one process: its control messages are real, only Mooncake's engine is not.

The stand-in for the engine copies within the process, so the memory that a producer writes to is the consumer's.
"""

from __future__ import annotations

import ctypes
import itertools
import warnings
import zlib
from typing import TYPE_CHECKING, Any, ClassVar

from demo.common.processes import free_port
from demo.common.steps import until
from demo.servers import LOOPBACK
from tests.support.ec.fake_ec import ToyEcEngine
from tests.support.engine import schedulers
from tests.support.engine.fake_worker import GARBAGE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    import torch
    from vllm.config import ECTransferConfig
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
    from vllm.distributed.ec_transfer.ec_connector.mooncake import transfer as mooncake_transfer
    from vllm.distributed.ec_transfer.ec_connector.mooncake.metadata import (
        ECMooncakeConnectorMetadata,
        ECMooncakePushSpec,
    )

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

ROWS, WIDTH = 40, 64
NBYTES = ROWS * WIDTH * 4
_STEPS_A_LOOK = 20


class MemoryEngine:
    """What vLLM calls of ``mooncake.engine.TransferEngine``; a write to a session in ``broken`` fails."""

    broken: ClassVar[set[str]] = set()
    _ports: ClassVar[Any] = itertools.count(40_001)

    def __init__(self) -> None:
        self._host, self._port = "", next(self._ports)

    def initialize(self, host: str, metadata: str, protocol: str, device: str) -> int:
        """Begin."""
        del metadata, protocol, device
        self._host = host
        return 0

    def get_rpc_port(self) -> int:
        """Return the port in its session's name."""
        return int(self._port)

    def batch_register_memory(self, addresses: list[int], lengths: list[int]) -> int:
        """Accept all."""
        del addresses, lengths
        return 0

    def unregister_memory(self, address: int) -> int:
        """Accept it."""
        del address
        return 0

    def batch_unregister_memory(self, addresses: list[int]) -> int:
        """Accept all."""
        del addresses
        return 0

    def batch_transfer_sync_write(
        self, session: str, sources: list[int], destinations: list[int], lengths: list[int]
    ) -> int:
        """Copy."""
        if session in self.broken:
            return -1
        for source, destination, length in zip(sources, destinations, lengths, strict=True):
            ctypes.memmove(destination, source, length)
        return 0


def use_memory_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have vLLM take the stand-in for Mooncake's engine."""
    monkeypatch.setattr(mooncake_transfer, "TransferEngine", MemoryEngine)
    monkeypatch.setattr(mooncake_transfer, "_MOONCAKE_IMPORT_ERROR", None)
    monkeypatch.setattr(MemoryEngine, "broken", set())


def mooncake_config(directory: Path, role: str, port: int, **extra: Any) -> Any:
    """Return the configuration of an engine with the connector in that *role*, ``ec_port`` and extra configuration."""
    config = schedulers.vllm_config(directory)
    config.ec_transfer_config = ECTransferConfig(
        ec_connector="ECMooncakeConnector",
        ec_role=role,
        engine_id=f"{role}-engine",
        ec_ip=LOOPBACK,
        ec_port=port,
        ec_buffer_device="cpu",
        ec_buffer_size=1 << 20,
        ec_connector_extra_config={"mooncake_protocol": "tcp", "control_timeout_s": 10, **extra},
    )
    return config


def build_worker(config: Any) -> Any:
    """Return the connector of a worker, as vLLM builds it."""
    worker = ECConnectorFactory.create_connector(config, ECConnectorRole.WORKER)
    worker.start_worker_services()
    return worker


def tensor_of(item: str) -> torch.Tensor:
    """Return the encoder output of *item*."""
    return torch.full((ROWS, WIDTH), float(zlib.crc32(item.encode()) % 1000))


def expects(request: Any) -> Any:
    """Name a push for each item of *request*, as a router does; return it."""
    request.ec_transfer_params = {
        "ec_items": [
            {"mm_hash": each.identifier, "transfer_id": transfer_of(request.request_id, each.identifier)}
            for each in request.mm_features
        ]
    }
    return request


def transfer_of(request_id: str, item: str) -> str:
    """Return the id of a request's push of *item*."""
    return f"{request_id}/{item}"


class MooncakeEngine(ToyEcEngine):
    """A real scheduler with the real connector, whose worker-side connector loads tensors; the tokens are right only if they are.

    Attributes:
        loads: whether its worker makes loads.

    """

    def __init__(self, scheduler: Any, worker: Any, *, ahead: bool) -> None:
        super().__init__(scheduler, ahead=ahead)
        self.worker = worker
        self.loads = True
        self.tensors: dict[str, torch.Tensor] = {}

    def step_until(self, condition: Callable[[], object], what: str) -> None:
        """Step until *condition* holds; *what* is missing if it never does."""

        def stepped() -> bool:
            for _ in range(_STEPS_A_LOOK):
                self.step()
                if condition():
                    return True
            return False

        until(stepped, what)

    def step(self) -> None:
        """As an engine does it: nothing where there is nothing to do."""
        if self.scheduler.has_requests() or self.busy:
            super().step()

    def run_off(self) -> None:
        """Step until all requests have left."""
        self.step_until(lambda: not self.scheduler.requests and not self.busy, "requests are still there")

    def _execute(self, scheduled: Any) -> Any:
        for item in scheduled.free_encoder_mm_hashes:
            self.tensors.pop(item, None)
        output = super()._execute(scheduled)
        for item in self.cache:
            self.tensors.setdefault(item, tensor_of(item))
        return output

    def _load_items(self, metadata: Any) -> Any:
        if not self.loads:
            return None
        worker = self.worker
        worker.bind_connector_metadata(metadata)
        worker.start_load_caches(self.tensors)
        for item, tensor in self.tensors.items():
            if item not in self.cache:
                self.loaded.append(item)
                self.cache[item] = hash(item) if torch.equal(tensor, tensor_of(item)) else GARBAGE
        worker.get_finished(set())
        report = worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        return report


class Producer:
    """A producer's worker; its scheduler's orders are the test's."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.connector = build_worker(config)

    @property
    def manager(self) -> Any:
        """VLLM's table of its pushes."""
        return self.connector._worker._producer_pushes

    def push(self, request_id: str, *items: str, to: int, encoded: bool = True) -> None:
        """Order the push of *items* to a consumer's control port; without *encoded* they are only reserved."""
        specs = [
            ECMooncakePushSpec(
                mm_hash=item,
                nbytes=NBYTES,
                shape=(ROWS, WIDTH),
                dtype="float32",
                consumer_zmq=f"tcp://{LOOPBACK}:{to}",
                transfer_id=transfer_of(request_id, item),
                request_id=request_id,
            )
            for item in items
        ]
        self._step(ECMooncakeConnectorMetadata(pushes=specs), items if encoded else ())

    def step(self, *encoded: str) -> None:
        """Have a step that encodes these items and orders nothing."""
        self._step(ECMooncakeConnectorMetadata(), encoded)

    def end(self) -> None:
        """Wait until it has nothing to do."""

        def idle() -> bool:
            self.step()
            return not self.manager.pending

        until(idle, "a push has not ended")

    def _step(self, metadata: Any, encoded: tuple[str, ...]) -> None:
        connector = self.connector
        connector.bind_connector_metadata(metadata)
        connector.start_save_caches(encoder_cache={})
        for item in encoded:
            connector.save_caches({item: tensor_of(item)}, item)
        connector.get_finished(set())
        connector.build_connector_worker_meta()
        connector.clear_connector_metadata()


def new_port() -> int:
    """Return a free port for a control server."""
    return free_port()
