"""vLLM balances experts on GPUs; Penstock reports the rebalances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.common.client import complete
from demo.common.steps import PROMPT, until
from demo.eplb.__main__ import ASYNCHRONOUS, RANKS, rebalances, run_ranks
from demo.servers import ROOT
from tests.support.engine.bench import new_name
from tests.support.gpu.agreement import agreement
from tests.support.gpu.experts_model import tiny_experts_model
from tests.support.gpu.servers import experts_spec, running

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from demo.common.agent import Agent

_MODES = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
_PROMPTS = 4


def _duration(agent: Agent, server: str) -> str:
    """Return what a rebalance took, as the agent counts it."""
    name = "penstock_eplb_rebalance_duration_seconds"
    count = agent.metrics().value(f"{name}_count", server=server)
    took = agent.metrics().value(f"{name}_sum", server=server)
    return f"{count:.0f} rebalances of a rank, {took / count * 1e3:.1f} ms each"


@_MODES
def test_an_engine_rebalances(
    agent: Agent, gpus: Sequence[str], logs: Path, measured: Callable[[str], None], asynchronous: bool
) -> None:
    """A mixture of experts over two GPUs rebalances under traffic, and answers as before."""
    if len(gpus) < RANKS:
        pytest.skip("EPLB needs two ranks, and NCCL has one rank on a GPU: one GPU is here.")
    spec = experts_spec(agent.endpoint, asynchronous=asynchronous)
    model = tiny_experts_model(ROOT / ".cache" / "models")
    directory = logs / f"asynchronous-{asynchronous}"
    directory.mkdir()

    def good() -> bool:
        done = agent.metrics().value("penstock_eplb_rebalances_total", server="experts", result="ok")
        complete(server.url, new_name("warm"), max_tokens=64)
        return done - before >= RANKS

    before = agent.metrics().value("penstock_eplb_rebalances_total", server="experts", result="ok")
    with running([spec], model=model, logs=directory) as (server,):
        prompts = [f"{new_name('experts')} {PROMPT}" for _ in range(_PROMPTS)]
        expected = [complete(server.url, prompt, max_tokens=8).completion for prompt in prompts]
        until(good, "no rebalance of both ranks is counted")
        again = [complete(server.url, prompt, max_tokens=8).completion for prompt in prompts]
        same = agreement(again, expected)
        measured(str(same))
        measured(_duration(agent, "experts"))
        assert same.holds


@_MODES
def test_two_ranks_share_a_gpu(
    agent: Agent, tmp_path: Path, measured: Callable[[str], None], asynchronous: bool
) -> None:
    """Two ranks without an engine move weights in GPU memory through vLLM's balancer; the reported moves are the real ones."""
    server = f"ranks-{asynchronous}"
    mode = ASYNCHRONOUS if asynchronous else ()
    run = run_ranks(agent, tmp_path / "ranks", "--device", "cuda", *mode, server=server)
    events = until(
        lambda: found if len(found := rebalances(agent, server)) >= RANKS else None,
        "no rebalance is reported",
    )
    told = {int(each["event"].get("rank", 0)): each["event"]["eplbRebalance"] for each in events}
    reported = [[int(layer.get("recvCount", 0)) for layer in told[rank]["layers"]] for rank in range(RANKS)]
    assert reported == [[moves.received for moves in layers] for layers in run.moves]
    measured(f"{sum(map(sum, reported))} experts moved between the ranks")
    measured(_duration(agent, server))
