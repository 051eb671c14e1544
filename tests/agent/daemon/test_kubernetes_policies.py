"""``--policy-source kubernetes`` of a real agent beside a real API server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import yaml
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from tests.support.agent.agent import HASTY_AGENT, AgentProcess, short_directory, wait_until
from tests.support.kubernetes.api_server import POLICIES, ApiServer
from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from pathlib import Path

_SOURCE = "kubernetes:default"


def _ask(agent: AgentProcess, method: str, request: Any) -> Any:
    with grpc.insecure_channel(agent.admin) as channel:
        return getattr(AdminStub(channel), method)(request, timeout=60)


def _owners(agent: AgentProcess) -> dict[str, str]:
    answer = _ask(agent, "ListPolicies", admin.ListPoliciesRequest())
    return {policy.name: policy.owner for policy in answer.policies}


def _source(agent: AgentProcess) -> Any:
    status = _ask(agent, "GetStatus", admin.GetStatusRequest())
    (found,) = (each for each in status.policy_sources if each.kind == "kubernetes")
    return found


def _call(cluster: ApiServer, method: str, path: str, body: Any = None) -> Any:
    return asyncio.run(cluster.must(method, path, body))


def test_an_agent_follows_its_namespace(tmp_path: Path) -> None:
    """Changes, a refused object, a name that a file has, a server that is killed, and everything deleted."""
    cluster = ApiServer(tmp_path)
    with short_directory() as directory:
        file = directory / "policies.yaml"
        file.write_text(yaml.safe_dump(document("both", kvLoadFailure=action("auto"))))
        arguments = [
            f"--policy-file={file}", f"--policy-source={_SOURCE}", f"--kube-api={cluster.url}",
            f"--kube-token-file={tmp_path}/token", f"--kube-ca={cluster.ca}",
        ]  # fmt: skip
        agent = AgentProcess(directory, arguments, module=HASTY_AGENT)
        try:
            cluster.start_etcd()
            cluster.start_server()
            asyncio.run(cluster.ready())
            asyncio.run(cluster.install())
            asyncio.run(cluster.write_token())
            for name in ("a", "both"):
                _call(cluster, "POST", POLICIES, document(name))
            agent.start()
            assert _owners(agent) == {"a": _SOURCE, "both": "file:policies.yaml"}
            assert [each.name for each in _source(agent).refusals] == ["both"]

            # This API server evaluates no rules, so the model has to refuse.
            _call(cluster, "POST", POLICIES, document("b", priority=950))
            wait_until(lambda: _source(agent).refused == 2, "the refusal")
            assert any("break-glass" in each.sentence for each in _source(agent).refusals)
            assert set(_owners(agent)) == {"a", "both"}

            cluster.stop()
            wait_until(lambda: _source(agent).state == "away", "the server that is gone")
            agent.stop()
            agent.start()
            assert set(_owners(agent)) == {"a", "both"}
            assert agent.get("/readyz")[0] == 200

            cluster.start_etcd()
            cluster.start_server()
            asyncio.run(cluster.ready())
            wait_until(lambda: _source(agent).state == "connected", "the server that is back", 60)
            _call(cluster, "DELETE", POLICIES)
            # The API server deletes them one by one: what it does within seconds is looked at twice.
            wait_until(lambda: _owners(agent) == {"both": "file:policies.yaml"}, "the withdrawal", 60)
        finally:
            agent.stop()
            cluster.stop()
