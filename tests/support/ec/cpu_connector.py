"""vLLM's own ECCPUConnector, as it runs without an accelerator: its schedulers over real NIXL and ZMQ, without its workers' copies.

The copies to the device are what vLLM's worker does there; here the toy engine reads the shared memory itself.
"""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

from demo.common.nixl_poll_pause import pause_progress_threads
from demo.common.steps import until
from demo.servers import LOOPBACK
from tests.support.ec.fake_ec import ToyEcEngine
from tests.support.ec.mooncake import NBYTES, ROWS, WIDTH, tensor_of
from tests.support.engine import schedulers
from tests.support.engine.fake_worker import GARBAGE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    import torch
    from vllm.config import ECTransferConfig
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
    from vllm.distributed.ec_transfer.ec_connector.cpu.common import ECCPUWorkerMetadata
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

_STEPS_A_LOOK = 20
_ITEMS = 8


def prepare(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Make this process fit for it: NIXL over TCP, a producer's side channel at *port*."""
    pause_progress_threads()
    monkeypatch.setenv("UCX_TLS", "tcp,self,sm")
    monkeypatch.setenv("UCX_LOG_LEVEL", "error")
    monkeypatch.setenv("VLLM_EC_SIDE_CHANNEL_HOST", LOOPBACK)
    monkeypatch.setenv("VLLM_EC_SIDE_CHANNEL_PORT", str(port))


def cpu_config(directory: Path, monkeypatch: pytest.MonkeyPatch, role: str, **extra: Any) -> Any:
    """Return the configuration of an engine with the connector in that *role*; *extra*: its extra configuration."""
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    config = schedulers.vllm_config(directory)
    config.ec_transfer_config = ECTransferConfig(
        ec_connector="ECCPUConnector",
        ec_role=role,
        ec_connector_extra_config={"ec_cpu_bytes": _ITEMS * NBYTES, **extra},
    )
    # As a producer's start would have measured it.
    config.ec_transfer_config.mm_encoder_output_widths = {"image": WIDTH}
    # The connector refuses to be built for another model runner; no runner is built here.
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    return config


class CpuProducer:
    """A producer's scheduler side; its worker's saves are the test's."""

    def __init__(self, config: Any, port: int) -> None:
        self.port = port
        self.connector = ECConnectorFactory.create_connector(config, ECConnectorRole.SCHEDULER)
        self.part = self.connector.connector_scheduler

    def save(self, item: str, *, ready: bool = True) -> None:
        """Put *item* into its memory; it may be read when it is *ready*."""
        # Until 0.31 an entry has no shape.
        shape = [(ROWS, WIDTH)] if "shape" in inspect.signature(self.part._cache.alloc).parameters else []
        entry = self.part._cache.alloc(item, ROWS, *shape)
        write(self.part, entry.block_ids, tensor_of(item))
        if ready:
            self.part._cache.mark_ready(item)

    def announced(self, request: Any, **more: Any) -> Any:
        """Name this producer for each item of *request*, as a router does; return it."""
        request.ec_transfer_params = {
            each.identifier: {
                "peer_host": LOOPBACK,
                "peer_port": self.port,
                "size_bytes": NBYTES,
                "shape": [ROWS, WIDTH],
                **more,
            }
            for each in request.mm_features
        }
        return request

    def step(self) -> None:
        """Answer what has come."""
        self.connector.build_connector_meta(None)


class CpuEngine(ToyEcEngine):
    """A real scheduler with the real connector; the tokens are right only if what it loads is."""

    def __init__(self, scheduler: Any, *, ahead: bool) -> None:
        super().__init__(scheduler, ahead=ahead, keeps_held=True)
        self.producers: list[CpuProducer] = []

    @property
    def part(self) -> Any:
        """The connector's scheduler."""
        return self.scheduler.ec_connector.connector_scheduler

    def step(self) -> None:
        """As engines do, each at its own pace; its producers answer."""
        for each in self.producers:
            each.step()
        if self.scheduler.requests or self.busy:
            super().step()

    def step_until(self, condition: Callable[[], object], what: str) -> None:
        """Step until *condition* holds; *what* is missing if it never does."""

        def stepped() -> bool:
            for _ in range(_STEPS_A_LOOK):
                self.step()
                if condition():
                    return True
            return False

        until(stepped, what)

    def run_off(self) -> None:
        """Step until all requests have left; the connector keeps a step under way for its producers."""
        self.step_until(lambda: not self.scheduler.requests, "requests are still there")

    def _load_items(self, metadata: Any) -> Any:
        done = []
        # Until 0.31 a load has no shape.
        for item, (transfer_id, blocks, *shapes) in metadata.loads.items():
            shape = shapes[0] if shapes else (ROWS, WIDTH)
            done.append(transfer_id)
            if item not in self.cache:
                self.loaded.append(item)
                right = torch.equal(read(self.part, blocks, shape), tensor_of(item))
                self.cache[item] = hash(item) if right else GARBAGE
        for item, blocks in metadata.saves.items():
            write(self.part, blocks, tensor_of(item))
        saved = list(metadata.saves)
        return ECCPUWorkerMetadata(saved, done) if done or saved else None


def write(part: Any, blocks: Any, tensor: torch.Tensor) -> None:
    """Put *tensor* into *blocks* of the shared memory."""
    part._region.blocks[list(blocks)] = tensor.view(torch.int8).view(len(blocks), -1)


def read(part: Any, blocks: Any, shape: tuple[int, int]) -> torch.Tensor:
    """Return what is in *blocks* of the shared memory."""
    held: torch.Tensor = part._region.blocks[list(blocks)]
    return held.contiguous().view(torch.float32).reshape(shape)
