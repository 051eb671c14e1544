"""A peer in a process of its own that stops in the middle of a read, and one that dies: real NIXL over TCP."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c

from tests.support.kv.nixl_pair import HOST, Engine, instrumented_engines, prepare
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.engine.recorder import Recorder

    MakeEngine = Callable[..., Engine]

# The peer's process imports vLLM and NIXL for these three; `make test` has the same on engines (tests/e2e/test_kv_peer_gone.py).
pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[5]


@dataclass
class Remote:
    """The peer: what ``Engine.read`` needs of one, and its process."""

    port: int
    id: str
    process: subprocess.Popen[str]

    @property
    def address(self) -> str:
        """The peer's address as others see it."""
        return f"{HOST}:{self.port}"

    def stop(self) -> None:
        """Stop it where it stands."""
        stop(self.process.pid)


@contextmanager
def remote(directory: Path) -> Iterator[Remote]:
    """Run a peer; it is killed at the end."""
    directory.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.kv.nixl_peer", str(directory)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            told: dict[str, Any] = next(json.loads(line) for line in process.stdout if line.startswith("{"))
            yield Remote(told["port"], told["id"], process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Remote, Path]]:
    """Run a peer for all tests; the last one kills it."""
    directory = tmp_path_factory.mktemp("peer") / "peer"
    with remote(directory) as peer:
        yield peer, directory


@pytest.fixture
def pair(
    served: tuple[Remote, Path], recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Remote, Engine]]:
    """Return the peer and a decode engine that has read from it."""
    del recorder
    peer, directory = served
    prepare(monkeypatch, tmp_path, transports="tcp")
    with instrumented_engines(directory, monkeypatch) as make:
        decode = make("kv_consumer")
        decode.read("first", peer)
        assert not decode.received("first")[0].failed_recving
        yield peer, decode


def test_stopped_peer(pair: tuple[Remote, Engine], recorder: Recorder) -> None:
    """Blocks of a read that is given up stay as long as the peer may answer, which it does when it comes back."""
    peer, decode = pair
    decode.cache[1:4] = 7.0
    peer.stop()
    decode.read("r1", peer, local=(1, 2, 3))
    for _ in range(20):
        assert not decode.cancel("r1")[0].finished_recving
    assert bool((decode.cache[1:4] == 7.0).all())
    (failure,) = recorder.take("transfer_failure", "r1")
    assert (failure.mode, failure.peer.address) == (c.FAILURE_MODE_TIMEOUT, peer.address)
    assert [each.released for each in recorder.take("blocks_pinned", "r1")] == [False]
    peer.process.send_signal(signal.SIGCONT)
    decode.received("r1")
    assert not bool((decode.cache[1:4] == 7.0).any())
    assert [each.released for each in recorder.take("blocks_pinned", "r1")] == [False, True]


def test_a_released_handle_proves_nothing(pair: tuple[Remote, Engine]) -> None:
    """Why blocks stay: NIXL releases the handle of a read in progress, and the peer's answer is written all the same.

    If this fails, NIXL stops a transfer before it releases it, and a load in flight can be cancelled (docs/upstream.md).
    """
    peer, decode = pair
    peer.stop()
    decode.read("r1", peer, local=(1, 2, 3))
    (handle,) = decode.worker._recving_transfers.pop("r1")
    assert decode.worker.nixl_wrapper.check_xfer_state(handle) == "PROC"
    decode.worker.nixl_wrapper.release_xfer_handle(handle)
    decode.cache[1:4] = 7.0
    peer.process.send_signal(signal.SIGCONT)
    decode.read("r2", peer, local=(5, 6), remote=(5, 6))
    decode.received("r2")
    decode.step_until(lambda _: not bool((decode.cache[1:4] == 7.0).all()), "the late write")


def test_killed_peer(pair: tuple[Remote, Engine], recorder: Recorder) -> None:
    """A peer that dies during a read is one failure with its class, and nothing else of that request. The last test, therefore."""
    peer, decode = pair
    peer.stop()
    decode.read("r1", peer)
    assert not decode.step()[0].finished_recving
    peer.process.kill()
    assert decode.received("r1")[0].failed_recving == {"r1"}
    (failure,) = recorder.take("transfer_failure", "r1")
    assert failure.mode in {c.FAILURE_MODE_TRANSFER, c.FAILURE_MODE_EXCEPTION}
    assert failure.error_type == c.ERROR_TYPE_REMOTE_RESET
    assert failure.peer.address == peer.address
    assert len(decode.reported) == 1
