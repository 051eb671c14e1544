"""The feed for routers of a relay before two real agents: endpoints over all readers, and pairs to avoid."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import Any

from jsonschema import Draft202012Validator
from penstock.agent.views.router_feed.json_schema import schema
from penstock.proto.v1.common_pb2 import ROLE_DECODE, ROLE_PREFILL, Role
from penstock.proto.v1.snapshot_pb2 import EngineFacts, Snapshot

from tests.support.agent.agent import running_agent, short_directory, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.relay import running_relay
from tests.support.agent.router_feed import fetch, read_from, relay_feed_of

_SOURCE = "10.0.0.1:5600"


def _facts(name: str, role: Role, digest: str, side_channel: str) -> EngineFacts:
    return EngineFacts(
        model="m",
        role=role,
        kv_connector="NixlConnector",
        kv_engine_id=name,
        compatibility_hash="h",
        weights={"digest": digest},
        side_channel=side_channel,
    )


def test_endpoints_and_pairs() -> None:
    """Two readers agree, one has never read; other weights are told before they meet; an agent that has gone is named."""
    with ExitStack() as parts:
        directory = parts.enter_context(short_directory())
        agents = {name: parts.enter_context(running_agent()) for name in ("a", "b")}
        listed = ",".join(f"{name}={agent.admin}" for name, agent in agents.items())
        relay = parts.enter_context(running_relay(directory, f"--agents={listed}", "--feed=127.0.0.1:0"))
        relay.wait_for(**dict.fromkeys(agents, "up"))
        url = relay_feed_of(relay)

        def feed() -> dict[str, Any]:
            found = fetch(url)
            Draft202012Validator(schema()).validate(found)
            assert found["kind"] == "relay"
            return found

        def endpoint() -> dict[str, Any]:
            found = [each for each in feed()["endpoints"] if each["source"]["address"] == _SOURCE]
            return found[0] if found else {}

        assert feed()["endpoints"] == []
        source = parts.enter_context(FakeEngine(agents["b"].listen, server="p", role=ROLE_PREFILL))
        source.snapshot(Snapshot(engine=_facts("p", ROLE_PREFILL, "aaa", _SOURCE)))
        readers = []
        for number, (agent, digest) in enumerate((("a", "aaa"), ("a", "aaa"), ("b", "bbb"))):
            reader = parts.enter_context(FakeEngine(agents[agent].listen, server=f"d{number}"))
            facts = _facts(f"d{number}", ROLE_DECODE, digest, f"10.0.1.{number}:5600")
            reader.snapshot(
                Snapshot(
                    engine=facts,
                    peers=[{"peer": {"address": _SOURCE}, "connected": True}] if number < 2 else [],
                )
            )
            readers.append(reader)
        read_from(readers[0], _SOURCE)
        wait_until(lambda: endpoint().get("states") == {"ok": 1, "unknown": 1}, "one of two has read it")
        found = endpoint()
        assert (found["state"], found["agree"], found["readLately"]) == ("ok", 1, 1)
        wait_until(lambda: endpoint()["source"]["engine"] == "b/p/0", "the engine of another agent is named")

        for reader in readers[:2]:
            reader.publish(transfer_failure("bad", peer=_SOURCE, time_ns=time.time_ns()))
        wait_until(lambda: endpoint()["state"] in {"failing", "unreachable"}, "both readers fail")
        found = endpoint()
        assert (found["agree"], found["readLately"]) == (2, 2)
        assert {row["reader"]["engine"] for row in found["readers"]} == {"a/d0/0", "a/d1/0"}

        def is_told() -> bool:
            told = json.loads(relay.agentctl("routers", "-o", "json").stdout)["endpoints"]
            fed = endpoint()
            # The two readers are of one agent, which has one vote there.
            votes = {"source": fed["source"], "state": fed["state"], "agree": 1, "readLately": 1}
            return votes in [{name: each[name] for name in votes} for each in told]

        wait_until(is_told, "agentctl routers says what the feed says")

        wait_until(
            lambda: any(
                (pair["reader"]["engine"], pair["source"]["engine"]) == ("b/d2/0", "b/p/0")
                for pair in feed()["pairsToAvoid"]
            ),
            "the pair with other weights",
        )
        (pair,) = feed()["pairsToAvoid"]
        assert (pair["reader"]["address"], pair["source"]["address"]) == ("10.0.1.2:5600", _SOURCE)

        agents["b"].kill()
        wait_until(lambda: feed()["missing"], "the agent that has gone is named")
        assert feed()["missing"][0].startswith("b: ")
