"""vLLM servers that share a GPU: vLLM's own API server, the V2 model runner, float16, and little of the GPU's memory."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from demo.servers import LOOPBACK, Server, ServerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MODULE: Final = "vllm.entrypoints.launchers.api_server.entry"
_KV_CACHE_BYTES: Final = 256 << 20
_ARGS: Final = (
    # FlashAttention takes no float32; float16 rounds less than bfloat16, so that greedy tokens seldom differ.
    *("--dtype", "float16"),
    # The first is only what must be free at the start; with the second nothing is profiled, so that servers which start
    # together do not mistake each other's memory for their own.
    *("--gpu-memory-utilization", "0.1", "--kv-cache-memory-bytes", str(_KV_CACHE_BYTES)),
)
# Empty: what demo.servers sets for a CPU is removed. UCX chooses among all of its transports, CUDA's included.
_ENV: Final = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "UCX_TLS": "",
    "VLLM_CPU_KVCACHE_SPACE": "",
    "VLLM_CPU_OMP_THREADS_BIND": "",
    "OMP_NUM_THREADS": "",
}
V2_LOGGED: Final = "Using V2 Model Runner"
"""What a worker logs."""


def on_gpu(spec: ServerSpec, *args: str, **env: str) -> ServerSpec:
    """Return *spec* for a GPU, with further arguments and environment."""
    return replace(spec, module=MODULE, args=(*spec.args, *_ARGS, *args), env={**spec.env, **_ENV, **env})


def penstock(name: str, endpoint: str) -> dict[str, str]:
    """Return Penstock's environment of a server; without an endpoint Penstock is off."""
    return {
        "PENSTOCK_ENDPOINT": endpoint,
        "PENSTOCK_SERVER": name,
        "PENSTOCK_LABELS": f"role={name},tier={name}",
        "PENSTOCK_ALLOW_FAULTS": "1",
    }


def nixl_specs(endpoint: str, buffer: str) -> tuple[ServerSpec, ServerSpec]:
    """Return prefill and decode over NIXL; *buffer* is the memory that NIXL moves, ``cuda`` or ``cpu``."""
    prefill, decode = (
        on_gpu(
            ServerSpec(name, env=penstock(name, endpoint)),
            *("--kv-transfer-config", json.dumps({**_NIXL, "kv_role": role, "kv_buffer_device": buffer})),
        )
        for name, role in (("prefill", "kv_producer"), ("decode", "kv_consumer"))
    )
    return prefill, decode


_NIXL: Final = {"kv_connector": "NixlConnector", "kv_load_failure_policy": "fail"}
_ITEMS_BYTES: Final = 64 << 20


def offload_spec(name: str, endpoint: str, role: str, *, port: int = 0) -> ServerSpec:
    """Return a server with ECCPUConnector; with a *port* its outputs move between servers over NIXL."""
    extra: dict[str, Any] = {"ec_cpu_bytes": _ITEMS_BYTES, **({"ec_enable_nixl": True} if port else {})}
    config = {"ec_connector": "ECCPUConnector", "ec_role": role, "ec_connector_extra_config": extra}
    env = {
        **penstock(name, endpoint),
        # The calls that empty the caches are for development only.
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_EC_SIDE_CHANNEL_HOST": LOOPBACK,
        "VLLM_EC_SIDE_CHANNEL_PORT": str(port) if port else "",
    }
    return on_gpu(ServerSpec(name, env=env), "--ec-transfer-config", json.dumps(config))


def experts_spec(endpoint: str, *, asynchronous: bool) -> ServerSpec:
    """Return a mixture of experts over two GPUs that rebalances every 16 steps."""
    balancing = {
        "window_size": 16,
        "step_interval": 16,
        "num_redundant_experts": 2,
        "use_async": asynchronous,
    }
    return on_gpu(
        ServerSpec("experts", env=penstock("experts", endpoint)),
        *("--tensor-parallel-size", "2", "--enable-expert-parallel"),
        *("--enable-eplb", "--eplb-config", json.dumps(balancing)),
    )


def plain_spec(name: str, endpoint: str) -> ServerSpec:
    """Return a server as in production, with CUDA graphs, for throughput."""
    spec = ServerSpec(name, env=penstock(name, endpoint))
    return on_gpu(spec, "--no-enforce-eager", "--max-num-seqs", "256")


@contextmanager
def running(specs: Sequence[ServerSpec], *, model: Path, logs: Path) -> Iterator[list[Server]]:
    """Start servers together, wait until all serve, see that each has the V2 model runner, and stop them at the end."""
    servers: list[Server] = []
    try:
        servers.extend(Server(spec, model=model, logs=logs) for spec in specs)
        for server in servers:
            # torch.compile and the first use of Triton's kernels take their time.
            server.wait_ready(seconds=900.0)
            assert V2_LOGGED in server.child.log.read_text(errors="replace"), server.spec.name
        yield servers
    finally:
        for server in servers:
            server.stop()
