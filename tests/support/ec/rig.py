"""A consumer of encoder outputs with real sockets and shared memory, and what surrounds it, made up: requests, producers."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Expected
from penstock.instrumentation.vllm.zmq_ec.consumer.scheduler import ConsumerScheduler
from penstock.instrumentation.vllm.zmq_ec.consumer.worker import ConsumerWorker
from penstock.instrumentation.vllm.zmq_ec.producer import host_cache
from penstock.instrumentation.vllm.zmq_ec.producer.worker import ProducerWorker
from penstock.instrumentation.vllm.zmq_ec.settings import ConsumerSettings

from tests.support.ec.tensors import HIDDEN, MODEL, tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest
    from penstock.instrumentation.vllm.ec.protocol import EcFailure, EcTransfer
    from penstock.instrumentation.vllm.zmq_ec.consumer.item_records import LoadOrder
    from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import RegionName
    from penstock.instrumentation.vllm.zmq_ec.wire.curve import ClientKeys, ServerKeys

Orders: TypeAlias = "tuple[tuple[LoadOrder, ...], RegionName | None]"

__all__ = [
    "HIDDEN",
    "MODEL",
    "PATIENT",
    "Notes",
    "Rig",
    "attach",
    "feature",
    "leave_unsealed",
    "publisher",
    "request",
    "rig",
    "tensor",
    "wait_for",
]

DEADLINE = 60.0
# Generous, because a machine that tests is busy; a test of a time-out sets its own.
PATIENT = {"probe_timeout": 30.0, "start_timeout": 30.0, "idle_timeout": 30.0, "missing_for": 60.0}


def wait_for(what: Callable[[], Any], why: str = "it did not happen") -> Any:
    """Return what *what* returns once that is true."""
    end = time.monotonic() + DEADLINE
    while not (found := what()):
        assert time.monotonic() < end, why
        time.sleep(0.001)
    return found


def feature(item: str, rows: int, *, offset: int = 0, media: bool = True) -> Any:
    """Return a feature of a request, as far as a connector looks at it."""
    position = SimpleNamespace(offset=offset, length=rows, get_num_embeds=lambda: rows)
    data = {"pixels": SimpleNamespace(data=1)} if media else None
    return SimpleNamespace(identifier=item, mm_position=position, data=data, modality="image")


def request(name: str, *features: Any, params: Any = None) -> Any:
    """Return a request, as far as a connector looks at it."""
    return SimpleNamespace(request_id=name, mm_features=list(features), ec_transfer_params=params)


@dataclass
class Notes:
    """An ``EcListener`` that keeps what is reported."""

    transfers: list[EcTransfer] = field(default_factory=list)
    hand_outs: list[EcTransfer] = field(default_factory=list)
    probes: list[tuple[str, str, int]] = field(default_factory=list)
    failures: list[EcFailure] = field(default_factory=list)

    def received(self, transfer: EcTransfer) -> None:
        """Keep it."""
        self.transfers.append(transfer)

    def sent(self, transfer: EcTransfer) -> None:
        """Keep it."""
        self.hand_outs.append(transfer)

    def probed(self, item: str, peer: Any, result: int, start_ns: int, end_ns: int, request_id: str) -> None:
        """Keep it."""
        assert 0 < start_ns <= end_ns
        self.probes.append((item, peer.address, result))

    def failed(self, failure: EcFailure) -> None:
        """Keep it."""
        self.failures.append(failure)


class Rig:
    """A consumer and one of its workers; ``step`` is what vLLM does with a request in one step."""

    def __init__(
        self,
        *producers: str,
        ranks: int = 1,
        dtype: str = "float32",
        keys: ClientKeys | None = None,
        **settings: Any,
    ) -> None:
        given = {"region_bytes": 4 << 20, "same_host": False, **PATIENT, **settings}
        self.consumer = ConsumerScheduler(
            ConsumerSettings(producers=producers, **given),
            Expected(MODEL, dtype, HIDDEN),
            ranks=ranks,
            has_media=lambda each: each.data is not None,
            keys=keys,
        )
        self.loaders = [ConsumerWorker() for _ in range(ranks)]
        self.encoder_caches: list[dict[str, torch.Tensor]] = [{} for _ in range(ranks)]

    def greet(self) -> None:
        """Run a step that loads nothing, as any engine has before long: every rank maps the region."""
        self.run(self.consumer.end_step([]))

    def wait(self, asked: Any, computed: int = 0) -> None:
        """Poll as the scheduler does, until the request need not wait."""
        wait_for(lambda: self.consumer.ensure(asked, computed), "the request still waits")

    def settle(self, asked: Any, computed: int = 0) -> None:
        """Poll until the request's items are all known, whatever is known of them."""
        items = [each.identifier for each in asked.mm_features]

        def settled() -> bool:
            self.consumer.ensure(asked, computed)
            return not any(map(self.consumer.items.is_pending, items))

        wait_for(settled, "an item is still pending")

    def orders(self, *items: str) -> Orders:
        """Allocate the items, as the scheduler does when it schedules them, and end the step."""
        for item in items:
            self.consumer.has(item)
            self.consumer.on_allocated(item, "r")
        return self.consumer.end_step([])

    def load(self, *items: str) -> list[torch.Tensor]:
        """Load the items in one step on every rank; return the first rank's."""
        self.run(self.orders(*items))
        return [self.encoder_caches[0][item] for item in items]

    def run(self, orders: Orders) -> None:
        """Do what the ranks do in a step."""
        for loader, cache in zip(self.loaders, self.encoder_caches, strict=True):
            loader.load(*orders, cache, "cpu")
            report = loader.report()
            if report is not None:
                self.consumer.on_report(report)

    def close(self) -> None:
        """End it."""
        for loader in self.loaders:
            loader.close()
        self.consumer.close()


@contextlib.contextmanager
def rig(*producers: str, **settings: Any) -> Iterator[Rig]:
    """Yield a consumer of these producers."""
    made = Rig(*producers, **settings)
    made.greet()
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def publisher(
    capacity: int = 64 << 20, model: bytes = MODEL, port: int = 0, keys: ServerKeys | None = None
) -> Iterator[ProducerWorker]:
    """Yield a producer on loopback."""
    made = ProducerWorker("127.0.0.1", port, model, capacity, keys)
    try:
        yield made
    finally:
        made.close()


FIRST = "the first"


def attach(consumer: Rig, producer: ProducerWorker) -> None:
    """Fetch an item: the answer about the memory comes before that about the item."""
    producer.save(FIRST, tensor(4, seed=9))
    consumer.wait(request("first", feature(FIRST, 4)))
    assert torch.equal(consumer.load(FIRST)[0], tensor(4, seed=9))


def leave_unsealed(producer: ProducerWorker, patch: pytest.MonkeyPatch) -> None:
    """Save items without checksums from now on: as if their place in the queue of those to be sealed were lost."""
    patch.setattr(host_cache, "SMALL", 0)
    patch.setattr(producer.server, "seal", lambda item, nbytes: None)
