"""Fixtures of the encoder-cache connector: a consumer and a producer on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.ec.rig import Notes, Rig, attach, publisher, rig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.instrumentation.vllm.zmq_ec.producer.worker import ProducerWorker


@pytest.fixture
def producer() -> Iterator[ProducerWorker]:
    """Serve at a free port."""
    with publisher() as made:
        yield made


@pytest.fixture
def consumer(producer: ProducerWorker) -> Iterator[Rig]:
    """Consume from it."""
    with rig(producer.server.address) as made:
        yield made


@pytest.fixture
def near(producer: ProducerWorker) -> Iterator[Rig]:
    """Consume from a producer whose memory is known: it has answered."""
    with rig(producer.server.address, same_host=True) as made:
        attach(made, producer)
        yield made


@pytest.fixture
def notes(consumer: Rig) -> Notes:
    """Keep what the consumer reports; the test then drains the failures."""
    kept = Notes()
    consumer.consumer.observe(kept)
    return kept


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Build connectors by vLLM's factory."""
    # Other tests of this directory run without vLLM.
    from tests.support.ec.connectors import connectors

    with connectors(tmp_path) as build:
        yield build
