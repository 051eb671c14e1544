"""An LMCache server on the CPU, and an engine that saves to it and loads from it."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from demo.common.link import Link
from demo.common.processes import Child, free_port
from demo.servers import LOOPBACK, ROOT, Server
from tests.support.kv import extra_connectors
from tests.support.ports import listens

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 128
"""Tokens of what is saved and loaded as one; a multiple of vLLM's block."""

# How an engine asks for what it is about to load, on the wire: the ZeroMQ frame with the number of prepare_retrieve,
# and the flags of the one behind it.
_LOAD = b"\x01\x01\x12\x03"

# How long an engine waits for an answer.
_ANSWER_SECONDS = 10.0


class CacheServer:
    """A running LMCache server. Engines reach it over a link, which shows when they are about to load."""

    def __init__(self, directory: Path, name: str) -> None:
        """Start it; :meth:`wait_ready` tells when it serves."""
        self._armed = threading.Event()
        self._port = port = free_port()
        command = [
            *(sys.executable, "-m", "lmcache.v1.multiprocess.server"),
            *("--host", LOOPBACK, "--port", str(port), "--chunk-size", str(CHUNK)),
            *("--l1-size-gb", "0.1", "--eviction-policy", "LRU", "--disable-observability"),
            # Without CUDA's IPC an engine copies what it needs itself.
            *("--supported-transfer-mode", "auto"),
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
        self._armed.set()

    def engine(self, name: str, *, logs: Path, endpoint: str = "") -> Server:
        """Start an engine that uses this server."""
        host, _, port = self._link.address.rpartition(":")
        transfer = {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": {
                "lmcache.mp.host": f"tcp://{host}",
                "lmcache.mp.port": int(port),
                "lmcache.mp.mq_timeout": _ANSWER_SECONDS,
            },
        }
        return extra_connectors.start(
            name, transfer, logs=logs, endpoint=endpoint, env={"VLLM_SERVER_DEV_MODE": "1"}
        )

    def stop(self) -> None:
        """End it; safe to call twice."""
        self._link.close()
        self._child.stop()

    def _sees(self, data: bytes) -> None:
        if _LOAD in data and self._armed.is_set():
            self._armed.clear()
            self._child.kill()
