"""Throughput on a GPU with and without Penstock, by turns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness.interleave import take_turns
from benchmarks.harness.results import Spread
from benchmarks.load.engines import wait_for_counts
from benchmarks.load.traffic import Load, Route, drive
from demo.common.model import tiny_model
from demo.servers import ROOT, Server
from tests.support.engine.bench import wait_known
from tests.support.gpu.servers import plain_spec, running

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from demo.common.agent import Agent

_WITHOUT, _AGAIN, _WITH = "without", "without, again", "with"
_ROUNDS = 12
_LOADS = (
    Load("decode-heavy, 64 at a time", 64, 256, 16, 96),
    Load("prefill-heavy, 64 at a time", 64, 256, 256, 4),
)


def test_throughput_by_turns(agent: Agent, logs: Path, measured: Callable[[str], None]) -> None:
    """Three engines take turns, one with Penstock: its throughput to that of one without, round by round."""
    specs = [plain_spec(name, agent.endpoint if name == _WITH else "") for name in (_WITHOUT, _AGAIN, _WITH)]
    model = tiny_model(ROOT / ".cache" / "models")
    with running(specs, model=model, logs=logs) as servers:
        wait_known(agent, _WITH)
        for load in _LOADS:
            turns = {server.spec.name: partial(_turn, server, load, [0]) for server in servers}
            # The first round pays for kernels that are compiled when they are needed.
            rates = {name: found[1:] for name, found in take_turns(turns, _ROUNDS + 1).items()}
            measured(f"{load.name}: {Spread.of(rates[_WITHOUT]).median:,.0f} tokens/s without Penstock")
            for name in (_WITH, _AGAIN):
                measured(f"{load.name}: {name} ÷ without {_ratio(rates[name], rates[_WITHOUT])}")
    served = len(_LOADS) * (_ROUNDS + 1) * _LOADS[0].requests
    recorded, lost = wait_for_counts(agent, served)
    measured(f"{recorded} of {served} requests recorded, {lost} entries lost")
    assert recorded + lost >= served


def _turn(server: Server, load: Load, rounds: list[int]) -> float:
    """Return the tokens a second of one turn; each has prompts of its own."""
    rounds[0] += 1
    seen = drive(Route(server.url), load, seed=rounds[0])
    return load.requests * load.output / seen.took


def _ratio(rates: Sequence[float], others: Sequence[float]) -> str:
    """Return the median of the ratios with the interval in which the true one lies with 95 %."""
    spread = Spread.of([mine / other for mine, other in zip(rates, others, strict=True)])
    return f"{spread.median:.3f} (median {spread.least:.3f} to {spread.most:.3f})"
