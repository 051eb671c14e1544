"""Roll-outs of the policies in a bucket of a real nats-server, over what many agents say of their engines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from nats.js.api import KeyValueConfig
from penstock.agent.policy.manifest.manifest import parse_manifest
from penstock.agent.policy.rollouts.leader import RolloutLeader
from penstock.agent.policy.rollouts.state import RolloutPlan, RolloutState, state_of
from penstock.agent.policy.sources.nats.connection import NatsAccess
from penstock.agent.policy.sources.nats.entries import bucket_info
from penstock.agent.relay.policies.compared_engines import ComparedEngines
from penstock.agent.relay.policies.listed_policies import LedPolicies
from penstock.agent.relay.policies.nats_policies import NatsPolicies
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.nats.server import NatsServer
from tests.support.policy.policies import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.agent.model import EngineKey
    from penstock.agent.policy.manifest import Manifest

AGENTS = [f"decode-{number}" for number in range(40)]


def _engine(number: int, requests: int, failed: int) -> admin.Engine:
    engine = admin.Engine(labels={"role": "decode"})
    engine.key.engine = "0"
    engine.compared.MergeFrom(
        admin.ComparedEngine(identity=f"ns/pod-{number}//0", model="m", requests=requests, failed=failed)
    )
    return engine


class _Fleet:
    """Agents with an engine each, whose counts move, and a bucket of policies."""

    def __init__(self, source: NatsPolicies) -> None:
        self.source = source
        self.now = 1_800_000_000.0
        self.served = dict.fromkeys(AGENTS, (1000000, 500000))
        self.away: set[str] = set()
        self.lead()

    def lead(self) -> None:
        """Begin with another leader, which knows nothing."""
        self.engines = ComparedEngines(lambda: self.now)
        self.policies = LedPolicies(self.source)
        self.leader = RolloutLeader(
            self.policies,
            self.engines.targets,
            self.engines.counts,
            refusing=lambda: self.engines.refusing,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )

    async def look(self) -> None:
        """Look once."""
        answers = {
            agent: [_engine(number, *self.served[agent])]
            for number, agent in enumerate(AGENTS)
            if agent not in self.away
        }
        self.engines.look(AGENTS, answers)
        await self.policies.read()
        await self.leader.look()

    async def start(self) -> None:
        """Start a roll-out to 10 percent."""
        await self.source.put(manifest("p", rollout={"percent": 0}))
        await self.look()
        await self.leader.start("p", RolloutPlan((10, 50, 100), 300.0), author="me", reason="")

    def having(self, policy: Manifest) -> set[EngineKey]:
        """Return the engines that have *policy*."""
        return {target.key for target in self.engines.targets() if policy.in_rollout(target)}

    async def policy(self) -> Manifest:
        """Return the policy in the bucket."""
        return (await self.source.read()).policies["p"].manifest

    async def state(self) -> RolloutState:
        """Return the state in the bucket."""
        found = state_of(await self.policy())
        assert found is not None
        return found

    async def serve(self, bad: float, minutes: int) -> set[EngineKey]:
        """Let all engines serve, look each minute, and return all that ever had the policy."""
        had: set[EngineKey] = set()
        for _ in range(minutes):
            inside = self.having(await self.policy())
            had |= inside
            self.now += 60
            for agent, (requests, failed) in self.served.items():
                share = bad if any(key.server == agent for key in inside) else 0.01
                self.served[agent] = (requests + 2_000, failed + int(2_000 * share))
            await self.look()
        return had


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Run a server."""
    running = NatsServer(tmp_path_factory.mktemp("nats")).start()
    yield running
    running.kill()


@pytest.fixture
async def fleet(server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Fleet:
    """Return a fleet with a bucket of its own."""
    # A busy machine is no server that is away.
    for name in ("_CONNECT_SECONDS", "_CALL_SECONDS"):
        monkeypatch.setattr(f"penstock.agent.relay.policies.nats_policies.{name}", 60.0)
    bucket = tmp_path.name.replace("_", "-")
    async with await server.client() as client:
        await client.jetstream(timeout=60).create_key_value(KeyValueConfig(bucket=bucket, history=64))
    return _Fleet(NatsPolicies("nats", NatsAccess((server.url,)), bucket))


async def _revisions(server: NatsServer, bucket: str) -> list[Manifest]:
    async with await server.client() as client:
        stream = client.jetstream()
        state = (await bucket_info(stream, bucket)).state
        kept = range(state.first_seq, state.last_seq + 1)
        messages = [await stream.get_msg(f"KV_{bucket}", number) for number in kept]
    return [parse_manifest((each.data or b"").decode()) for each in messages]


async def test_a_bad_policy_aborts_itself_in_the_first_engines(server: NatsServer, fleet: _Fleet) -> None:
    """No other engine of the fleet ever had it, by every revision of the bucket."""
    await fleet.start()
    first = fleet.having(await fleet.policy())
    assert 2 <= len(first) < 12
    assert await fleet.serve(0.5, 4) == first
    revisions = await _revisions(server, fleet.source.place)
    assert len(revisions) == 3
    assert set().union(*map(fleet.having, revisions)) == first
    state = await fleet.state()
    assert (state.phase, state.percent) == ("aborted", 0)
    assert state.message.startswith("aborted at 10 %: failed>2x: 50 % of requests failed in ")


async def test_a_harmless_policy_goes_on_under_another_leader(fleet: _Fleet) -> None:
    """At the same step, whose hold begins again; what engines counted before it came is of no roll-out."""
    await fleet.start()
    await fleet.serve(0.01, 6)
    assert (await fleet.state()).percent == 50
    fleet.lead()
    await fleet.look()
    taken = await fleet.state()
    assert (taken.phase, taken.percent, taken.tests) == ("progressing", 50, 3)
    await fleet.serve(0.01, 6)
    assert (await fleet.state()).phase == "promoted"


async def test_a_state_that_is_put_back_pauses(fleet: _Fleet) -> None:
    """The revision has grown, the state is an older one."""
    await fleet.start()
    old = await fleet.policy()
    await fleet.serve(0.01, 6)
    await fleet.source.put(parse_manifest(json.dumps(old.document())))
    await fleet.look()
    state = await fleet.state()
    assert state.phase == "paused"
    assert "put this state back" in state.message
    await fleet.leader.order("p", "resume", author="me", reason="")
    assert (await fleet.state()).phase == "progressing"


async def test_a_leader_whose_clock_is_behind_starts_the_next(fleet: _Fleet) -> None:
    """It is the newer state for each leader, not an older one that was put back."""
    await fleet.start()
    await fleet.leader.order("p", "abort", author="me", reason="")
    before = await fleet.state()
    fleet.now -= 3_600
    await fleet.look()
    await fleet.leader.start("p", RolloutPlan((10, 50, 100), 300.0), author="me", reason="again")
    assert (await fleet.state()).started > before.started
    await fleet.look()
    assert (await fleet.state()).phase == "progressing"


async def test_what_was_counted_in_a_long_absence_is_of_no_step(fleet: _Fleet) -> None:
    """An agent that is back after several looks begins anew; what it counts from then on is counted."""
    await fleet.start()
    away = next(iter(fleet.having(await fleet.policy()))).server
    fleet.away = {away}
    await fleet.look()
    fleet.now += 60
    await fleet.look()
    fleet.served[away] = (1_000_000, 1_000_000)
    fleet.away = set()
    await fleet.look()
    served = {key.server: counts for key, counts in fleet.engines.counts().items()}
    assert served[away].requests == 0
    requests, failed = fleet.served[away]
    fleet.served[away] = (requests + 7, failed)
    await fleet.look()
    served = {key.server: counts for key, counts in fleet.engines.counts().items()}
    assert (served[away].requests, served[away].failed) == (7, 0)


async def test_an_agent_that_is_away_adds_nothing(fleet: _Fleet) -> None:
    """Its engines stay; an agent without the field is named."""
    await fleet.look()
    fleet.away = {"decode-3"}
    fleet.served = {agent: (requests + 2_000, 500_000) for agent, (requests, _) in fleet.served.items()}
    await fleet.look()
    counts = {key.server: counts.requests for key, counts in fleet.engines.counts().items()}
    assert (counts["decode-3"], counts["decode-4"], len(counts)) == (0, 2_000, 40)
    fleet.away = set()
    await fleet.look()
    counts = {key.server: counts.requests for key, counts in fleet.engines.counts().items()}
    assert counts["decode-3"] == 2_000
    fleet.engines.look(AGENTS, {"decode-5": [admin.Engine()]})
    assert "the engines of decode-5 are not compared" in fleet.engines.trouble()
    fleet.engines.look(AGENTS[:2], {})
    assert (len(fleet.engines.targets()), fleet.engines.trouble()) == (2, "")
