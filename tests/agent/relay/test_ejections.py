"""Two sick servers of three, a lying agent, relays that are killed: real agents, relays, NATS, and front ends' runtimes."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from nats.js.api import KeyValueConfig
from penstock.proto.v1.common_pb2 import ROLE_PREFILL
from penstock.proto.v1.snapshot_pb2 import EngineFacts, Snapshot

from tests.support.agent.agent import running_agent, short_directory, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.front_end import FrontEnd
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.relay import RelayProcess
from tests.support.agent.router_feed import read_from
from tests.support.nats.server import NatsServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_PREFILLS = ("p0", "p1", "p2")
_READERS = ("d0", "d1", "liar")
_ADDRESSES = {name: f"10.0.0.{number}:5600" for number, name in enumerate(_PREFILLS)}
_POLICY = """
apiVersion: penstock.dev/v1alpha1
kind: TransferPolicy
metadata: {name: sick}
spec:
  selector: {matchLabels: {role: prefill}}
  ejection: {action: enforce, after: 10s, minFailures: 2, duration: 10m}
"""


class _Fleet:
    """Three prefill pods and their readers; what each reader says is said anew at each look."""

    def __init__(self, parts: AsyncExitStack, source: str) -> None:
        self.agents = {
            name: parts.enter_context(running_agent([source], {"POD_NAME": name, "POD_NAMESPACE": "vllm"}))
            for name in (*_PREFILLS, *_READERS)
        }
        self.front_ends = {}
        for name in _PREFILLS:
            engine = parts.enter_context(FakeEngine(self.agents[name].listen, role=ROLE_PREFILL))
            engine.snapshot(Snapshot(engine=EngineFacts(model="tiny", side_channel=_ADDRESSES[name])))
            self.front_ends[name] = FrontEnd(self.agents[name])
            parts.callback(self.front_ends[name].runtime.stop, 5.0)
        self.readers = {
            name: parts.enter_context(FakeEngine(self.agents[name].listen, model="other"))
            for name in _READERS
        }
        for name, reader in self.readers.items():
            peers = [{"peer": {"address": address}} for address in _ADDRESSES.values()]
            reader.snapshot(
                Snapshot(engine=EngineFacts(model="other", side_channel=f"{name}:5600"), peers=peers)
            )

    def say(self, bad: dict[str, Sequence[str]]) -> None:
        """Each reader reads: from those in *bad*, by reader, it fails."""
        for name, reader in self.readers.items():
            for prefill, address in _ADDRESSES.items():
                if prefill in bad[name]:
                    failures = [
                        transfer_failure(f"{prefill}-{each}", peer=address, time_ns=time.time_ns())
                        for each in range(3)
                    ]
                    reader.publish(*failures)
                else:
                    read_from(reader, address)

    def out(self) -> list[str]:
        """Return the servers whose front ends answer 503."""
        return [name for name, front_end in self.front_ends.items() if front_end.out]


def _listed(relay: RelayProcess) -> dict[str, dict[str, Any]]:
    said = relay.agentctl("get", "ejections", "-o", "json")
    assert said.exit_code == 0, said.output
    return {each["key"]["server"]: each for each in json.loads(said.stdout)["ejections"]}


def _leads(relay: RelayProcess) -> bool:
    found = json.loads(relay.agentctl("get", "ejections", "-o", "json").stdout)
    return "another relay" not in found.get("undecided", "")


async def test_two_sick_servers_of_three_and_a_liar(tmp_path: Path) -> None:
    """One goes out, with its evidence; the other stays, through the death of the leading relay; one command undoes it."""
    async with AsyncExitStack() as parts:
        server = NatsServer(tmp_path / "nats").start()
        parts.callback(server.kill)
        async with await server.client() as client:
            await client.jetstream().create_key_value(KeyValueConfig(bucket="policies"))
        source = f"--policy-source={server.url}/policies"
        await asyncio.to_thread(_play, parts, source, tmp_path)


def _play(parts: AsyncExitStack, source: str, directory: Path) -> None:
    fleet = _Fleet(parts, source)
    listed = ",".join(f"{name}={agent.admin}" for name, agent in fleet.agents.items())
    relays = []
    for _ in range(2):
        relay = RelayProcess(parts.enter_context(short_directory()), f"--agents={listed}", source)
        parts.callback(relay.stop)
        relay.start()
        relay.wait_for(**dict.fromkeys(fleet.agents, "up"))
        relays.append(relay)
    policy = directory / "policy.yaml"
    policy.write_text(_POLICY)
    applied = relays[0].agentctl("apply", "-f", str(policy))
    assert applied.exit_code == 0, applied.output
    wait_until(lambda: any(map(_leads, relays)), "a relay leads")
    leader, other = sorted(relays, key=_leads, reverse=True)

    # A liar alone takes nothing out, and says what it does of a server that others read well.
    bad: dict[str, Sequence[str]] = {"d0": ["p0", "p1"], "d1": ["p0", "p1"], "liar": ["p2"]}

    def one_is_out() -> bool:
        fleet.say(bad)
        return len(fleet.out()) == 1

    wait_until(one_is_out, "one of the sick servers is out")
    (gone,) = fleet.out()
    (sick,) = {"p0", "p1"} - {gone}
    fleet.say(bad)
    wait_until(lambda: _listed(leader).get(sick, {}).get("verdict") == "held_back", "the other is held back")
    found = _listed(leader)
    assert set(found) == {gone, sick}
    assert (found[gone]["order"]["author"], found[gone]["policy"]) == ("relay (policy sick)", "sick")
    assert found[gone]["order"]["reason"].startswith(f"2 of 3 readers (d0, d1) blame {_ADDRESSES[gone]}, ")
    assert found[sick]["why"].endswith(
        "; 2 of 3 pods with prefill servers of tiny would be out, more than maxPodsPercent (34)"
    )
    shown = leader.agentctl("get", "ejections").stdout
    assert "held back" in shown
    assert "out" in shown

    leader.stop(signal.SIGKILL)
    wait_until(lambda: _leads(other), "the other relay leads")

    def judged_anew() -> bool:
        fleet.say(bad)
        return _listed(other).get(sick, {}).get("verdict") == "held_back"

    wait_until(judged_anew, "the other relay holds it back, too")
    assert fleet.out() == [gone]

    undone = other.agentctl("eject", "off", f"{gone}/0")
    assert undone.exit_code == 0, undone.output
    wait_until(lambda: fleet.out() != [gone], "it is back")

    def exempt() -> bool:
        fleet.say(bad)
        return "put it back; it is left alone for" in _listed(other).get(gone, {}).get("why", "")

    wait_until(exempt, "what a person put back is left alone")
    assert gone not in fleet.out()
    audit = json.loads(other.agentctl("get", "audit", "-o", "json").stdout)["entries"]
    acts = [(each["action"], each["author"]) for each in audit if each["action"].startswith("eject")]
    assert ("eject", f"relay (policy sick) at {gone}") in acts

    deleted = other.agentctl("delete", "policy", "sick")
    assert deleted.exit_code == 0, deleted.output
    wait_until(lambda: not fleet.out(), "without the policy nothing of it stays out")
