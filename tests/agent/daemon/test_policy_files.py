"""``--policy-file`` of a real agent: a mounted directory, engines, metrics, restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest
import yaml
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from tests.support.agent.agent import HASTY_AGENT, AgentProcess, short_directory, wait_until
from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from pathlib import Path

_VALID = "penstock_agent_policy_files_valid"
_LOADS = "penstock_agent_policy_files_loads_total"


def _ask(agent: AgentProcess, method: str, request: Any) -> Any:
    with grpc.insecure_channel(agent.admin) as channel:
        return getattr(AdminStub(channel), method)(request, timeout=60)


def _policies(agent: AgentProcess) -> dict[str, str]:
    answer = _ask(agent, "ListPolicies", admin.ListPoliciesRequest())
    return {policy.name: policy.owner for policy in answer.policies}


def _write(path: Path, *names: str) -> None:
    _put(path, yaml.safe_dump_all([document(name, kvLoadFailure=action("auto")) for name in names]))


def _put(path: Path, text: str) -> None:
    """Write all of a file at once: the agent reads at any moment."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_policies_follow_the_files() -> None:
    """There before an engine can ask; changed, refused, mended; and what is said about it where."""
    with short_directory() as directory:
        files = directory / "policies"
        files.mkdir()
        _write(files / "a.yaml", "a")
        agent = AgentProcess(directory, [f"--policy-file={files}"], module=HASTY_AGENT).start()
        try:
            assert _policies(agent) == {"a": "file:a.yaml"}
            assert (agent.metric(_VALID), agent.metric(_LOADS, result="applied")) == (1, 1)
            _write(files / "b.yaml", "b")
            wait_until(lambda: "b" in _policies(agent), "the new file's policy")
            _put(files / "b.yaml", "kind: Pod\n")
            wait_until(lambda: agent.metric(_VALID) == 0, "the refusal")
            status = _ask(agent, "GetStatus", admin.GetStatusRequest())
            assert status.policy_file == str(files)
            assert status.policy_file_error == "b.yaml:1: apiVersion is missing; use penstock.dev/v1alpha1"
            assert (agent.metric(_LOADS, result="refused"), agent.get("/readyz")[0]) == (1, 200)
            assert set(_policies(agent)) == {"a", "b"}
            _write(files / "b.yaml", "c")
            wait_until(lambda: agent.metric(_VALID) == 1, "the mended file")
            assert _policies(agent) == {"a": "file:a.yaml", "c": "file:b.yaml"}
            assert _ask(agent, "GetStatus", admin.GetStatusRequest()).policy_file_error == ""
        finally:
            agent.stop()


def test_over_restarts() -> None:
    """With a file that is bad at the start, and without the option at last."""
    with short_directory() as directory:
        file = directory / "policies.yaml"
        _write(file, "a")
        AgentProcess(directory, [f"--policy-file={file}"]).start().stop()
        file.write_text("")
        agent = AgentProcess(directory, [f"--policy-file={file}"]).start()
        try:
            assert _policies(agent) == {"a": "file:policies.yaml"}
            assert (agent.metric(_VALID), agent.get("/readyz")[0]) == (0, 200)
            refused = [record for record in agent.records() if "policy files refused" in str(record["event"])]
            assert [(record["level"], record["in_force"]) for record in refused] == [("error", 1)]
        finally:
            agent.stop()
        agent = AgentProcess(directory).start()
        try:
            assert _policies(agent) == {"a": "imperative"}
            assert agent.metric(_VALID) is None
            wait_until(
                lambda: any("--policy-file is no longer set" in str(log["event"]) for log in agent.records()),
                "what becomes of the option's policies is said",
            )
        finally:
            agent.stop()


def test_a_policy_of_a_file_is_not_edited_by_hand() -> None:
    """The answer names the file and the way out."""
    with short_directory() as directory:
        file = directory / "policies.yaml"
        _write(file, "a")
        agent = AgentProcess(directory, [f"--policy-file={file}"]).start()
        try:
            with pytest.raises(grpc.RpcError) as caught:
                _ask(agent, "DeletePolicy", admin.DeletePolicyRequest(name="a", author="me"))
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert caught.value.details() == (
                "policy 'a' belongs to the file policies.yaml; change it there, or override it "
                "for a time by a policy of another name: agentctl set-policy a-now --priority 900 --ttl 1h --reason WHY …"
            )
            (entry,) = _ask(agent, "ListAudit", admin.ListAuditRequest(name="a")).entries
            assert (entry.author, entry.action) == ("file:policies.yaml", "apply")
        finally:
            agent.stop()
