"""An LMCache server on the CPU, and an engine that saves to it and loads from it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from demo.common.link import Link
from demo.common.processes import Child, free_port
from demo.servers import LOOPBACK, ROOT, Server
from tests.support.kv import extra_connectors
from tests.support.ports import listens
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

CHUNK = 128
"""Tokens of what is saved and loaded as one; a multiple of vLLM's block."""

# How an engine asks for what it is about to load, on the wire: the ZeroMQ frame with the number of prepare_retrieve or
# retrieve, and the flags of the one behind it.
_LOADS = (b"\x01\x01\x12\x03", b"\x01\x01\x07\x03")

# How long an engine waits for an answer.
_ANSWER_SECONDS = 10.0

# Between two looks of an engine whether the server answers, and how long each waits: longer than tests stop it.
_RARELY_SECONDS = 45.0


class CacheServer:
    """A running LMCache server. Engines reach it over a link, which shows when they are about to load.

    By LMCache's default for a CPU an engine copies by itself, and its worker stands still until it has. With *writes* the server
    writes into the engine's blocks, as it does on GPUs, and the request waits; the engine rarely looks whether the server lives.
    """

    def __init__(
        self, directory: Path, name: str, *, writes: bool = False, answer_seconds: float = _ANSWER_SECONDS
    ) -> None:
        """Start it; :meth:`wait_ready` tells when it serves. An engine waits *answer_seconds* for each answer."""
        self._writes, self._answer_seconds = writes, answer_seconds
        self._at_load: Callable[[], None] | None = None
        self._port = port = free_port()
        command = [
            *(sys.executable, "-m", "lmcache.v1.multiprocess.server"),
            *("--host", LOOPBACK, "--port", str(port), "--chunk-size", str(CHUNK)),
            *("--l1-size-gb", "0.1", "--eviction-policy", "LRU", "--disable-observability"),
            # Without CUDA's IPC an engine copies what it needs itself.
            *("--supported-transfer-mode", "auto"),
            *("--worker-reap-timeout-seconds", "0"),
        ]
        env = {**os.environ, **extra_connectors.environment()}
        self._child = Child(
            f"lmcache-{name}", command, env=env, cwd=ROOT, log=directory / f"lmcache-{name}.log"
        )
        self._link = Link(port, sees=self._sees)

    @property
    def address(self) -> str:
        """Where engines reach it."""
        return self._link.address

    def wait_ready(self) -> None:
        """Wait until it serves.

        Raises:
            ChildError: it ended, or did not serve in time.

        """
        self._child.wait_until(lambda: listens(self._port), what="listening")

    def kill_at_next_load(self) -> None:
        """``kill -9`` it when an engine has found something in it, and comes for it."""
        self._at_load = self._child.kill

    @contextmanager
    def stopped_at_next_load(self) -> Iterator[None]:
        """SIGSTOP it when an engine has found something in it, and comes for it; SIGCONT at the end."""
        self._at_load = lambda: stop(self._child.pid)
        try:
            yield
        finally:
            self._at_load = None
            self._child.signal(signal.SIGCONT)

    @contextmanager
    def next_load_held(self) -> Iterator[Callable[[], None]]:
        """Keep from it what an engine asks when it comes for what it has found, until the end or the call; it serves look-ups."""
        let_go = threading.Event()

        def hold() -> None:
            let_go.wait()

        self._at_load = hold
        try:
            yield let_go.set
        finally:
            self._at_load = None
            let_go.set()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP it; SIGCONT at the end."""
        try:
            stop(self._child.pid)
            yield
        finally:
            self._child.signal(signal.SIGCONT)

    def engine(self, name: str, *, logs: Path, endpoint: str = "", args: Sequence[str] = ()) -> Server:
        """Start an engine that uses this server."""
        host, _, port = self._link.address.rpartition(":")
        writes = {
            "lmcache.mp.mp_transfer_mode": "lmcache_driven",
            "lmcache.mp.heartbeat_interval": _RARELY_SECONDS,
        }
        transfer = {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": {
                "lmcache.mp.host": f"tcp://{host}",
                "lmcache.mp.port": int(port),
                "lmcache.mp.mq_timeout": self._answer_seconds,
                **(writes if self._writes else {}),
            },
        }
        return extra_connectors.start(
            name, transfer, logs=logs, endpoint=endpoint, env={"VLLM_SERVER_DEV_MODE": "1"}, args=args
        )

    def stop(self) -> None:
        """End it; safe to call twice."""
        self._link.close()
        self._child.stop()

    def _sees(self, data: bytes) -> None:
        act = self._at_load
        if act is not None and any(load in data for load in _LOADS):
            self._at_load = None
            act()
