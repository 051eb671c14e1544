"""Fixtures of the encoder-cache connector: a consumer and a producer on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.ec.rig import Notes, Rig, publisher, rig

if TYPE_CHECKING:
    from collections.abc import Iterator

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
def notes(consumer: Rig) -> Notes:
    """Keep what the consumer reports; the test then drains the failures."""
    kept = Notes()
    consumer.consumer.observe(kept)
    return kept
