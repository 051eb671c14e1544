"""A consumer with vLLM's real scheduler and ECMooncakeConnector on both of its sides, and producers of the same process."""

from __future__ import annotations

import contextlib
import gc
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.ec import mooncake
from tests.support.ec.mooncake import MooncakeEngine, Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.engine.recorder import Recorder


@dataclass(frozen=True)
class Pair:
    """A consumer's engine and control port, and a producer."""

    engine: MooncakeEngine
    port: int
    producer: Producer

    def push(self, request_id: str, *items: str) -> None:
        """Push to the consumer; return when it is over on the producer's side."""
        self.producer.push(request_id, *items, to=self.port)
        self.producer.end()

    @property
    def reservations(self) -> Any:
        """VLLM's table of the consumer's worker."""
        return self.engine.worker._worker._reservations

    def lose(self, request_id: str, item: str) -> None:
        """Give an item that has come back before the scheduler asks for it."""
        assert self.reservations.cancel(mooncake.transfer_of(request_id, item), "")


@pytest.fixture
def make_pair(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Pair]]:
    """Build a pair; its consumer's scheduler is sync or async, and with *bare* the consumer has no Penstock."""
    from penstock.instrumentation.hooks.registry import registry
    from penstock.instrumentation.vllm.ec.hook import EcConnectorHook
    from penstock.instrumentation.vllm.install import ec_adapters
    from penstock.instrumentation.vllm.scheduler.hook import instrument

    from tests.support.engine import schedulers

    del recorder
    mooncake.use_memory_engine(monkeypatch)
    hook = EcConnectorHook(ec_adapters())
    hook.install()
    with contextlib.ExitStack() as stack:

        def make(kind: str = "sync", *, chunk: int = 1024, bare: bool = False, **extra: Any) -> Pair:
            port, other = mooncake.new_port(), mooncake.new_port()
            config = mooncake.mooncake_config(tmp_path, "ec_consumer", port, **extra)
            config.scheduler_config.async_scheduling = kind == "async"
            if bare:
                hook.uninstall()
            worker = mooncake.build_worker(config)
            stack.callback(worker.shutdown)
            of_vllm = schedulers.SCHEDULERS[kind]
            scheduler = schedulers.build(of_vllm if bare else instrument(of_vllm), config)
            stack.callback(scheduler.shutdown)
            if bare:
                hook.install()
            schedulers.make_room_for_items(scheduler, chunk=chunk)
            producer = Producer(mooncake.mooncake_config(tmp_path, "ec_producer", other, **extra))
            stack.callback(producer.connector.shutdown)
            return Pair(MooncakeEngine(scheduler, worker, ahead=kind == "async"), port, producer)

        yield make
    # vLLM closes its sockets with their context, which pyzmq warns of when they are collected.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    hook.uninstall()
    for name in ("ec_mooncake_scheduler", "ec_mooncake_worker"):
        registry.uninstall(name)
