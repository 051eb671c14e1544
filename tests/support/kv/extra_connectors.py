"""Servers with connectors whose packages are beside the environment: ``make setup-connectors``."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from demo.common.client import fetch
from demo.common.metrics import Metrics
from demo.common.model import tiny_model
from demo.servers import ROOT, Server, ServerSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

HOME = ROOT / ".cache" / "connectors"

needs_extra_connectors = pytest.mark.skipif(
    not (HOME / ".stamp").exists(),
    reason=f"there is no {HOME}; make setup-connectors installs Mooncake and LMCache",
)

_ROLES = frozenset({"prefill", "decode"})

STANDIN = "tests.support.engine.standin_server"

# What says the same with and without Penstock, whenever it is read.
_COUNTERS = (
    "vllm:external_prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:prompt_tokens_by_source_total",
    "vllm:prompt_tokens_cached_by_source_total",
    "vllm:request_success_total",
    "vllm:num_preemptions_total",
)


def environment() -> dict[str, str]:
    """Return what a process needs to find the packages and their libraries; nothing where there are none."""
    if not HOME.exists():
        return {}
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", ""), str(HOME)]),
        "LD_LIBRARY_PATH": str(HOME / "lib"),
        # Telemetry of its own.
        "LMCACHE_TRACK_USAGE": "false",
    }


def start(
    name: str,
    transfer: Mapping[str, Any],
    *,
    logs: Path,
    endpoint: str = "",
    module: str = "demo.common.vllm_server",
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
) -> Server:
    """Start a server with this ``--kv-transfer-config``; an empty *endpoint* leaves Penstock off.

    Its role is its *name* where that is one, and else ``both``.
    """
    common = {**environment(), "PENSTOCK_ENDPOINT": endpoint, **(env or {})}
    role = name if name in _ROLES else "both"
    common |= {"PENSTOCK_SERVER": name, "PENSTOCK_LABELS": f"role={role}"}
    spec = ServerSpec(
        name,
        module=module,
        args=("--kv-transfer-config", json.dumps(dict(transfer)), *args),
        env=common,
    )
    return Server(spec, model=tiny_model(ROOT / ".cache" / "models"), logs=logs)


def vllm_counters(server: Server) -> dict[str, float]:
    """Return what vLLM itself has counted of transfers and requests, without its zeros."""
    metrics = Metrics.parse(fetch(f"{server.url}/metrics").text)
    return {
        str(sample).rpartition(" ")[0]: sample.value
        for name in _COUNTERS
        for sample in metrics.select(name)
        if sample.value
    }
