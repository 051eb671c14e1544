"""The five incidents that Penstock is made for, caused on engines and explained by commands and alerts only."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest

from demo.common.agent import Agent
from demo.common.client import prefill
from demo.common.steps import PROMPT, until
from demo.ec.stack import start_ec_stack
from demo.ec.steps import new_encoder
from demo.eplb.__main__ import run_ranks
from tests.support.agent.agent import short_directory
from tests.support.agent.operator import Operator
from tests.support.ec.bench import ask
from tests.support.ec.zmq_server import ZmqBench
from tests.support.engine.bench import new_name
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.kv.bench import Prefilled
from tests.support.kv.peers import Spare, stopped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from demo.servers import Server
    from tests.support.kv.bench import Bench

pytestmark = [pytest.mark.engine, pytest.mark.long]
# Loads at the same time while the network is away; two flaps are what PenstockPeerSlow needs, ten in five minutes.
_TOGETHER = 12
pair = pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"])


@pytest.fixture
def third(kv: Bench) -> Iterator[Server]:
    """Give a third prefill server."""
    third = Spare(kv.stack, "third")
    yield third.server()
    third.stop()


@pytest.fixture
def senders() -> Iterator[ThreadPoolExecutor]:
    """Send requests at the same time."""
    with ThreadPoolExecutor(_TOGETHER) as pool:
        yield pool


def _prefilled(server: Server) -> Prefilled:
    """Have *server* compute a prompt."""
    name = new_name("inc")
    prompt = f"{name} {PROMPT}"
    return Prefilled(name, prompt, prefill(server.url, prompt).kv_transfer_params, "", 0)


@pair
def test_the_network_of_a_prefill_pod_flaps(
    kv: Bench, spare: Spare, third: Server, senders: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """Meanwhile a person finds the peer and who waits for it; afterwards, without an id, the peer, the time and the requests."""
    spare.kill()  # a peer without a history: what is usual for it is what happens here
    flapping = spare.server()
    others = [kv.stack.prefill, third]
    operator = Operator(kv.agent, tmp_path)
    slow: set[str] = set()
    # With five waits for it, what other tests' peers took plays no part in what is usual.
    for pod in (flapping, *others) * 5:
        kv.decode(_prefilled(pod))
    operator.alerts.scrape(0)
    operator.begins()

    for _ in range(2):
        requests = list(senders.map(_prefilled, [flapping] * _TOGETHER))
        slow |= {request.name for request in requests}
        with stopped(flapping):
            answers = [senders.submit(kv.decode, request) for request in requests]
            for pod in others * 2:
                kv.decode(_prefilled(pod))
            operator.reads("get peers", flapping.peer, "hanging")
            # The worst comes first.
            assert operator.rows("get peers")[0]["ADDRESS"] == flapping.peer
            operator.reads("get requests --deferred", requests[0].name, "waits for remote_kv", flapping.peer)
            operator.diagnoses("peer_slow", flapping.peer, "wait now")
        assert {answer.result().status for answer in answers} == {200}

    operator.reads("get peers", flapping.peer, "slow")
    operator.diagnoses("peer_slow", flapping.peer, "longer than usual")
    operator.records("prefill-network-flaps")
    operator.alerts.scrape(11)
    # The worst comes first, but for peers whose loads fail: other tests may have left some.
    first = next(row for row in operator.rows("get peers -o wide") if row["FAILED"] == "0")
    assert (first["ADDRESS"], first["NOW"]) == (flapping.peer, "slow")
    # Who was slow, how long ago, and because of whom.
    worst = operator.rows(f"get requests --slow --since {operator.since()}")[: 2 * _TOGETHER]
    assert {row["PEER"] for row in worst} == {flapping.peer}
    assert all(any(name in row["REQUEST"] for name in slow) for row in worst)
    assert all(row["AGE"] and row["TTFT"].endswith("s") for row in worst)
    operator.reads(f"explain {worst[0]['REQUEST']}", "was deferred for", flapping.peer, "transfer", "s")
    operator.reads(
        f"get events --kind deferral_end --peer {flapping.peer} --since 5m", worst[0]["REQUEST"], "waited"
    )
    alert = operator.alert("PenstockPeerSlow")
    assert flapping.peer in alert.words
    assert "host and network" in alert.words
    assert flapping.peer in operator.follows(alert)


@pair
def test_half_of_the_handshakes_are_incompatible(kv: Bench, tmp_path: Path) -> None:
    """One of two prefill pods has another dtype since an upgrade; a person finds the pair and the factor."""
    spare = Spare(kv.stack, "upgraded", "--dtype", "float16")
    operator = Operator(kv.agent, tmp_path)
    try:
        upgraded = spare.server()
        operator.alerts.scrape(0)
        operator.begins()
        statuses = [kv.decode(_prefilled(pod)).status for pod in [kv.stack.prefill, upgraded] * 3]
        assert statuses == [200, 500] * 3

        operator.reads("get peers -o wide", upgraded.peer, "incompatible", "handshake/incompatible")
        operator.diagnoses("incompatible_peer", upgraded.peer, "differ in dtype")
        operator.records("half-incompatible")
        operator.alerts.scrape(10)
        alert = operator.alert("PenstockIncompatiblePeers")
        assert "decode/0" in alert.words
        assert upgraded.peer in alert.words
        assert "engines differ in dtype" in operator.follows(alert)
        failed = operator.rows("get requests --outcome failed --since 5m")[0]
        assert failed["PEER"] == upgraded.peer
        operator.reads(f"explain {failed['REQUEST']}", upgraded.peer, "incompatible", "differ in dtype")
        operator.reads(
            "diff engine decode/0 upgraded/0", "handshakes between them fail as incompatible: dtype"
        )
        operator.reads("diff engine decode/0 upgraded/0", "dtype", "torch.float32", "torch.float16")
    finally:
        spare.stop()


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ZmqBench]:
    """Run an encoder and a language model."""
    with short_directory() as directory, ExitStack() as parts:
        stack = start_ec_stack(directory, parts, lambda _: None)
        bench = ZmqBench(stack, stack.language, stack.link)
        yield bench
        bench.close()


def test_the_encoders_keep_dying(ec: ZmqBench, tmp_path: Path, senders: ThreadPoolExecutor) -> None:
    """Requests with pictures hang and fail; a person finds the encoder, and sets a deadline that ends it."""
    operator = Operator(ec.agent, tmp_path)
    hanging, rescued = ask(), ask()
    ec.encode(hanging)
    ec.reach()
    operator.alerts.scrape(0)
    operator.begins()

    with ec.held(hanging, senders) as waiting:
        operator.reads("get requests --deferred", hanging.name, "waits for encoder_cache", ec.peer)
        operator.reads("get peers", ec.peer, "hanging")
        operator.alerts.scrape(10)
        ec.stack.encoder.kill()
        assert waiting.result().status == 503
    alert = operator.alert("PenstockRequestsDeferred")
    assert ec.peer in alert.words
    assert "encoder_cache" in alert.words
    operator.reads(
        f"explain {hanging.name}", "could not load its EC state", ec.peer, "the request was failed"
    )
    operator.reads("get peers", ec.peer, "lost")
    operator.reads("get engines", "encoder/0", "disconnected")
    operator.diagnoses("encoder_fails", ec.peer, "vanished")
    operator.records("encoder-dies")
    operator.reads("doctor", "wrong", "encoder_fails", ec.peer)
    operator.alerts.scrape(20)
    alert = operator.alert("PenstockEngineDark")
    assert "encoder/0 vanished" in alert.words
    assert "encoder/0" in operator.follows(alert)

    new_encoder(ec.stack)
    operator.runs(
        "set-policy encoders-die -l tier=language --ec-load-failure recompute --deferral-max-transfer-wait 1s"
        " --deferral-on-timeout recompute --reason INC-3 --wait"
    )
    ec.encode(rescued)
    with ec.held(rescued, senders) as waiting:
        assert waiting.result().status == 200
        ec.stack.encoder.kill()
    operator.reads(
        f"explain {rescued.name}", "encoded here", "the deadline", "encoders-die (generation 1, by "
    )
    until(partial(_vanished_twice, operator), "agentctl get events does not say that two encoders vanished")


def _vanished_twice(operator: Operator) -> bool:
    lost = operator.runs("get events --kind source_lost --since 10m").splitlines()
    return sum("encoder/0" in line and "engine-core vanished" in line for line in lost) == 2


def test_rebalances_of_experts_stall_decode(tmp_path: Path) -> None:
    """One rank is late for each layer; a person finds the rebalances, how often and for how long."""
    with short_directory() as directory, ExitStack() as parts:
        agent = Agent(directory, engines=1)
        parts.callback(agent.stop)
        agent.start()
        operator = Operator(agent, tmp_path)
        operator.alerts.scrape(0)
        run_ranks(agent, tmp_path / "ranks", "--steps", "26", late=1)
        operator.reads("get events --channel eplb", "experts/0", "ok (interval)", "pause 1.")
        operator.diagnoses("eplb_stalls", "experts/0")
        operator.records("rebalances-stall")
        operator.alerts.scrape(40)

        alert = operator.alert("PenstockEplbStalls")
        assert "experts/0" in alert.words
        assert "forward pass" in alert.words
        pauses = re.findall(r"took \S+, pause (\S+)s, balancedness (\S+) → (\S+)", operator.follows(alert))
        assert len(pauses) >= 4
        assert all(float(pause) > 1 for pause, _, _ in pauses)
        assert operator.rows("get peers")[0]["ADDRESS"].startswith("rank:")


@pytest.fixture
def harsh(kv: Bench) -> Iterator[str]:
    """Give the name of a policy that is gone after the test."""
    yield "no-recompute"
    kv.agent.ctl("delete", "policy", "no-recompute", "--wait")


@pair
def test_a_policy_of_fail_everywhere(
    kv: Bench, harsh: str, senders: ThreadPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loads that were recomputed fail; a person finds the policy, its author and reason, and undoes it as told."""
    operator = Operator(kv.agent, tmp_path)
    kv.enforce(kvLoadFailure={"action": "recompute"})
    assert kv.decode(kv.misled()).status == 200
    operator.alerts.scrape(0)
    operator.begins()
    with monkeypatch.context() as theirs:
        theirs.setenv("LOGNAME", "mallory")
        operator.runs(f"set-policy {harsh} --all --kv-load-failure fail --priority 800 --reason INC-7 --wait")
    operator.alerts.scrape(10)
    requests = list(senders.map(lambda _: kv.misled(), range(4)))
    answers = list(senders.map(kv.decode, requests))

    assert {answer.status for answer in answers} == {503}
    assert all("(policy no-recompute, generation 1)" in answer.text for answer in answers)
    for request in requests:
        operator.reads("get requests --outcome failed --since 5m", request.name)
    operator.alerts.scrape(16)
    alert = operator.alert("PenstockFailuresAfterPolicyChange")
    assert "decode/0" in alert.words
    assert re.search(r"mallory@\S+ +apply +no-recompute .*INC-7", operator.follows(alert))
    operator.reads("get engines", "decode/0", "no-recompute/1")
    cause = operator.diagnoses("policy_fails_loads", "no-recompute", "mallory@")
    operator.records("fail-everywhere")
    assert cause["commands"][0].endswith("delete policy no-recompute")
    operator.reads(f"explain {requests[0].name}", "decided by policy no-recompute (generation 1, by mallory@")
    operator.reads("doctor", "wrong", "policy_fails_loads", "no-recompute (generation 1 by mallory@")
    advice = operator.reads("doctor", "agentctl delete policy no-recompute")
    undo = re.search(r"agentctl (delete policy [\w-]+)", advice)
    assert undo is not None
    operator.runs(f"{undo[1]} --wait")
    again = kv.misled()
    assert kv.decode(again).completion == again.text
