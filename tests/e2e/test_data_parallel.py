"""Two engines in each server (``--data-parallel-size 2``): each has vLLM's own index, and one policy holds on both."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from penstock.proto.names import ENGINE_CORE
from penstock.proto.v1 import common_pb2 as c

from demo.common.client import fetch
from demo.common.metrics import Metrics
from demo.common.steps import until
from tests.support.engine.pairs import DATA_PARALLEL
from tests.support.kv.bench import DECODE
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.common.agent import CommandResult
    from tests.support.kv.bench import Bench

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.parametrize("stack", [DATA_PARALLEL], indirect=True, ids=["dp2"]),
]

ENGINES = (0, 1)


@pytest.fixture
def both(kv: Bench) -> Bench:
    """Wait until the agent knows both engines of both servers."""
    for server in ("prefill", "decode"):
        until(
            partial(_has_both, kv, server),
            f"The agent does not know both engines of {server}",
        )
    return kv


def _facts(kv: Bench, server: str) -> dict[str, dict[str, str]]:
    """Return the labels of ``penstock_engine_info`` of each engine of *server*."""
    found = kv.agent.metrics().select("penstock_engine_info", server=server)
    return {sample.labels["engine"]: dict(sample.labels) for sample in found}


def _has_both(kv: Bench, server: str) -> bool:
    return set(_facts(kv, server)) == {"0", "1"}


def _described(kv: Bench, engine: int) -> dict[str, Any]:
    """Return what agentctl knows of one engine of decode."""
    return dict(kv.agent.ctl_json("get", "engines", f"decode/{engine}"))


def _of_vllm(kv: Bench, metric: str, engine: int) -> float:
    """Return the value of vLLM's own metric of one engine of decode."""
    return Metrics.parse(fetch(f"{kv.stack.decode.url}/metrics").text).value(metric, engine=str(engine))


@contextmanager
def _stopped(kv: Bench, engine: int) -> Iterator[None]:
    """SIGSTOP the process of one engine core of decode, SIGCONT at the end."""
    sources = _described(kv, engine)["sources"]
    (pid,) = (int(each["hello"]["pid"]) for each in sources if each["hello"]["process"] == ENGINE_CORE)
    stop(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_each_engine_goes_by_its_own_index(both: Bench) -> None:
    """Metrics and `describe` have both engines, each with an id and a side channel of its own."""
    for server in (both.stack.prefill, both.stack.decode):
        facts = _facts(both, server.spec.name)
        assert {each["data_parallel_size"] for each in facts.values()} == {"2"}
        for engine in ENGINES:
            own = facts[str(engine)]
            assert own["side_channel"].endswith(f":{server.side_channel_port + engine}")
            assert own["kv_engine_id"].endswith(f"_dp{engine}")
            described = both.ctl("describe", "engine", f"{server.spec.name}/{engine}")
            assert "Parallel: tensor 1, data 2" in described
            assert own["kv_engine_id"] in described


@pytest.mark.parametrize("engine", ENGINES)
def test_a_transfer_is_counted_where_vllm_counts_it(both: Bench, engine: int) -> None:
    """Engine of decode and engine of prefill are those that the request went to, in our metrics and in vLLM's."""
    other = 1 - engine
    request = both.prefilled(engine=other)
    assert (
        request.peer
        == f"{both.stack.prefill.peer.rpartition(':')[0]}:{both.stack.prefill.side_channel_port + other}"
    )
    transfers = {"result": "ok", "peer": request.peer}
    before = [both.value("penstock_transfers_total", engine=str(each), **transfers) for each in ENGINES]

    assert both.decode(request, engine=engine).completion == request.text

    both.closed(request)
    before[engine] += 1
    until(
        lambda: (
            [both.value("penstock_transfers_total", engine=str(each), **transfers) for each in ENGINES]
            == before
        ),
        f"penstock_transfers_total is not {before}",
    )
    ours = both.value("penstock_transfers_total", engine=str(engine), result="ok")
    until(
        lambda: _of_vllm(both, "vllm:nixl_xfer_time_seconds_count", engine) == ours,
        f"vLLM has not {ours} transfers of engine {engine}",
    )


def test_a_policy_decides_on_both_engines(both: Bench) -> None:
    """One rollout has both engines; a load that fails on either is recomputed, and counted by that engine."""
    both.enforce(kvLoadFailure={"action": "recompute"})
    hashes = {_described(both, engine)["policy"]["hash"] for engine in ENGINES}
    assert len(hashes) == 1
    for engine in ENGINES:
        other = str(1 - engine)
        request = both.misled(6)
        before = both.value("penstock_load_outcomes_total", engine=other)

        assert both.decode(request, engine=engine).completion == request.text

        outcome = both.outcome(request)
        assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
        both.wait_value(
            1, "penstock_load_outcomes_total", engine=str(engine), outcome="recomputed", peer=request.peer
        )
        assert both.value("penstock_load_outcomes_total", engine=other) == before


def _applied(kv: Bench, action: str) -> CommandResult:
    """Set the policy of both engines and wait 10 s for them."""
    return kv.agent.ctl(
        *("set-policy", kv.policy, "--selector", DECODE, "--kv-load-failure", action),
        *("--wait", "--timeout", "10s"),
    )


def test_a_policy_that_one_engine_does_not_take_is_said_to_be_on_one(both: Bench) -> None:
    """While an engine core is stopped, rollouts fail and name it, before and after the agent loses it; then both have the last."""
    with _stopped(both, 1):
        ran = _applied(both, "recompute")
        assert ran.code != 0
        assert "decode/1 is still waiting" in ran.output
        until(lambda: not _described(both, 1).get("connected", False), "decode/1 is not seen to be away")
        ran = _applied(both, "fail")
        assert ran.code != 0
        assert "decode/1 is still waiting" in ran.output

        assert _described(both, 0)["inSync"]
        assert not _described(both, 1).get("inSync", False)
        assert f"Wanted: {both.policy}" in both.ctl("describe", "engine", "decode/1")
        assert [both.value("penstock_policy_in_sync", engine=str(each)) for each in ENGINES] == [1, 0]

    until(
        lambda: all(_described(both, each).get("inSync", False) for each in ENGINES),
        "The policy is not in force on both engines",
    )
    for each in ENGINES:
        assert "On a failed KV load: fail" in both.ctl("describe", "engine", f"decode/{each}")


def test_a_drill_reaches_the_engines_that_it_names(both: Bench) -> None:
    """A fault in both engines' transfers is rehearsed in each, by its own label, with the right tokens."""
    both.enforce(kvLoadFailure={"action": "recompute"})
    with both.drill("transfer"):
        for engine in ENGINES:
            request = both.prefilled(engine=engine)
            assert both.decode(request, engine=engine).completion == request.text
            assert both.failure(request).mode == c.FAILURE_MODE_TRANSFER
            labels = {"engine": str(engine), "mode": "transfer", "rehearsal": "true", "peer": request.peer}
            both.wait_value(1, "penstock_transfer_failures_total", **labels)
