"""The status of objects on a real API server, of what a real agent and its engine say."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.errors import ClusterError, ConflictError
from penstock.agent.policy.kubernetes import ApiClient
from penstock.agent.relay.discovery import AgentFinder, parse_agents
from penstock.agent.relay.fleet import Fleet
from penstock.agent.relay.object_status.object_status import FleetWords
from penstock.agent.relay.object_status.writer import StatusWriter

from tests.support.agent.agent import AgentProcess, running_agent, short_directory, wait_until
from tests.support.agent.relay import RelayProcess
from tests.support.kubernetes.api_server import NAMESPACE, POLICIES, ApiServer
from tests.support.kubernetes.cluster import bind, running_cluster
from tests.support.policy.policies import action, document
from tests.support.samples.stand_in_engine import StandInEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.agent.policy.kubernetes import ClusterAccess


@pytest.fixture
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiServer]:
    """Run one."""
    async with running_cluster(tmp_path_factory.mktemp("cluster")) as server:
        yield server


class _Held:
    """A lease that the test gives and takes."""

    held = True
    error = ""

    async def run(self) -> None:
        """Do nothing."""

    async def give_back(self) -> None:
        """Do nothing."""


def _conditions(value: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["status"] for each in value.get("status", {}).get("conditions", ())}


class _Stage:
    """A real agent with an engine, the fleet of a relay, and a writer whose clock the test moves."""

    def __init__(self, cluster: ApiServer, agent: AgentProcess, fleet: Fleet, access: ClusterAccess) -> None:
        self.cluster = cluster
        self.agent = agent
        self.fleet = fleet
        self.access = access
        self.lease = _Held()
        self._now = 0.0
        self.writer = StatusWriter(access, self.lease, self._words, clock=lambda: self._now)

    async def _words(self) -> FleetWords:
        found, missing = await self.fleet.policies()
        policies = {name: each.policies for name, each in found.items()}
        return FleetWords(policies, await self.fleet.statuses(), missing)

    async def look(self, seconds: float = 5.0) -> None:
        """Let the writer look *seconds* later."""
        self._now += seconds
        async with ApiClient(self.access) as client:
            await self.writer.look(client)

    async def read(self) -> dict[str, Any]:
        """Return the object ``a``."""
        found: dict[str, Any] = await self.cluster.must("GET", f"{POLICIES}/a")
        return found

    async def until(self, generation: int = 1, **wanted: str) -> dict[str, Any]:
        """Look until the object has these conditions; return it."""
        for _ in range(300):
            with suppress(ClusterError):
                # A new role takes its time.
                await self.look()
            value = await self.read()
            status = value.get("status", {})
            if wanted.items() <= _conditions(value).items() and status["observedGeneration"] == generation:
                return value
            await asyncio.sleep(0.1)
        raise AssertionError(value)


@pytest.fixture
async def stage(cluster: ApiServer) -> AsyncIterator[_Stage]:
    """Start the agent and its engine; the account may not write status yet."""
    access = await cluster.access()
    async with AsyncExitStack() as parts:
        directory = parts.enter_context(short_directory())
        agent = AgentProcess(directory, _flags(access))
        parts.callback(agent.stop)
        await asyncio.to_thread(agent.start)
        engine = StandInEngine({"PENSTOCK_ENDPOINT": agent.listen, "PENSTOCK_LABELS": "role=decode"}).start()
        parts.callback(engine.stop)
        await asyncio.to_thread(engine.settle)
        fleet = Fleet(AgentFinder(parse_agents(f"pod={agent.admin}")), None, 60.0)
        parts.push_async_callback(fleet.close)
        following = asyncio.ensure_future(fleet.run())
        parts.callback(following.cancel)
        await cluster.must("POST", POLICIES, document("a", selector={"matchLabels": {"role": "decode"}}))
        yield _Stage(cluster, agent, fleet, access)


def _flags(access: ClusterAccess) -> tuple[str, ...]:
    return (
        f"--policy-source=kubernetes:{NAMESPACE}",
        f"--kube-api={access.url}",
        f"--kube-token-file={access.token_file}",
        f"--kube-ca={access.ca_file}",
    )


async def test_kubectl_waits_for_it(stage: _Stage) -> None:
    """It is Programmed when the engine has it; without the role nothing is written; what does not change is not, either."""
    with pytest.raises(ClusterError, match="penstock-relay"):
        await stage.look()
    await bind(stage.cluster, "penstock-relay", "relay")
    waiting = asyncio.ensure_future(
        stage.cluster.kubectl("wait", "--for=condition=Programmed", "transferpolicies/a", "--timeout=60s")
    )
    value = await stage.until(Accepted="True", Programmed="True", Degraded="False")
    assert "condition met" in await waiting
    counts = {name: value["status"][name] for name in ("matched", "inForce", "refused")}
    assert counts == {"matched": 1, "inForce": 1, "refused": 0}
    for _ in range(3):
        await stage.look()
    assert (await stage.read())["metadata"]["resourceVersion"] == value["metadata"]["resourceVersion"]
    # A change is another generation.
    patch = {"spec": {"kvLoadFailure": action("fail")}}
    status, _ = await stage.cluster.call("PATCH", f"{POLICIES}/a", patch, "application/merge-patch+json")
    assert status == 200
    value = await stage.until(2, Programmed="True")
    assert {each["observedGeneration"] for each in value["status"]["conditions"]} == {2}


async def test_an_object_that_is_made_again(stage: _Stage) -> None:
    """It does not get what was meant for the one before."""
    await bind(stage.cluster, "penstock-relay", "relay")
    await stage.until(Programmed="True")
    before = await stage.read()
    await stage.cluster.must("DELETE", f"{POLICIES}/a")
    await stage.cluster.must("POST", POLICIES, document("a", selector={"matchLabels": {"role": "other"}}))
    async with ApiClient(stage.access) as client:
        with pytest.raises(ConflictError):
            await client.patch_status("a", before["metadata"]["resourceVersion"], before["status"])
    assert not (await stage.read()).get("status")


async def test_an_agent_that_is_away(stage: _Stage) -> None:
    """Nobody knows what its engines have; an object is written once in 5 s, and by the lease's holder only."""
    await bind(stage.cluster, "penstock-relay", "relay")
    await stage.until(Programmed="True")
    written = stage.writer.patches["ok"]
    await asyncio.to_thread(stage.agent.kill)
    await asyncio.to_thread(wait_until, lambda: stage.fleet.trouble() != "", "the relay misses the agent")
    for _ in range(20):
        await stage.look(0.1)
    assert stage.writer.patches["ok"] == written
    await stage.until(Programmed="Unknown", Degraded="True")
    stage.lease.held = False
    version = (await stage.read())["metadata"]["resourceVersion"]
    await asyncio.to_thread(stage.agent.start)
    await asyncio.to_thread(wait_until, lambda: stage.fleet.trouble() == "", "the agent is back")
    await stage.look()
    assert (await stage.read())["metadata"]["resourceVersion"] == version


@pytest.mark.long
async def test_another_relay_goes_on(cluster: ApiServer) -> None:
    """Of two relays one writes; when it is killed the other does. A lease lasts 15 s."""
    await bind(cluster, "penstock-relay", "relay")
    flags = _flags(await cluster.access())
    with ExitStack() as parts:
        agent = parts.enter_context(running_agent(flags))
        relays = []
        for _ in range(2):
            directory = parts.enter_context(short_directory())
            relay = RelayProcess(directory, f"--agents=pod={agent.admin}", *flags)
            parts.callback(relay.stop)
            relays.append(await asyncio.to_thread(relay.start))

        def holders() -> list[int]:
            return [number for number, relay in enumerate(relays) if relay.process and _holds(relay)]

        await cluster.must("POST", POLICIES, document("a"))
        await asyncio.to_thread(wait_until, lambda: len(holders()) == 1, "one relay has the lease")
        (first,) = holders()
        await _until_condition(cluster, "a", "Accepted")
        await asyncio.to_thread(relays[first].stop, signal.SIGKILL)
        await cluster.must("POST", POLICIES, document("b"))
        await asyncio.to_thread(wait_until, lambda: holders() == [1 - first], "the other relay has the lease")
        await _until_condition(cluster, "b", "Accepted")
        metrics = _metrics(relays[1 - first])
        assert 'penstock_relay_status_patches{result="failed"} 0.0' in metrics


def _metrics(relay: RelayProcess) -> str:
    (started,) = [json.loads(line) for line in relay.log().splitlines() if '"relay started"' in line]
    with urllib.request.urlopen(f"http://{started['http']}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def _holds(relay: RelayProcess) -> bool:
    return "penstock_relay_lease_held 1.0" in _metrics(relay)


async def _until_condition(cluster: ApiServer, name: str, kind: str) -> None:
    for _ in range(600):
        value = await cluster.must("GET", f"{POLICIES}/{name}")
        if _conditions(value).get(kind) == "True":
            return
        await asyncio.sleep(0.1)
    raise AssertionError(value)
