"""Copies of ECCPUConnector's worker, on vLLM's class without its device; and how each end of a read is reported."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks.patch import Swaps
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec.cpu.copies import Copies, CpuWorkerMixin
from penstock.instrumentation.vllm.ec.cpu.loads import CpuLoads
from penstock.instrumentation.vllm.ec.observer import EcObserver
from vllm.distributed.ec_transfer.ec_connector.cpu.common import ECCPUConnectorMetadata
from vllm.distributed.ec_transfer.ec_connector.cpu.session import ConsumerSessionResults
from vllm.distributed.ec_transfer.ec_connector.cpu.worker import ECCPUWorker, Transfer

if TYPE_CHECKING:
    from tests.support.engine.recorder import Recorder

PEER = "10.0.0.9:5601"
INFO = {"peer_host": "10.0.0.9", "peer_port": 5601}


class Event:
    """An event of a device, which has happened when the test says so; 2.5 ms lie between any two."""

    def __init__(self, *, done: bool = False) -> None:
        self.done = done

    def query(self) -> bool:
        """Tell whether it has happened."""
        return self.done

    def elapsed_time(self, other: Event) -> float:
        """Return the milliseconds until *other*."""
        assert other.done
        return 2.5


def make_worker() -> Any:
    """Return vLLM's worker with what its bookkeeping of copies needs, and the mixin over it."""
    worker: Any = object.__new__(ECCPUWorker)
    worker._region = SimpleNamespace(block_size_bytes=256)
    worker._is_save_rank = True
    worker._stream_pool, worker._event_pool = [], []
    worker._buf_pool = SimpleNamespace(release=lambda _: None)
    worker._inflight_loads, worker._inflight_saves = deque(), deque()
    Swaps().swap(worker, CpuWorkerMixin)
    worker._penstock_copies = Copies(EcObserver("ECCPUConnector", c.COMPONENT_WORKER, 1))
    return worker


def transfer(completions: list[Any]) -> Any:
    """Return a batch that is under way."""
    return Transfer(Event(), Event(), completions, None, None, 0)


def test_copies_are_reported_when_the_device_has_made_them(recorder: Recorder) -> None:
    """Loads and saves by item: direction, bytes, the device's own time, the request of a load; in flight until then."""
    worker = make_worker()
    runtime.snapshots.add("ec_cpu.test", worker._penstock_copies.fill)
    metadata = ECCPUConnectorMetadata(saves={"c": [7, 8]}, loads={"a": (11, [1, 2, 3], (3, 64))})
    metadata.penstock_items = (("a", 3, "image", "first"),)
    worker._penstock_copies.on_loads(metadata.loads, 256, metadata.penstock_items)
    worker._penstock_copies.on_save("c", torch.zeros(2, 64).nbytes)
    loads, saves = transfer([11]), transfer(["c"])
    worker._inflight_loads.append(loads)
    worker._inflight_saves.append(saves)
    assert worker.build_connector_worker_meta() is None
    (gauge,) = recorder.snapshot().in_flight
    assert (gauge.peer.address, gauge.count, gauge.rank) == ("host", 2, 1)
    loads.end_event.done = saves.end_event.done = True
    found = worker.build_connector_worker_meta()
    assert (found.completed_loads, found.completed_saves) == ([11], ["c"])
    by_direction = {each["direction"]: each for each in recorder.transfers}
    received, sent = by_direction[c.DIRECTION_RECEIVE], by_direction[c.DIRECTION_SEND]
    assert (received["bytes"], received["request_id"], received["peer"]) == (3 * 256, "first", "host")
    assert (sent["bytes"], sent["peer"]) == (2 * 64 * 4, "host")
    assert {each["duration_nano"] for each in recorder.transfers} == {2_500_000}
    assert not recorder.snapshot().in_flight


def results(**more: Any) -> ConsumerSessionResults:
    """Return a session's results."""
    fields: dict[str, Any] = {
        "completed": set(),
        "tombstoned": set(),
        "quarantined": set(),
        "retryable": set(),
        "settled": [],
    }
    return ConsumerSessionResults(**(fields | more))


@pytest.mark.parametrize(
    ("answer", "ending", "down", "mode", "error_type", "moved"),
    [
        ("OK", "tombstoned", False, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_OTHER, True),
        ("OK", "quarantined", False, c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT, True),
        ("OK", "quarantined", True, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_REMOTE_RESET, True),
        ("", "retryable", False, c.FAILURE_MODE_PROBE, c.ERROR_TYPE_TIMEOUT, False),
        ("", "retryable", True, c.FAILURE_MODE_PROBE, c.ERROR_TYPE_REMOTE_RESET, False),
        ("NACK_INTERNAL", "tombstoned", False, c.FAILURE_MODE_PROBE, c.ERROR_TYPE_OTHER, False),
        ("NACK_VERSION", "tombstoned", False, c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_INCOMPATIBLE, False),
        ("NACK_NOT_READY", "retryable", False, 0, 0, False),
    ],
)
def test_how_a_read_ends(
    answer: str, ending: str, down: bool, mode: int, error_type: int, moved: bool, recorder: Recorder
) -> None:
    """Mode and error type by the producer's answer and the session's result; a read that had begun is a transfer."""
    part = SimpleNamespace(_in_flight=set(), _step_completed=set(), _deferred_since={})
    loads = CpuLoads(part, lambda _: None)
    loads.observe(EcObserver("ECCPUConnector", c.COMPONENT_SCHEDULER))
    loads.asking = "first"
    loads.on_asked("a", INFO, 512, SimpleNamespace())
    if answer:
        loads.on_answer("a", answer, began=answer == "OK")
    in_flight = [(peer.address, count) for peer, count, _ in loads.in_flight()]
    assert in_flight == ([(PEER, 1)] if moved else [])
    loads.on_results(results(**{ending: {"a"}}), peer_is_down=down)
    assert not loads.in_flight()
    assert [each["result"] for each in recorder.transfers] == ([c.TRANSFER_RESULT_ERROR] if moved else [])
    failures = recorder.take("transfer_failure", "first")
    assert [(each.mode, each.error_type, each.peer.address) for each in failures] == (
        [(mode, error_type, PEER)] if mode else []
    )
