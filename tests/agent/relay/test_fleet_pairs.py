"""A relay before two real agents: what neither knows alone is seen before traffic."""

from __future__ import annotations

from contextlib import ExitStack, closing

from penstock.agent.ctl.connection.client import Client
from penstock.agent.ctl.connection.contexts import ClientTls
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import ROLE_DECODE, ROLE_PREFILL, Role
from penstock.proto.v1.snapshot_pb2 import EngineFacts, Snapshot

from tests.support.agent.agent import running_agent, short_directory, wait_until
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.relay import running_relay

_SIDES: tuple[tuple[str, Role, str], ...] = (
    ("decode-0", ROLE_DECODE, "aaa"),
    ("prefill-0", ROLE_PREFILL, "bbb"),
)


def test_other_weights_on_the_other_side() -> None:
    """Each agent has one engine and no pair; the relay compares both, and its diagnosis says what will be wrong."""
    with ExitStack() as parts:
        directory = parts.enter_context(short_directory())
        agents = {name: parts.enter_context(running_agent()) for name, _, _ in _SIDES}
        for name, role, digest in _SIDES:
            facts = EngineFacts(
                model="m",
                role=role,
                kv_connector="NixlConnector",
                kv_engine_id=name,
                compatibility_hash="h",
                weights={"digest": digest},
            )
            engine = parts.enter_context(FakeEngine(agents[name].listen, role=role))
            engine.snapshot(Snapshot(engine=facts))
        listed = ",".join(f"{name}={agent.admin}" for name, agent in agents.items())
        relay = parts.enter_context(running_relay(directory, f"--agents={listed}"))
        relay.wait_for(**dict.fromkeys(agents, "up"))

        def pairs() -> list[admin.Pair]:
            return list(relay.call("ListPairs", admin.ListPairsRequest()).pairs)

        wait_until(lambda: len(pairs()) == 1, "a pair")
        (pair,) = pairs()
        assert (pair.key.server, pair.peer_key.server) == ("decode-0", "prefill-0")
        assert (pair.compatible, pair.weights) == (admin.PAIR_COMPATIBILITY_YES, admin.PAIR_WEIGHTS_DIFFER)
        shown = relay.agentctl("get", "pairs", "decode-0/0")
        assert shown.exit_code == 0, shown.stderr
        assert "differ" in shown.stdout
        sentence = (
            "engine decode-0/0 and engine prefill-0/0 have loaded different weights: answers will be wrong"
        )
        assert f"wrong  weights_differ: {sentence}" in relay.agentctl("doctor").stdout
        for asked in ((), ("decode-0/0",), ("prefill-0/0",)):
            said = relay.agentctl("diagnose", *asked)
            assert (said.exit_code, said.stdout.splitlines()[0]) == (1, sentence)
        with closing(Client(agents["decode-0"].admin, ClientTls())) as client:
            assert not client.call("ListPairs", admin.ListPairsRequest()).pairs
