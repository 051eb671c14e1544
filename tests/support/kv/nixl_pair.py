"""Two real NIXL workers in this process: vLLM's own connector, real agents over TCP, a real side channel."""

from __future__ import annotations

import gc
import os
import threading
import time
import warnings
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import zmq
from penstock.instrumentation.hooks.registry import registry
from penstock.instrumentation.vllm.kv.hook import KvConnectorHook
from penstock.instrumentation.vllm.requests.observer import SchedulerObserver
from penstock.rules.deadlines import WaitKind

from demo.common.nixl_poll_pause import pause_progress_threads
from demo.common.processes import free_port
from tests.support.engine import schedulers
from tests.support.engine.schedulers import BLOCK, BLOCKS
from tests.support.engine.versions import TELLS_FAILED_RECEIVES, transfer_results

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_scheduler, base_worker
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
        HeartbeatInfo,
        NixlConnectorMetadata,
        ReqMeta,
    )
    from vllm.distributed.parallel_state import (
        ensure_model_parallel_initialized,
        init_distributed_environment,
        model_parallel_is_initialized,
    )

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pytest
    from penstock.instrumentation.orders import Drill

HOST = "127.0.0.1"
DEADLINE = 60.0
HEADS = 2


def prepare(monkeypatch: pytest.MonkeyPatch, directory: Path, transports: str = "tcp,self,sm") -> None:
    """Make this process fit for NIXL workers: a world of one rank, those UCX transports, no core pinned or kept busy."""
    pause_progress_threads()
    monkeypatch.setattr(base_scheduler, "zmq_ctx", _listening(base_scheduler.zmq_ctx))
    monkeypatch.setenv("UCX_TLS", transports)
    monkeypatch.setenv("UCX_LOG_LEVEL", "error")
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", HOST)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    if not model_parallel_is_initialized():
        with set_current_vllm_config(config(directory, "kv_consumer")):
            init_distributed_environment(
                world_size=1,
                rank=0,
                distributed_init_method=(directory / "world").as_uri(),
                local_rank=0,
                backend="gloo",
            )
            ensure_model_parallel_initialized(1, 1)


def _listening(zmq_ctx: Callable[..., Any]) -> Callable[..., Any]:
    """Return vLLM's *zmq_ctx* for the side channel: its thread looks every 50 ms whether it is to end, not every second."""

    @contextmanager
    def listening(*arguments: Any) -> Iterator[Any]:
        with zmq_ctx(*arguments) as socket:
            yield _Listening(socket)

    return listening


class _Listening:
    """A socket with a short time limit on receives."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def setsockopt(self, option: int, value: Any) -> None:
        """Set an option; the time limit on receives is at most 50 ms."""
        self._socket.setsockopt(option, min(value, 50) if option == zmq.RCVTIMEO else value)


def config(directory: Path, role: str, connector: str = "NixlConnector") -> Any:
    """Return the configuration of one engine; engines of one directory serve the same model."""
    found = schedulers.vllm_config(directory, kv_connector=connector, kv_role=role, kv_buffer_device="cpu")
    found.cache_config.kv_cache_layout = "LBHNC"
    return found


class Engine:
    """One rank's worker-side connector with a small KV cache, and the side channel that its engine is reached by."""

    def __init__(
        self,
        directory: Path,
        role: str,
        monkeypatch: pytest.MonkeyPatch,
        connector: str = "NixlConnector",
        *,
        size: int = 1,
        beside: Sequence[Engine] = (),
    ) -> None:
        """Build the rank behind those *beside*, of *size* tensor-parallel ones; the last lets the first answer handshakes."""
        self.size = size
        self.port: int = beside[0].port if beside else free_port()
        self._answers: list[Any] = []
        # Until 0.29 a worker tells a failed load by its blocks.
        self._local: dict[str, set[int]] = {}
        monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(self.port))
        monkeypatch.setattr(base_worker, "get_tensor_model_parallel_rank", lambda: len(beside))
        monkeypatch.setattr(base_worker, "get_tensor_model_parallel_world_size", lambda: size)
        self.config = config(directory, role, connector)
        self.config.parallel_config.tensor_parallel_size = size
        self.config.parallel_config.rank = len(beside)
        if beside:
            self.config.kv_transfer_config.engine_id = beside[0].id
        caches = schedulers.kv_cache_config(heads=HEADS // size)
        with set_current_vllm_config(self.config):
            self.connector: Any = KVConnectorFactory.create_connector(
                self.config, KVConnectorRole.WORKER, caches
            )
            self.cache = torch.rand(BLOCKS, HEADS // size, BLOCK, 64)
            self.connector.register_kv_caches({"layer": self.cache})
            self._listener: Any = KVConnectorFactory.create_connector(
                self.config, KVConnectorRole.SCHEDULER, caches
            )
        self.observer = SchedulerObserver(connector)
        self._listener._penstock = SimpleNamespace(observer=self.observer)
        ranks = [*beside, self]
        if len(ranks) == size:
            ranks[0]._listener.set_xfer_handshake_metadata_pp_aware(
                {(0, rank): each.connector.get_handshake_metadata() for rank, each in enumerate(ranks)}
            )

    @property
    def worker(self) -> Any:
        """The NIXL worker inside the connector."""
        return self.connector.connector_worker

    @property
    def id(self) -> str:
        """The connector's own id of the engine."""
        return str(self.worker.engine_id)

    @property
    def address(self) -> str:
        """The peer's address as others see it."""
        return f"{HOST}:{self.port}"

    def lease(self, request_id: str, seconds: float = 60.0) -> None:
        """Keep blocks for a reader of *request_id*."""
        self._answers.clear()
        metadata = NixlConnectorMetadata()
        metadata.reqs_in_batch = {request_id}
        metadata.reqs_to_send = {request_id: time.perf_counter() + seconds}
        self.step(metadata)

    def read(
        self,
        request_id: str,
        peer: Any,
        *,
        local: Sequence[int] = (1, 2, 3),
        remote: Sequence[int] = (4, 5, 6),
        port: int | None = None,
        engine_id: str = "",
        **orders: Any,
    ) -> Any:
        """Ask to read blocks of *peer*, with the scheduler's *orders*; returns the step's answer. No blocks: only notify it."""
        self._answers.clear()
        self._local[request_id] = set(local)
        metadata = _with_orders(orders)
        metadata.add_new_req_to_recv(
            request_id,
            (list(local),) if local else (),
            {
                "remote_block_ids": (list(remote),),
                "remote_engine_id": engine_id or peer.id,
                "remote_request_id": f"prefill-of-{request_id}",
                "remote_host": HOST,
                "remote_port": port or peer.port,
                "tp_size": getattr(peer, "size", 1),
            },
            **_awaiting(bool(local)),
        )
        return self.step(metadata)

    def await_push(self, request_id: str, peer: Engine, **orders: Any) -> None:
        """Push mode: tell *peer* where to write what it computes for a request; ids match without their suffixes."""
        self._answers.clear()
        self._local[request_id] = {1, 2, 3}
        metadata = _with_orders(orders)
        metadata.add_new_req_to_recv(
            request_id,
            ([1, 2, 3],),
            {
                "remote_block_ids": (),
                "remote_engine_id": peer.id,
                "remote_request_id": f"prefill-of-{request_id}",
                "remote_host": HOST,
                "remote_port": peer.port,
                "tp_size": peer.size,
            },
            **_awaiting(True),
        )
        metadata.push_registrations = {
            request_id: {
                "request_id": request_id,
                "decode_engine_id": self.id,
                "decode_host": HOST,
                "decode_port": self.port,
                "decode_tp_size": self.size,
                "local_block_ids": [[1, 2, 3]],
                "remote_engine_id": peer.id,
                "remote_host": HOST,
                "remote_port": peer.port,
                "remote_tp_size": peer.size,
            }
        }
        self.step(metadata)

    def push(self, request_id: str) -> None:
        """Push mode: the blocks of a request are computed and wait for its reader's registration."""
        metadata = NixlConnectorMetadata()
        metadata.reqs_in_batch = {request_id}
        metadata.reqs_to_send = {request_id: time.perf_counter() + 60.0}
        metadata.push_finished_blocks = {request_id: ([4, 5, 6],)}
        self.step(metadata)

    def both_until(self, other: Engine, done: Callable[[Any, Any], object], what: str) -> None:
        """Step both engines until *done* of their answers is true."""
        self.step_until(lambda mine: done(mine, other.step()), what)

    def heartbeat(self, engine_id: str, port: int) -> None:
        """Send a heartbeat, which asks for a handshake if there was none."""
        metadata = NixlConnectorMetadata()
        metadata.heartbeat_by_engine = {engine_id: HeartbeatInfo({"x"}, HOST, port, 1)}
        self.step(metadata)

    def cancel(self, *request_ids: str, wait: WaitKind = WaitKind.START) -> Any:
        """Order loads to be given up that are over a deadline, as the scheduler does with a step; returns the step's answer."""
        return self.order(penstock_cancel=dict.fromkeys(request_ids, wait))

    def drill(self, *drills: Drill) -> None:
        """Put fault drills in the place of the present ones, as the scheduler does with a step."""
        self.order(penstock_drills=drills)

    def order(self, **orders: Any) -> Any:
        """Put orders on a step's metadata, by the names of ``messages/step_metadata.py``; returns the step's answer."""
        return self.step(_with_orders(orders))

    @contextmanager
    def handshakes_held(self) -> Iterator[None]:
        """Keep the handshake's thread busy, so that handshakes wait in its queue."""
        release = threading.Event()
        busy = self.worker._handshake_initiation_executor.submit(release.wait, DEADLINE)
        try:
            yield
        finally:
            release.set()
            busy.result(DEADLINE)

    def step(self, metadata: Any = None) -> Any:
        """Do what a step of the model does with the connector; returns (results, invalid blocks, our report)."""
        self.connector.bind_connector_metadata(metadata or NixlConnectorMetadata())
        self.connector.start_load_kv(None)
        results = transfer_results(self.connector, set())
        self.connector.get_kv_connector_stats()
        bad = self.connector.get_block_ids_with_load_errors()
        if not TELLS_FAILED_RECEIVES:
            ended = results.finished_recving
            results.failed_recving = {each for each in ended if bad & self._local.get(each, set())}
        answer = (results, bad, self.connector.build_connector_worker_meta())
        self._answers.append(answer)
        return answer

    def step_until(self, done: Callable[[Any], object], what: str) -> Any:
        """Step until *done* of a step's answer is true, of one since the last read or lease; returns that answer."""
        for answer in self._answers:
            if done(answer):
                return answer
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            answer = self.step()
            if done(answer):
                return answer
            time.sleep(0.005)
        raise AssertionError(f"not within {DEADLINE:g} s: {what}")

    @property
    def reported(self) -> list[Any]:
        """The failed loads that were reported to the scheduler since the last read or lease."""
        return [
            failure for _, _, report in self._answers if report is not None for failure in report.failures
        ]

    @property
    def checked(self) -> list[Any]:
        """The comparisons that were reported since the last read or lease."""
        return [each for _, _, report in self._answers if report is not None for each in report.checked]

    @property
    def began(self) -> list[tuple[str, int]]:
        """The loads whose first transfer was reported as begun since the last read or lease."""
        return [told for _, _, report in self._answers if report is not None for told in report.began]

    @property
    def pinned(self) -> list[str]:
        """The loads whose blocks were reported to stay since the last read or lease."""
        return [told for _, _, report in self._answers if report is not None for told in report.pinned]

    @property
    def stuck(self) -> list[str]:
        """The loads whose blocks were reported to be pinned since the last read or lease, by an order or by a refused release."""
        return [told for _, _, report in self._answers if report is not None for told in report.stuck]

    def received(self, request_id: str) -> Any:
        """Step until a request is received or has failed; returns that step's answer."""
        return self.step_until(
            lambda answer: request_id in answer[0].finished_recving, f"{request_id} received"
        )

    def sent(self, request_id: str) -> Any:
        """Step until the blocks of a request are let go; returns that step's answer."""
        return self.step_until(lambda answer: request_id in answer[0].finished_sending, f"{request_id} sent")

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """VLLM's own counters since the engine was built, by name: vLLM's number, and what the hooks have seen."""
        observer = getattr(self.worker, "_penstock", None)  # None where the hook was left out
        totals = observer.counts.totals if observer is not None else ()
        return {name: (upstream, seen) for name, upstream, seen in totals}

    def end_handshakes(self) -> None:
        """Wait for handshakes that are under way: vLLM does not, and one that ends in an agent without state ends the process."""
        self.worker._handshake_initiation_executor.shutdown()

    def close(self) -> None:
        """Shut both sides down, behind the last handshake."""
        self.end_handshakes()
        self._listener.shutdown()
        self.connector.shutdown()


def _with_orders(orders: dict[str, Any]) -> Any:
    metadata: Any = NixlConnectorMetadata()
    for name, value in orders.items():
        setattr(metadata, name, value)
    return metadata


def connect(prefill: Engine, decode: Engine) -> None:
    """Let the two shake hands by a good read."""
    prefill.lease("prefill-of-first")
    decode.read("first", prefill)
    decode.received("first")
    prefill.sent("prefill-of-first")


@contextmanager
def instrumented_engines(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Engine]]:
    """Install the connector's hook and give a builder of engines; close them and take the hook out at the end."""
    hook = KvConnectorHook()
    hook.install()
    built: list[Engine] = []

    def make(
        role: str = "kv_consumer", model: str = "model", connector: str = "NixlConnector", **ranks: Any
    ) -> Engine:
        own = directory / model
        own.mkdir(exist_ok=True)
        built.append(Engine(own, role, monkeypatch, connector, **ranks))
        return built[-1]

    try:
        yield make
        # Whatever the tests have done to them.
        counts = [engine.counts for engine in built]
        assert all(upstream == seen for each in counts for upstream, seen in each.values()), counts
    finally:
        _close(built)
        hook.uninstall()
        registry.uninstall("nixl")
        # NIXL's agents end with their last reference, which is in a cycle; until then each has threads that spin.
        gc.collect()


def _close(engines: list[Engine]) -> None:
    """Close and forget them; their handshakes end first, while their peers still answer."""
    for engine in engines:
        engine.end_handshakes()
    while engines:
        engines.pop().close()


def _awaiting(waits: bool) -> dict[str, bool]:
    """Return what says that a request waits for its blocks; until 0.29 its blocks do."""
    return {"awaiting_kvs": waits} if hasattr(ReqMeta, "awaiting_kvs") else {}
