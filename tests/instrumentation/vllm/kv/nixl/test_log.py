"""vLLM's own log lines about NIXL failures: unlimited without a policy, else one a mode, peer and interval."""

from __future__ import annotations

import logging
import pickle
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.runtime import runtime
from penstock.rules.policy import NO_POLICY, Policy, Telemetry

from tests.support.kv.nixl_faults import break_agent, refuse
from tests.support.kv.nixl_pair import Engine, connect, instrumented_engines, prepare
from tests.support.seconds import SecondsClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.engine.recorder import Recorder

    MakeEngine = Callable[..., Engine]

_LOGGERS = [
    logging.getLogger(f"vllm.distributed.kv_transfer.kv_connector.v1.nixl.{name}")
    for name in ("base_worker", "pull_worker")
]


@contextmanager
def lines() -> Iterator[list[str]]:
    """Collect what vLLM's workers log about failures, without the context."""
    found: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if message.startswith("NIXL transfer failure: "):
                found.append(message.removeprefix("NIXL transfer failure: ").partition(" | ")[0])

    handler = Collect()
    for logger in _LOGGERS:
        logger.addHandler(handler)
    try:
        yield found
    finally:
        for logger in _LOGGERS:
            logger.removeHandler(handler)


@pytest.fixture
def make_engine(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeEngine]:
    """Build instrumented engines."""
    del recorder
    prepare(monkeypatch, tmp_path)
    with instrumented_engines(tmp_path, monkeypatch) as make:
        yield make


def test_the_policy_limits_the_lines(
    make_engine: MakeEngine, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failure is an event; only the log is limited, by mode and peer, with the number suppressed."""
    one, two, decode = make_engine("kv_producer"), make_engine("kv_producer"), make_engine("kv_consumer")
    for peer in (one, two):
        connect(peer, decode)
    clock = SecondsClock()
    decode.worker._penstock.log_limit._clock = clock
    requests = iter(range(100))

    def fail(peer: Engine, times: int = 1) -> None:
        for _ in range(times):
            decode.read(f"r{next(requests)}", peer)

    def limit(seconds: float | None) -> None:
        decode.order(penstock_telemetry=Telemetry(failure_log_interval=seconds))

    with monkeypatch.context() as broken, lines() as found:
        break_agent(broken, decode, "make_prepped_xfer", refuse)
        fail(one, 3)
        assert len(found) == 3
        assert len(set(found)) == 1
        found.clear()
        limit(5.0)
        fail(one, 3)
        fail(two, 2)
        assert len(found) == 2
        clock.now += 5.0
        fail(one)
        assert found[2:] == [f"{found[0]} (2 similar messages suppressed)"]
        found.clear()
        limit(None)
        fail(two, 2)
        assert [line.partition(" (")[2] for line in found] == ["1 similar messages suppressed)", ""]
    failed = [event for event in recorder.events if event.WhichOneof("body") == "transfer_failure"]
    assert len(failed) == next(requests)


def test_paused_hooks_let_vllm_log(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill switch brings vLLM's own behaviour back at once."""
    prefill, decode = make_engine("kv_producer"), make_engine("kv_consumer")
    connect(prefill, decode)
    decode.order(penstock_telemetry=Telemetry(failure_log_interval=60.0))
    with monkeypatch.context() as broken, lines() as found:
        break_agent(broken, decode, "make_prepped_xfer", refuse)
        decode.read("a", prefill)
        decode.read("b", prefill)
        assert len(found) == 1
        monkeypatch.setattr(runtime, "active", False)
        decode.read("c", prefill)
        decode.read("d", prefill)
        assert len(found) == 3


def test_all_ranks_switch_in_one_step(
    make_engine: MakeEngine, make_scheduler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the real scheduler puts on one step's metadata reaches both ranks' workers with that step, and only once."""
    ranks = [make_engine("kv_consumer"), make_engine("kv_consumer")]
    scheduler = make_scheduler("sync")

    def step() -> list[float | None]:
        scheduled = scheduler.schedule()
        for rank in ranks:
            # As vLLM sends a step to its workers.
            rank.step(pickle.loads(pickle.dumps(scheduled.kv_connector_metadata)))
        return [rank.worker._penstock.log_limit.interval for rank in ranks]

    assert step() == [None, None]
    limited = Policy(hash="h", telemetry=Telemetry(failure_log_interval=7.0))
    with runtime.policy.step():
        scheduled = scheduler.schedule()
        swapping = threading.Thread(target=runtime.policy.swap, args=(limited, 10.0))
        swapping.start()
    swapping.join()
    for rank in ranks:
        rank.step(scheduled.kv_connector_metadata)
    assert [rank.worker._penstock.log_limit.interval for rank in ranks] == [None, None]
    assert step() == [7.0, 7.0]
    assert runtime.policy.swap(NO_POLICY, 10.0)
    assert step() == [None, None]
