"""Pairs of real vLLM servers, prefill and decode over NIXL, in the variants that the suite runs on."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from demo.common.client import Answer, prefill_decode
from demo.common.model import tiny_model
from demo.servers import ROOT, Server, ServerSpec
from tests.support.engine.hybrid_model import hybrid_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

_FORCED = "tests.support.engine.forced_server"


@dataclass(frozen=True, slots=True)
class Variant:
    """How vLLM is set up, and how its prefill server is, where that differs. Production's defaults are the two forced ones.

    Attributes:
        model: returns the model's directory below a cache; it is that of both servers.

    """

    name: str
    module: str = "demo.common.vllm_server"
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    prefill: Variant | None = None
    model: Callable[[Path], Path] = tiny_model
    python: str = sys.executable


_FAULTS = {"PENSTOCK_ALLOW_FAULTS": "1", "PENSTOCK_ALLOW_STACKS": "1"}
CPU_DEFAULTS = Variant("cpu", env=_FAULTS)
ASYNC_FORK_TP2 = Variant(
    "async-fork-tp2",
    _FORCED,
    args=("--tensor-parallel-size", "2"),
    env={**_FAULTS, "FORCED_VARIANT": "async_fork"},
)
TP2_TO_TP1 = Variant(
    "tp2-to-tp1", "tests.support.engine.faulty_nixl_server", env=_FAULTS, prefill=ASYNC_FORK_TP2
)
TP1_TO_TP2 = replace(ASYNC_FORK_TP2, name="tp1-to-tp2", prefill=CPU_DEFAULTS)
# vLLM 0.33 gives each engine a memory node of its own, and does not start where there is one. With this variable set,
# whatever its value, all may use all; with "0" nothing is simulated.
DATA_PARALLEL = Variant(
    "dp2", args=("--data-parallel-size", "2"), env={**_FAULTS, "VLLM_CPU_SIM_MULTI_NUMA": "0"}
)
# Blocks of a quarter of a CPU's default, so that a short prompt has several behind the sliding window.
HYBRID = Variant("hybrid", args=("--block-size", "32"), env=_FAULTS, model=hybrid_model)
_DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
NGRAM = Variant(
    "ngram", args=("--speculative-config", json.dumps(_DRAFTS)), env=_FAULTS, prefill=CPU_DEFAULTS
)
OLDER_VLLM = ROOT / ".venv-versions" / "0.31.0"
"""The environment that ``VLLM=0.31.0 scripts/setup-version.sh`` builds."""
MIXED_VERSIONS = Variant(
    "mixed", env=_FAULTS, prefill=Variant("older", env=_FAULTS, python=str(OLDER_VLLM / "bin" / "python"))
)
UNI = Variant("uni", _FORCED, env={"FORCED_VARIANT": "uni"})


@dataclass(frozen=True, slots=True)
class Pair:
    """A prefill and a decode server that can reach each other."""

    prefill: Server
    decode: Server

    def send(
        self,
        prompt: str,
        *,
        max_tokens: int = 8,
        redirect: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request through both; *redirect* replaces decode's parameters about prefill."""
        return prefill_decode(
            self.prefill.url,
            self.decode.url,
            prompt,
            max_tokens=max_tokens,
            redirect=redirect,
            headers=headers,
        )[1]


@contextmanager
def running_pair(
    variant: Variant = CPU_DEFAULTS,
    *,
    logs: Path,
    endpoint: str = "",
    policy: str = "fail",
    env: Mapping[str, str] | None = None,
) -> Iterator[Pair]:
    """Start both servers, wait until they serve, and stop them at the end.

    Args:
        logs: an existing directory for the servers' output.
        endpoint: ``PENSTOCK_ENDPOINT``; empty leaves the instrumentation off.
        policy: vLLM's own ``kv_load_failure_policy`` of the decode server.
        env: further environment of both.

    """
    model = variant.model(ROOT / ".cache" / "models")
    common = {"PENSTOCK_ENDPOINT": endpoint, **(env or {})}
    prefill = _spec("prefill", "kv_producer", variant.prefill or variant, common)
    decode = _spec("decode", "kv_consumer", variant, common)
    decode = replace(decode, kv_load_failure_policy=policy)
    servers: list[Server] = []
    try:
        servers.extend(Server(spec, model=model, logs=logs) for spec in (prefill, decode))
        for server in servers:
            server.wait_ready()
        yield Pair(*servers)
    finally:
        for server in servers:
            server.stop()


def _spec(name: str, kv_role: str, variant: Variant, common: Mapping[str, str]) -> ServerSpec:
    env = penstock_env({**variant.env, **common}, name)
    return ServerSpec(name, kv_role, module=variant.module, python=variant.python, args=variant.args, env=env)


def penstock_env(common: Mapping[str, str], role: str) -> dict[str, str]:
    """Return *common* and what tells two servers of one pod apart."""
    return {**common, "PENSTOCK_SERVER": role, "PENSTOCK_LABELS": f"role={role}"}
