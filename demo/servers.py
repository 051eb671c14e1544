"""Starts, awaits and stops real vLLM servers on the CPU."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.common.client import fetch
from demo.common.interrupts import held
from demo.common.processes import Child, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
LOOPBACK = "127.0.0.1"
_OK = 200
_HEALTH_SECONDS = 30.0

API_SERVER = "demo.common.vllm_server"


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """The configuration of a server.

    Attributes:
        name: used for the log file and in messages.
        kv_role: ``kv_producer``, ``kv_consumer`` or ``kv_both``; None starts it without a KV connector.
        kv_load_failure_policy: vLLM's own setting: ``fail``, ``recompute``, or None for its default.
        module: what ``python -m`` runs; takes the API server's arguments.
        python: the interpreter, that of an environment with another vLLM for example.
        args: further arguments of the server.
        env: further environment; an empty value removes the variable.

    """

    name: str
    kv_role: str | None = None
    kv_load_failure_policy: str | None = None
    module: str = API_SERVER
    python: str = sys.executable
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class Server:
    """One running vLLM server."""

    def __init__(self, spec: ServerSpec, *, model: Path, logs: Path) -> None:
        """Start it; :meth:`wait_ready` returns when it is ready."""
        self.spec = spec
        self.port = free_port()
        self.side_channel_port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        # vLLM's processes leave their sockets and PyTorch's files there when they are killed.
        with held():
            left = tempfile.mkdtemp(prefix="vllm-")
            # Of one that is killed, and never stopped, they go with this object.
            self._remove_left = weakref.finalize(self, shutil.rmtree, left, ignore_errors=True)
        command = [spec.python, "-m", spec.module, *_arguments(spec, model, self.port)]
        self.child = Child(
            spec.name,
            command,
            env=_environment(spec, self.side_channel_port) | {"VLLM_RPC_BASE_PATH": left, "TMPDIR": left},
            cwd=ROOT,
            log=logs / f"{spec.name}.log",
        )

    @property
    def peer(self) -> str:
        """The address of its side channel, by which other engines name it."""
        return f"{LOOPBACK}:{self.side_channel_port}"

    def wait_ready(
        self, *, seconds: float | None = None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        """Wait until it is ready, for as long as it makes progress, or for *seconds*.

        Raises:
            ChildError: it exited, or did not get ready.

        """
        self.child.wait_until(self.healthy, seconds=seconds, what="ready")
        say(f"{self.spec.name}: ready at {self.url}")

    def healthy(self) -> bool:
        """Whether the server's health check passes now."""
        try:
            return fetch(f"{self.url}/health", timeout=_HEALTH_SECONDS).status == _OK
        except OSError:
            return False

    def stop(self) -> None:
        """End it and all its processes."""
        self.child.stop()
        self._remove_left()


def _arguments(spec: ServerSpec, model: Path, port: int) -> list[str]:
    arguments = [
        *("--model", str(model), "--served-model-name", "tiny"),
        *("--host", LOOPBACK, "--port", str(port)),
        # With bfloat16 the first forward pass of one token raises SIGILL on some hosts.
        *("--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "32", "--enforce-eager"),
    ]
    if spec.kv_role is not None:
        config: dict[str, Any] = {
            "kv_connector": "NixlConnector",
            "kv_role": spec.kv_role,
            "kv_buffer_device": "cpu",
        }
        if spec.kv_load_failure_policy is not None:
            config["kv_load_failure_policy"] = spec.kv_load_failure_policy
        arguments += ["--kv-transfer-config", json.dumps(config)]
    return [*arguments, *spec.args]


def _environment(spec: ServerSpec, side_channel_port: int) -> dict[str, str]:
    """Return this process's environment without other settings of Penstock and vLLM, plus those of the server."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "VLLM_"))
    }
    settings = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": LOOPBACK,
        "VLLM_LOOPBACK_IP": LOOPBACK,
        "VLLM_NIXL_SIDE_CHANNEL_HOST": LOOPBACK,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel_port),
        "UCX_TLS": "tcp,self,sm",
        # One thread is enough for the tiny model; bound threads of two servers spin on the same core.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    merged = {**inherited, **settings, **spec.env}
    return {name: value for name, value in merged.items() if value}
