"""What ``ZmqECConnector`` adds to vLLM's own statistics: real transfers, and vLLM's own reader of them."""

from __future__ import annotations

import pickle
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from penstock.instrumentation.vllm.zmq_ec.consumer import reporting

from tests.support.ec.connectors import WIDTH, pair, save
from tests.support.ec.rig import feature, request, wait_for
from tests.support.engine.versions import VERSION

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from penstock.instrumentation.vllm.zmq_ec.connector import ZmqECConnector

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(VERSION < (0, 31), reason="this vLLM has no statistics of such connectors")


def logged(config: Any, *steps: dict[str, Any]) -> str:
    """Return the line that vLLM logs of the statistics of several steps."""
    from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorLogging

    lines: list[str] = []
    reader = ECConnectorLogging(config.ec_transfer_config)
    reader.connector_cls = ZmqECConnector
    for data in steps:
        reader.observe(pickle.loads(pickle.dumps(data)))
    reader.log(lambda text, words: lines.append(text % words))
    (line,) = lines
    return line


def test_a_transfer_and_a_probe(make: Callable[..., Any]) -> None:
    """Each once, on the scheduler's side, where every runner's statistics are read; without a listener."""
    producer, scheduler = pair(make)
    assert scheduler.get_ec_connector_stats() is None
    sent = torch.randn(5, WIDTH)
    save(producer, "a", sent)
    asked = request("r", feature("a", 5))
    wait_for(lambda: scheduler.ensure_cache_available(asked, 0))
    stats = scheduler.get_ec_connector_stats()
    assert not stats.is_empty()
    (seconds,), (size,) = stats.data["transfer_duration"], stats.data["bytes_transferred"]
    assert seconds > 0
    assert size == sent.nbytes
    assert stats.data["num_probe_hits"] == 1
    assert scheduler.get_ec_connector_stats() is None
    assert producer.get_ec_connector_stats() is None


def test_vllm_reads_them(make: Callable[..., Any]) -> None:
    """Several steps are one line of its log."""
    scheduler = make("SCHEDULER", "ec_consumer", producers=["127.0.0.1:1"])
    first = {"transfer_duration": [0.5], "bytes_transferred": [2 << 20], "num_probe_hits": 1}
    second = {"transfer_duration": [0.5], "bytes_transferred": [4 << 20], "num_failed_probes": 2}
    assert logged(scheduler._vllm_config, first, second) == (
        "EC Transfer metrics: Num successful transfers=2, Avg xfer time (ms)=500.0, Avg MB per transfer=3.0, "
        "Throughput (MB/s)=6.0, Num failed transfers=0, Num probe hits=1, Num probe misses=0, Num failed probes=2"
    )
    empty = ZmqECConnector.build_ec_connector_stats()
    assert empty.is_empty()
    assert set(empty.reduce().values()) == {0}


def test_samples_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that takes no step keeps no more of them; counts go on."""
    monkeypatch.setattr(reporting, "SAMPLES_MAX", 2)
    statistics = reporting.StepStatistics()
    for _ in range(3):
        statistics.add_transfer(1.0, 8)
        statistics.count("num_failed_transfers")
    taken = statistics.take()
    assert taken is not None
    assert taken["bytes_transferred"] == [8, 8]
    assert taken["num_failed_transfers"] == 3
    assert statistics.take() is None
