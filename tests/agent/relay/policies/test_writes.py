"""Policies are written through a real relay: to a real nats-server, and from there into every engine of real agents."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import pytest
from nats.js.api import KeyValueConfig
from penstock.agent.ctl.errors import FailedError
from penstock.agent.policy.sources.nats.entries import read_entries
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey

from tests.support.agent.agent import AgentProcess, running_agent, short_directory, wait_until
from tests.support.agent.relay import RelayProcess, running_relay
from tests.support.nats.server import NatsServer
from tests.support.policy.policies import action, document
from tests.support.samples.stand_in_engine import StandInEngine
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ("decode-0", "decode-1")


class Fleet(NamedTuple):
    """Two pods with an agent and an engine each, which follow a bucket, and their relay."""

    relay: RelayProcess
    agents: dict[str, AgentProcess]
    server: NatsServer

    def in_force(self) -> dict[str, str]:
        """Return by engine what it does about failed loads; empty where no policy says it.

        An agent that a busy machine makes late is asked again.
        """
        found: dict[str, str] = {}

        def complete() -> bool:
            found.clear()
            with suppress(FailedError):
                for engine in self.relay.call("ListEngines", admin.ListEnginesRequest()).engines:
                    found[engine.key.server] = self.does(engine.key)
            return found.keys() == {*NAMES}

        wait_until(complete, "both agents answer")
        return found

    def does(self, key: EngineKey) -> str:
        """Return what an engine does about failed loads."""
        asked = admin.GetEffectivePolicyRequest(key=key)
        spec = json.loads(self.relay.call("GetEffectivePolicy", asked).spec_json)
        return str(spec.get("kvLoadFailure", {}).get("action", ""))

    def values(self) -> dict[str, str]:
        """Return the bucket."""
        return asyncio.run(self._values())

    async def _values(self) -> dict[str, str]:
        async with await self.server.client() as client:
            entries = await read_entries(client.jetstream(), "policies", 100)
            return {entry.key: entry.value.decode() for entry in entries}


async def _create(server: NatsServer) -> None:
    stays = document("stays", selector={"matchLabels": {"role": "prefill"}})
    async with await server.client() as client:
        bucket = await client.jetstream().create_key_value(KeyValueConfig(bucket="policies", history=8))
        # An emptied bucket is looked at twice, ten seconds apart.
        await bucket.put("stays", json.dumps(stays).encode())


@contextmanager
def _fleet(directory: Path) -> Iterator[Fleet]:
    with ExitStack() as parts:
        place = parts.enter_context(short_directory())
        server = NatsServer(directory / "nats").start()
        parts.callback(server.kill)
        asyncio.run(_create(server))
        source = f"--policy-source={server.url}/policies"
        agents = {name: parts.enter_context(running_agent([source])) for name in NAMES}
        for name, agent in agents.items():
            labels = f"role=decode,pod={name}"
            engine = StandInEngine({"PENSTOCK_ENDPOINT": agent.listen, "PENSTOCK_LABELS": labels}).start()
            parts.callback(engine.stop)
            engine.settle()
        listed = ",".join(f"{name}={agent.admin}" for name, agent in agents.items())
        relay = parts.enter_context(running_relay(place, f"--agents={listed}", source, "--deadline=2s"))
        relay.wait_for(**dict.fromkeys(NAMES, "up"))
        yield Fleet(relay, agents, server)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Run two pods."""
    with _fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


def _set(fleet: Fleet, name: str, does: str, *flags: str) -> tuple[int, str]:
    result = fleet.relay.agentctl(
        "set-policy", name, "--selector=role=decode", f"--kv-load-failure={does}", *flags
    )
    return result.exit_code, result.stdout + result.stderr


def test_a_write_reaches_every_engine(fleet: Fleet) -> None:
    """It waits for all pods; the agents own nothing themselves; a deletion reaches them, too."""
    code, text = _set(fleet, "one", "recompute", "--wait", "--reason=INC-1")
    assert code == 0, text
    assert fleet.in_force() == {"decode-0": "recompute", "decode-1": "recompute"}
    assert "decode-0/0" in text
    assert "decode-1/0" in text
    stored = json.loads(fleet.values()["one"])
    assert stored["metadata"]["annotations"]["penstock.dev/reason"] == "INC-1"
    assert "@" in stored["metadata"]["annotations"]["penstock.dev/author"]
    code, text = _set(fleet, "one", "fail", "--wait")
    assert code == 0, text
    assert fleet.in_force() == {"decode-0": "fail", "decode-1": "fail"}
    described = fleet.relay.agentctl("describe", "policy", "one")
    assert described.exit_code == 0, described.stderr

    def listed() -> list[tuple[int, str]]:
        policies = fleet.relay.call("ListPolicies", admin.ListPoliciesRequest(name="one")).policies
        return [(each.engines_in_force, each.owner) for each in policies]

    wait_until(lambda: listed() == [(2, f"{fleet.server.url}/policies")], "the policy is in force in both")
    gone = fleet.relay.agentctl("delete", "policy", "one", "--wait")
    assert gone.exit_code == 0, gone.stdout + gone.stderr
    assert fleet.in_force() == {"decode-0": "", "decode-1": ""}
    assert "policy deleted" in fleet.relay.log()


def test_what_is_wrong_is_written_nowhere(fleet: Fleet) -> None:
    """A manifest that the model refuses, a generation that is not the present one, a name that is not there."""
    code, text = _set(fleet, "bad", "recompute", "--priority=950")
    assert (code != 0, "break-glass" in text) == (True, True)
    code, text = _set(fleet, "two", "recompute", "--dry-run")
    assert (code, "matched engines: decode-0/0, decode-1/0" in text) == (0, True), text
    code, text = _set(fleet, "two", "recompute", "--if-generation=7")
    assert (code != 0, "not at 7" in text) == (True, True)
    missing = fleet.relay.agentctl("delete", "policy", "two")
    assert (missing.exit_code, "'two' is not in nats://" in missing.stderr) == (1, True)
    refused = fleet.relay.agentctl("rollback", "two")
    assert (refused.exit_code, "keeps no earlier manifests" in refused.stderr) == (1, True)


def test_what_the_model_refuses_is_corrected_by_a_write(fleet: Fleet) -> None:
    """Another program has written what is no policy: a write takes its place, if it still is what the writer has read."""

    async def scribble() -> int:
        async with await fleet.server.client() as client:
            bucket = await client.jetstream().key_value("policies")
            return await bucket.put("scribbled", b"no manifest")

    generation = asyncio.run(scribble())
    code, text = _set(fleet, "scribbled", "fail", f"--if-generation={generation - 1}")
    assert (code != 0, f"at generation {generation}, not at {generation - 1}" in text) == (True, True), text
    code, text = _set(fleet, "scribbled", "fail", f"--if-generation={generation}", "--wait")
    assert code == 0, text
    assert json.loads(fleet.values()["scribbled"])["metadata"]["name"] == "scribbled"
    gone = fleet.relay.agentctl("delete", "policy", "scribbled", "--wait")
    assert gone.exit_code == 0, gone.stdout + gone.stderr


def test_an_agent_that_hangs_is_named(fleet: Fleet) -> None:
    """The wait says who has not answered and ends as at one agent; the others have the policy, it has it later."""
    process = fleet.agents["decode-1"].process
    assert process is not None
    stop(process.pid)
    try:
        code, text = _set(fleet, "three", "recompute", "--wait", "--timeout=3s")
        assert code == 1, text
        assert "decode-1" in text
        first = EngineKey(server="decode-0", engine="0")

        def has_it() -> bool:
            with suppress(FailedError):
                return fleet.does(first) == "recompute"
            return False

        wait_until(has_it, "the other agent has the policy")
    finally:
        process.send_signal(signal.SIGCONT)
    fleet.relay.wait_for(**dict.fromkeys(NAMES, "up"))
    wait_until(
        lambda: fleet.in_force() == {"decode-0": "recompute", "decode-1": "recompute"},
        "the agent that hung has the policy",
    )


def test_a_source_that_is_away(fleet: Fleet) -> None:
    """A write says so, and what is in force stays; the exported policies are the source's."""
    fleet.server.kill()
    try:
        code, text = _set(fleet, "four", "fail")
        assert (code, "cannot be reached" in text) == (1, True), text
    finally:
        fleet.server.start()
    wait_until(lambda: fleet.relay.agentctl("export").exit_code == 0, "the source is back")
    exported = json.loads(fleet.relay.call("ExportPolicies", admin.ExportPoliciesRequest()).manifests_json)
    assert [each["metadata"]["name"] for each in exported["items"]] == sorted(fleet.values())


async def test_two_writers(fleet: Fleet) -> None:
    """One of two that write at the generation that both read is refused."""
    async with await fleet.server.client() as client:
        bucket = await client.jetstream().key_value("policies")
        revision = await bucket.put(
            "five", json.dumps(document("five", kvLoadFailure=action("fail"))).encode()
        )
        await bucket.update("five", json.dumps(document("five")).encode(), last=revision)
        code, text = await asyncio.to_thread(_set, fleet, "five", "auto", f"--if-generation={revision}")
        assert (code, f"not at {revision}" in text) == (1, True), text
