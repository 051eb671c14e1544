"""Differences between versions of vLLM's NIXL connector, over classes of an older one's shape."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.hooks import instrumented
from penstock.instrumentation.vllm.compat import (
    block_clipper,
    open_factors,
    speculative_factors,
    transfer_mode,
    worker_differences,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata

if TYPE_CHECKING:
    from concurrent.futures import Future

NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker"


class OldWorker:
    """A pushing NIXL worker as of 0.26: its writer shakes hands itself, and a failed load is failed whenever it is told."""

    def __init__(self) -> None:
        self._remote_agents: dict[str, Any] = {}
        self.failed: list[tuple[str, Any]] = []
        self.refuses: Exception | None = None

    def get_finished(self) -> tuple[set[str], set[str]]:
        """Tell what has ended."""
        return set(), set()

    def _handle_failed_transfer(self, req_id: str, handle: Any) -> None:
        self.failed.append((req_id, handle))

    def _ensure_d_handshake(self, engine_id: str, host: str, port: int, size: int, request_id: str) -> bool:
        del size, request_id
        if engine_id in self._remote_agents:
            return True
        try:
            self._remote_agents[engine_id] = self._nixl_handshake(host, port)
        except OSError:
            return False
        return True

    def _nixl_handshake(self, host: str, port: int) -> str:
        if self.refuses is not None:
            raise self.refuses
        return f"{host}:{port}"


class OurMixin:
    """What Penstock puts in front of a worker."""

    def __init__(self) -> None:
        upstream: Any = super()
        upstream.__init__()
        self.given_up = {"given up"}
        self.joined: list[tuple[str, str, int, Future[None]]] = []

    def _penstock_pop_given_up(self, req_id: str) -> bool:
        found = req_id in self.given_up
        self.given_up.discard(req_id)
        return found

    def _penstock_join_handshake(
        self, engine_id: str, host: str, port: int, ended: Future[None], queued_ns: int
    ) -> None:
        assert queued_ns > 0
        self.joined.append((engine_id, host, port, ended))


@pytest.fixture
def worker() -> Any:
    """Return a worker with the differences that it needs, behind Penstock's mixin."""
    found: type = OldWorker
    for mixin in (*worker_differences(OldWorker), OurMixin):
        found = instrumented(mixin, found)
    return found()


def test_the_late_failure_of_a_load_that_was_given_up(worker: Any) -> None:
    """VLLM is told once, when it is given up; another failure of that name is another load's."""
    worker._handle_failed_transfer("given up", None)
    worker._handle_failed_transfer("other", 7)
    worker._handle_failed_transfer("given up", None)
    assert worker.failed == [("other", 7), ("given up", None)]


def test_a_handshake_of_the_writers(worker: Any) -> None:
    """It is joined before it begins and ends as it ended; one that is not needed is none."""
    assert worker._ensure_d_handshake("decode", "10.0.0.1", 5600, 1, "r")
    assert worker._ensure_d_handshake("decode", "10.0.0.1", 5600, 1, "next")
    ((engine, host, port, ended),) = worker.joined
    assert (engine, host, port, ended.exception()) == ("decode", "10.0.0.1", 5600, None)


def test_a_handshake_of_the_writers_that_fails(worker: Any) -> None:
    """The error that vLLM only logs is the handshake's; the next one, which succeeds, has none."""
    worker.refuses = ConnectionRefusedError("no")
    assert not worker._ensure_d_handshake("decode", "10.0.0.1", 5600, 1, "r")
    worker.refuses = None
    assert worker._ensure_d_handshake("decode", "10.0.0.1", 5600, 1, "r")
    first, second = (each[-1].exception() for each in worker.joined)
    assert (type(first), second) == (ConnectionRefusedError, None)


def test_the_direction() -> None:
    """A newer vLLM's objects tell it, an older one's classes; a connector of another kind has none."""
    pushes = type("NixlPushConnectorWorker", (), {"__module__": NIXL})
    pulls = type("NixlConnectorWorker", (), {"__module__": NIXL})
    told = SimpleNamespace(_TRANSFER_MODE="push")
    assert [transfer_mode(each) for each in (pushes(), pulls(), told, None, object())] == [
        "push",
        "pull",
        "push",
        "",
        "",
    ]


def test_what_is_exchanged() -> None:
    """By either name; None of a connector that leaves nothing out."""
    new = SimpleNamespace(get_exchange_clipped_blocks=list, get_sw_clipped_blocks=tuple)
    assert [
        block_clipper(each) for each in (new, SimpleNamespace(get_sw_clipped_blocks=tuple), object(), None)
    ] == [list, tuple, None, None]


def test_factors_of_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that vLLM's function takes; 0.28 has the blocks of several layers, 0.27 no direction."""

    def of_28(config: Any, backend: str, cross_layers_blocks: bool, transfer_mode: str = "pull") -> None: ...

    def of_27(config: Any, backend: str, cross_layers_blocks: bool) -> None: ...

    found = []
    for function in (of_28, of_27):
        monkeypatch.setattr(metadata, "compute_nixl_compatibility_hash", function)
        found.append(set(open_factors()))
    assert found == [{"transfer_mode", "cross_layers_blocks"}, {"cross_layers_blocks"}]
    monkeypatch.delattr(metadata, "_get_speculative_compatibility_factors", raising=False)
    assert speculative_factors(object()) == {}
