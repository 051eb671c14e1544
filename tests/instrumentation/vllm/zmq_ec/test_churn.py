"""Many requests, little memory, producers that come and go: all loaded items are right, and every wait ends."""

from __future__ import annotations

import contextlib
import random

import pytest
import torch

from demo.common.processes import free_port
from tests.support.ec.rig import HIDDEN, feature, publisher, request, rig, wait_for

ITEMS = 60
REQUESTS = 120
CAPACITY = 3 << 20


def rows(item: int) -> int:
    """Return how large an item is."""
    return (1, 40, 300, 900)[item % 4]


def content(item: int) -> torch.Tensor:
    """Return what it must be."""
    return torch.full((rows(item), HIDDEN), float(item))


class Churn:
    """Two producers, a consumer, and the requests of a seed."""

    def __init__(self, seed: int, running: contextlib.ExitStack) -> None:
        self.choose = random.Random(seed)
        self.running = running
        self.producers = [running.enter_context(publisher(CAPACITY, port=free_port())) for _ in range(2)]
        self.addresses = [each.server.address for each in self.producers]
        short = {"missing_for": 0.02, "bad_for": 0.05, "start_timeout": 0.2, "probe_timeout": 0.5}
        self.consumer = running.enter_context(rig(*self.addresses, region_bytes=2 << 20, **short))
        self.waiting: list[tuple[str, list[int]]] = []
        self.in_vllm: list[str] = []
        self.begun = self.loaded = 0

    def arrive(self) -> None:
        """Take in a request; most of its items are encoded somewhere."""
        if self.begun == REQUESTS or len(self.waiting) == 8:
            return
        items = self.choose.sample(range(ITEMS), self.choose.choice([1, 1, 2, 3]))
        for item in items:
            if self.choose.random() < 0.8:
                self.choose.choice(self.producers).save(f"i{item}", content(item))
        self.waiting.append((f"r{self.begun}", items))
        self.begun += 1

    def restart(self) -> None:
        """Restart a producer; it comes back with nothing."""
        if self.choose.random() < 0.02:
            index = self.choose.randrange(2)
            self.producers[index].close()
            port = int(self.addresses[index].rpartition(":")[2])
            self.producers[index] = self.running.enter_context(publisher(CAPACITY, port=port))

    def schedule(self) -> set[int]:
        """Schedule those that need not wait; return what was promised to be loaded."""
        connector = self.consumer.consumer
        promised = set()
        for entry in list(self.waiting):
            name, items = entry
            if not connector.ensure(request(name, *(feature(f"i{item}", rows(item)) for item in items)), 0):
                continue
            self.waiting.remove(entry)
            for item in items:
                if connector.has(f"i{item}"):
                    promised.add(item)
                connector.on_allocated(f"i{item}", name)
                self.in_vllm.append(f"i{item}")
        return promised

    def step(self) -> bool:
        """Run a step; tell whether all requests are done."""
        self.arrive()
        self.restart()
        promised = self.schedule()
        orders, region = self.consumer.consumer.end_step(self.in_vllm[:-10])
        del self.in_vllm[:-10]
        cache: dict[str, torch.Tensor] = {}
        loader = self.consumer.loaders[0]
        loader.load(orders, region, cache, "cpu")
        assert cache.keys() == {f"i{item}" for item in promised}
        for item in promised:
            assert torch.equal(cache[f"i{item}"], content(item))
        self.loaded += len(promised)
        report = loader.report()
        if report is not None:
            self.consumer.consumer.on_report(report)
        return self.begun == REQUESTS and not self.waiting


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)]
)
def test_churn(seed: int) -> None:
    """Items share slots and steps; some are never saved, some are evicted on either side, producers restart."""
    with contextlib.ExitStack() as running:
        churn = Churn(seed, running)
        wait_for(churn.step, "some requests wait for ever")
        assert churn.loaded > REQUESTS // 10
        assert churn.consumer.consumer.drain_unavailable() == set()
