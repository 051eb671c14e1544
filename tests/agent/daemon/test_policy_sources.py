"""``--policy-source`` of a real agent: a bucket beside files, what is said about them where, a start without the server."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from tests.support.agent.agent import HASTY_AGENT, AgentProcess, short_directory, wait_until
from tests.support.nats.server import NatsServer
from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from pathlib import Path

BUCKET = "policies"


def _write(server: NatsServer, **values: str) -> None:
    async def write() -> None:
        async with await server.client() as client:
            bucket = await client.jetstream().create_key_value(bucket=BUCKET)
            for key, value in values.items():
                await bucket.put(key, value.encode())

    asyncio.run(write())


def _text(name: str) -> str:
    return json.dumps(document(name, kvLoadFailure=action("auto")))


def _ask(agent: AgentProcess, method: str, request: Any) -> Any:
    with grpc.insecure_channel(agent.admin) as channel:
        return getattr(AdminStub(channel), method)(request, timeout=60)


def _owners(agent: AgentProcess) -> dict[str, str]:
    answer = _ask(agent, "ListPolicies", admin.ListPoliciesRequest())
    return {policy.name: policy.owner for policy in answer.policies}


def _sources(agent: AgentProcess) -> list[admin.PolicySourceStatus]:
    return list(_ask(agent, "GetStatus", admin.GetStatusRequest()).policy_sources)


def test_a_bucket_beside_files(tmp_path: Path) -> None:
    """The first source of a name holds; an agent without its server starts with the last set, degraded and ready."""
    server = NatsServer(tmp_path / "nats").start()
    with short_directory() as directory:
        (directory / "base.yaml").write_text(_text("base"))
        source = f"{server.url}/{BUCKET}"
        flags = [f"--policy-source=file:{directory}/base.yaml", f"--policy-source={source}"]
        agent = AgentProcess(directory, flags, module=HASTY_AGENT)
        try:
            _write(server, a=_text("a"), base=_text("base"), bad="kind: Pod")
            agent.start()
            wait_until(lambda: "a" in _owners(agent), "the bucket's policy")
            assert _owners(agent) == {"base": "file:base.yaml", "a": source}
            files, bucket = _sources(agent)
            assert (files.kind, files.state, files.accepted) == ("file", "connected", 1)
            assert (bucket.name, bucket.kind, bucket.state, bucket.accepted, bucket.refused) == (
                source,
                "nats",
                "connected",
                1,
                2,
            )
            assert [each.name for each in bucket.refusals] == ["bad", "base"]
            assert "comes first" in bucket.refusals[1].sentence
            assert agent.metric("penstock_policy_source_up", source=source) == 1
            assert agent.metric("penstock_policy_source_objects", source=source, state="refused") == 2
            with pytest.raises(grpc.RpcError, match=f"policy 'a' belongs to the policy source {source}"):
                _ask(agent, "DeletePolicy", admin.DeletePolicyRequest(name="a", author="me@host"))
            agent.stop()
            server.kill()
            agent.start()
            assert _owners(agent) == {"base": "file:base.yaml", "a": source}
            wait_until(lambda: _sources(agent)[1].state == "away", "away")
            assert agent.metric("penstock_policy_source_up", source=source) == 0
            assert agent.metric("penstock_agent_degraded", reason="policy_source_away") == 1
            assert agent.get("/readyz")[0] == 200
            server.start()
            _write(server, a=_text("a"), b=_text("b"))
            wait_until(lambda: "b" in _owners(agent), "the new policy")
            agent.stop()
            agent = AgentProcess(directory, flags[:1], module=HASTY_AGENT).start()
            assert _owners(agent) == {"base": "file:base.yaml", "a": "imperative", "b": "imperative"}
        finally:
            agent.kill()
            server.kill()
