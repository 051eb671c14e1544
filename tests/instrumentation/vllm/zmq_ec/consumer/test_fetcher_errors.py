"""A fetcher whose own code fails: it can be stopped, and no request waits longer than its limits."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import zmq
from penstock.instrumentation.vllm.zmq_ec.consumer.fetch_orders import FetchOrders
from penstock.instrumentation.vllm.zmq_ec.consumer.fetcher import Fetcher
from penstock.instrumentation.vllm.zmq_ec.consumer.transfer_driver import TransferDriver

from tests.support.ec.rig import feature, request, rig


def test_an_error_that_stays_is_logged_once_and_ends_with_the_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the log nor the processor belongs to a fetcher that fails in every turn; it can still be stopped."""
    turns = threading.Semaphore(0)

    def broken(_fetcher: Fetcher) -> None:
        turns.release()
        raise LookupError("broken")

    monkeypatch.setattr(Fetcher, "_turn", broken)
    with rig() as consumer:
        assert not consumer.consumer.ensure(request("r", feature("a", 4)), 0)
        for _ in range(5):
            assert turns.acquire(timeout=60)
        fetcher = consumer.consumer._fetcher
        assert fetcher is not None
        assert fetcher.stop()
    assert [each.getMessage() for each in caplog.records] == ["ZmqECConnector: the fetcher failed"]


@pytest.mark.parametrize(
    ("owner", "step"), [(FetchOrders, "drain"), (TransferDriver, "start"), (TransferDriver, "advance")]
)
def test_an_error_of_a_step_leaves_the_limits(
    owner: type, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that does not answer costs the probe's time, whatever else fails in each turn."""

    def broken(*args: Any) -> None:
        raise LookupError("broken")

    with zmq.Context() as context, context.socket(zmq.ROUTER) as silent:
        silent.setsockopt(zmq.LINGER, 0)
        port = silent.bind_to_random_port("tcp://127.0.0.1")
        with rig(f"127.0.0.1:{port}", probe_timeout=0.3) as consumer:
            asked = request("r", feature("a", 4))
            assert not consumer.consumer.ensure(asked, 0)
            assert silent.poll(60_000)  # it is asked
            monkeypatch.setattr(owner, step, broken)
            consumer.wait(asked)
            assert not consumer.consumer.has("a")
            monkeypatch.undo()
