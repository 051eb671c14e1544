"""The status of objects on a real API server, of what a real agent and its engine say."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.policy.kubernetes import ApiClient
from penstock.agent.relay.agent_places import parse_agents
from penstock.agent.relay.fleet import Fleet
from penstock.agent.relay.status.fleet_words import FleetWords
from penstock.agent.relay.status.writer import StatusWriter

from tests.support.agent.agent import AgentProcess, running_agent, short_directory, wait_until
from tests.support.agent.relay import RelayProcess
from tests.support.kubernetes.api_server import BINDINGS, NAMESPACE, POLICIES, ApiServer
from tests.support.policy.policies import action, document
from tests.support.samples.stand_in_engine import StandInEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiServer]:
    """Start one, with the definition and the roles."""
    server = ApiServer(tmp_path_factory.mktemp("cluster"))
    try:
        server.start_etcd()
        server.start_server()
        await server.ready()
        await server.install()
        yield server
    finally:
        server.stop()


class _Held:
    """A lease that the test gives and takes."""

    held = True
    error = ""

    async def run(self) -> None:
        """Do nothing."""


def _conditions(value: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["status"] for each in value.get("status", {}).get("conditions", ())}


async def test_kubectl_waits_for_it(cluster: ApiServer) -> None:
    """It is Programmed when the engine has it, Unknown when the agent is gone; what does not change is not written."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "penstock-relay"}
    account = {"kind": "ServiceAccount", "name": "agent", "namespace": NAMESPACE}
    access = await cluster.access()
    async with AsyncExitStack() as parts:
        directory = parts.enter_context(short_directory())
        flags = (
            f"--policy-source=kubernetes:{NAMESPACE}",
            f"--kube-api={access.url}",
            f"--kube-token-file={access.token_file}",
            f"--kube-ca={access.ca_file}",
        )
        agent = AgentProcess(directory, flags)
        await asyncio.to_thread(agent.start)
        parts.callback(agent.stop)
        engine = StandInEngine({"PENSTOCK_ENDPOINT": agent.listen, "PENSTOCK_LABELS": "role=decode"}).start()
        parts.callback(engine.stop)
        await asyncio.to_thread(engine.settle)
        fleet = Fleet(parse_agents(f"pod={agent.admin}"), None, 2.0, {})
        parts.push_async_callback(fleet.close)
        following = asyncio.ensure_future(fleet.run())
        parts.callback(following.cancel)

        async def words() -> FleetWords:
            found, missing = await fleet.policies()
            return FleetWords(
                {name: each.policies for name, each in found.items()}, await fleet.statuses(), missing
            )

        now = [0.0]
        lease = _Held()
        writer = StatusWriter(access, lease, words, clock=lambda: now[0])

        async def look() -> None:
            now[0] += 5.0
            async with ApiClient(access) as client:
                await writer.look(client)

        selector = {"matchLabels": {"role": "decode"}}
        await cluster.must("POST", POLICIES, document("a", selector=selector))
        # Without the role it may not.
        with pytest.raises(Exception, match="penstock-relay"):
            await look()
        binding = {"metadata": {"name": "relay"}, "roleRef": role, "subjects": [account]}
        await cluster.must("POST", BINDINGS, binding)

        async def until(**wanted: str) -> dict[str, Any]:
            for _ in range(200):
                try:
                    await look()
                except Exception:  # noqa: BLE001  (the role takes its time)
                    await asyncio.sleep(0.1)
                value: dict[str, Any] = await cluster.must("GET", f"{POLICIES}/a")
                if wanted.items() <= _conditions(value).items():
                    return value
                await asyncio.sleep(0.1)
            raise AssertionError(value)

        waiting = asyncio.ensure_future(
            cluster.kubectl("wait", "--for=condition=Programmed", "transferpolicies/a", "--timeout=60s")
        )
        value = await until(Accepted="True", Programmed="True", Degraded="False")
        assert "condition met" in await waiting
        assert (value["status"]["matched"], value["status"]["inForce"], value["status"]["refused"]) == (
            1,
            1,
            0,
        )
        assert value["status"]["observedGeneration"] == value["metadata"]["generation"] == 1
        version = value["metadata"]["resourceVersion"]
        for _ in range(3):
            await look()
        assert (await cluster.must("GET", f"{POLICIES}/a"))["metadata"]["resourceVersion"] == version

        # A change is another generation; between two writes of an object there are 5 s.
        patch = {"spec": {"kvLoadFailure": action("fail")}}
        status, _ = await cluster.call("PATCH", f"{POLICIES}/a", patch, "application/merge-patch+json")
        assert status == 200
        value = await until(Programmed="True")
        while value["status"]["observedGeneration"] == 1:
            value = await until(Programmed="True")
        written = writer.patches["ok"]
        await asyncio.to_thread(agent.kill)
        await asyncio.to_thread(wait_until, lambda: fleet.trouble() != "", "the relay misses the agent")
        async with ApiClient(access) as client:
            for _ in range(20):
                # The clock stands.
                await writer.look(client)
        assert writer.patches["ok"] <= written + 1
        await until(Programmed="Unknown", Degraded="True")
        lease.held = False
        version = (await cluster.must("GET", f"{POLICIES}/a"))["metadata"]["resourceVersion"]
        await asyncio.to_thread(agent.start)
        await asyncio.to_thread(wait_until, lambda: fleet.trouble() == "", "the agent is back")
        await look()
        assert (await cluster.must("GET", f"{POLICIES}/a"))["metadata"]["resourceVersion"] == version


@pytest.mark.long
async def test_another_relay_goes_on(cluster: ApiServer) -> None:
    """Of two relays one writes; when it is killed the other does. A lease lasts 15 s."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "penstock-relay"}
    account = {"kind": "ServiceAccount", "name": "agent", "namespace": NAMESPACE}
    binding = {"metadata": {"name": "relay"}, "roleRef": role, "subjects": [account]}
    await cluster.must("POST", BINDINGS, binding)
    access = await cluster.access()
    flags = (
        f"--policy-source=kubernetes:{NAMESPACE}",
        f"--kube-api={access.url}",
        f"--kube-token-file={access.token_file}",
        f"--kube-ca={access.ca_file}",
    )
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
