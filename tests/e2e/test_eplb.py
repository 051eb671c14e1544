"""Two processes move real expert weights through vLLM's own balancer; the agent gets the events."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from demo.common.agent import Agent
from demo.common.steps import until
from demo.eplb.__main__ import ASYNCHRONOUS, RANKS, rebalances, run_ranks
from tests.support.agent.agent import short_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """Give an agent."""
    with short_directory() as directory:
        agent = Agent(directory)
        agent.start()
        yield agent
        agent.stop()


def _counts(agent: Agent, expected: float, metric: str, **labels: str) -> bool:
    """Tell whether a metric is that."""
    return agent.metrics().value(metric, **labels) == expected


@pytest.mark.parametrize(
    ("server", "arguments"),
    [
        pytest.param("sync", ("--profile",), marks=pytest.mark.long),
        ("async", ASYNCHRONOUS),
    ],
)
def test_the_reported_moves_are_the_real_ones(
    agent: Agent, tmp_path: Path, server: str, arguments: tuple[str, ...]
) -> None:
    """Layer by layer and rank by rank, from the maps and the weights that the ranks wrote."""
    run = run_ranks(agent, tmp_path / "ranks", *arguments, server=server)
    events = until(
        lambda: found if len(found := rebalances(agent, server)) >= RANKS else None,
        "no rebalance is reported",
    )
    told: dict[int, dict[str, Any]] = {
        int(each["event"].get("rank", 0)): each["event"]["eplbRebalance"] for each in events
    }
    assert sorted(told) == list(range(RANKS))
    assert len(events) == RANKS  # the profile run is none
    assert sum(moves.received for rank in run.moves for moves in rank) > 0
    for rank, layers in enumerate(run.moves):
        assert told[rank]["asynchronous"] == (server == "async")
        for layer, moves in zip(told[rank]["layers"], layers, strict=True):
            assert (
                int(layer["expertsUnchanged"]),
                int(layer["expertsReceivedLocally"]),
                int(layer["expertsReceivedRemotely"]),
                int(layer["recvCount"]),
                int(layer["bytes"]),
            ) == (
                moves.unchanged,
                moves.local,
                moves.remote,
                moves.received,
                moves.received * moves.expert_bytes,
            )
        assert told[rank]["balancednessAfter"] > told[rank]["balancednessBefore"]
    remote = sum(moves.remote for rank in run.moves for moves in rank)
    moved = sum(moves.received * moves.expert_bytes for rank in run.moves for moves in rank)
    for expected, metric, labels in (
        (RANKS, "penstock_eplb_rebalances_total", {"result": "ok"}),
        (remote, "penstock_eplb_experts_total", {"source": "remote"}),
        (moved, "penstock_transfer_size_bytes_sum", {"channel": "eplb"}),
    ):
        until(
            partial(_counts, agent, expected, metric, server=server, **labels), f"{metric} is not {expected}"
        )
    assert agent.metrics().value("penstock_guard_errors_total") == 0


def test_a_rank_that_dies_in_mid_transfer(agent: Agent, tmp_path: Path) -> None:
    """The other one tells a failed transfer from that rank, and a failed rebalance."""
    run = run_ranks(agent, tmp_path / "ranks", dying=1, server="dying")
    assert run.codes[1] == -9
    labels = {"server": "dying", "channel": "eplb", "mode": "transfer", "peer": "rank:1"}
    until(
        lambda: agent.metrics().value("penstock_transfer_failures_total", **labels), "no failure is counted"
    )
    (failed,) = until(lambda: rebalances(agent, "dying"), "no rebalance is reported")
    assert failed["event"]["eplbRebalance"]["result"] == "error"
    assert failed["event"]["eplbRebalance"]["errorText"]
