"""The page of a real relay over two real agents: the same page, with both logs and who is missing."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from nats.js.api import KeyValueConfig
from penstock.proto.v1.common_pb2 import DECIDED_BY_VLLM, OUTCOME_FAILED

from tests.support.agent.agent import wait_until
from tests.support.agent.batches import PEER, deferral_end
from tests.support.agent.stories import SECOND, outcome
from tests.support.nats.server import NatsServer
from tests.support.page.addresses import bearer, token_of
from tests.support.page.pods import NAMES, Pods
from tests.support.page.tab import Tab, ask, write
from tests.support.policy.policies import document
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def pods() -> Iterator[Pods]:
    """Run two pods and a relay."""
    with ExitStack() as parts:
        yield Pods(parts)


def test_the_page_of_a_relay_shows_all_agents(pods: Pods) -> None:
    """Engines behind their agents' names; details and writes by the same names."""
    pods.fail("decode-0", "shown-0")
    pods.fail("decode-1", "shown-1")

    def shows_both(data: Any) -> bool:
        """Tell whether both tables have both; a busy machine may be late with one of them."""
        keys = {row["key"] for row in data["engines"]["rows"]}
        return len(data["peers"]["engines"]) == len(NAMES) and keys == {f"{name}/0" for name in NAMES}

    with Tab(pods.page) as tab:
        assert tab.until("hello").data["source"] == "relay"
        tab.until("screen", shows_both)
        tab.until("pulse", lambda data: data["agents"]["asked"] == data["agents"]["answered"] == len(NAMES))

    def shown() -> object:
        return ask(pods.page, "/api/engine", key="decode-1/0").body.get("title")

    wait_until(lambda: shown() == "Engine decode-1/0", "the engine is shown")

    token = token_of(pods.relay.address)

    def tried() -> list[object]:
        order = {"engine": "decode-1/0", "dryRun": True}
        body = write(pods.page, "pause", order, bearer(token)).body
        return [row["cells"][0] for each in body.get("sections", ())[:1] for row in each["rows"]]

    wait_until(lambda: tried() == ["decode-1/0"], "what a pause would do is shown")


def test_a_dry_run_replays_the_loads_of_all_agents(tmp_path: Path) -> None:
    """Each agent its own log; the relay writes to its source, which is asked before."""
    with ExitStack() as parts:
        server = NatsServer(tmp_path / "nats").start()
        parts.callback(server.kill)
        asyncio.run(_create(server))
        pods = Pods(parts, f"--policy-source={server.url}/policies")
        now = time.time_ns()
        for name in NAMES:
            pods.engines[name].publish(
                outcome(name, OUTCOME_FAILED, time_ns=now, decided_by=DECIDED_BY_VLLM),
                deferral_end(name, start_ns=now - SECOND, time_ns=now),
            )
        token = token_of(pods.relay.address)
        selects = document(
            "all", selector={"matchExpressions": [{"key": "gone", "operator": "DoesNotExist"}]}
        )
        body = {"name": "all", "manifest": json.dumps(selects), "reason": "a test", "dryRun": True}

        def tried() -> dict[str, Any]:
            found: dict[str, Any] = write(pods.page, "policy", body, bearer(token)).body
            return found

        said = "Of the 2 remote loads of the last hour: failed 2 → 0, recomputed 0 → 2, waited 2.0s."
        wait_until(lambda: said in tried().get("sentences", ()), "both have recorded their load")
        engines, hour = tried()["sections"]
        assert engines["title"] == "Matched engines"
        assert [row["cells"][:3] for row in hour["rows"]] == [[f"{name}/0", "1", "1 → 0"] for name in NAMES]


async def _create(server: NatsServer) -> None:
    async with await server.client() as client:
        await client.jetstream().create_key_value(KeyValueConfig(bucket="policies", history=64))


def test_the_logs_of_all_agents_go_on_behind_one_position(pods: Pods) -> None:
    """Over another relay, and over an agent that was killed: nothing is missed and nothing comes twice."""
    with Tab(pods.page) as tab:
        tab.until("log")
        pods.fail("decode-0", "a-0", "a-1")
        pods.fail("decode-1", "b-0")
        seen = tab.until_requests("a-0", "a-1", "b-0")
        positions = [entry["position"] for entry in tab.entries()]
    pods.fail("decode-1", "b-1")
    pods.restart_relay()
    pods.fail("decode-0", "a-2")
    with Tab(pods.page, tab.last) as again:
        seen += again.until_requests("a-2", "b-1")
        pods.agents["decode-1"].kill()
        pods.agents["decode-1"].start()
        pods.engines["decode-1"].connect()
        pods.fail("decode-1", "b-2")
        pods.fail("decode-0", "a-3")
        count = len(again.entries())
        again.until_requests("b-2", "a-3")
        seen += [entry["request"] for entry in again.entries()[count:]]
        positions += [entry["position"] for entry in again.entries()]
    failed = [each for each in seen if each[:2] in ("a-", "b-")]

    assert sorted(failed) == ["a-0", "a-1", "a-2", "a-3", "b-0", "b-1", "b-2"]
    assert [each for each in failed if each.startswith("a")] == ["a-0", "a-1", "a-2", "a-3"]
    assert len(positions) == len({*positions})
    assert all(each.startswith(NAMES) for each in positions)


def test_a_peers_panel_has_the_engines_of_all_agents(pods: Pods) -> None:
    """Whoever's panel it is; a condition is that of the relay's verdict."""
    for name in NAMES:
        pods.fail(name, f"{name}-panel")

    def readers() -> set[str]:
        body = ask(pods.page, "/api/peer", engine="decode-1/0", peer=PEER).body
        return {row["cells"][0] for row in body["sections"][1]["rows"]} if "sections" in body else set()

    wait_until(lambda: readers() == {f"{name}/0" for name in NAMES}, "all engines have the peer")
    found = ask(pods.page, "/api/condition", kind="leases_wait", engine="decode-1/0")
    assert found.status == 200
    assert found.body["sections"][0]["plot"] == "held"
    assert "this condition" in found.body["sentences"][0].lower()


def test_an_agent_that_hangs_is_named(pods: Pods) -> None:
    """The others are shown as ever."""
    process = pods.agents["decode-0"].process
    assert process is not None

    def names_it(data: Any) -> bool:
        """Tell whether it alone is named; a busy machine may be late with others."""
        found = data["agents"]
        named = [each["name"] for each in found["missing"]]
        return (named, found["asked"], found["answered"]) == (["decode-0"], 2, 1)

    with Tab(pods.page) as tab:
        tab.until("pulse")
        stop(process.pid)
        try:
            tab.until("pulse", names_it)
        finally:
            process.send_signal(signal.SIGCONT)
        tab.until("pulse", lambda data: not data["agents"]["missing"])
