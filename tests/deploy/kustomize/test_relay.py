"""The relay's manifests, and the component that lets it in: both sides fit, and work with certificates as they say."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml
from penstock.agent.daemon.config import resolve as resolve_agent
from penstock.agent.relay.config import resolve as resolve_relay
from penstock.agent.server import TcpAddress
from penstock.agent.server.callers import Role
from penstock.proto.v1 import admin_pb2 as admin

from tests.deploy.kustomize.conftest import CASES
from tests.deploy.kustomize.test_golden import golden
from tests.support.agent.agent import AgentProcess, short_directory
from tests.support.agent.certificates import Authority
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.relay import running_relay
from tests.support.kubernetes.builds import ROOT, VERSIONS, build, documents
from tests.support.kubernetes.pods import containers, environment, named, templates, violations

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kubernetes.builds import Checkout

_TLS = "/etc/penstock/tls"


def relay_pod() -> dict[str, Any]:
    """Return the relay's pod."""
    (pod,) = (pod for each in documents(golden("relay").read_text()) for pod in templates(each))
    return pod


def agent_pod(checkout: Checkout) -> dict[str, Any]:
    """Return a pod whose agent lets the relay in."""
    found = {
        each["metadata"]["name"]: each
        for each in documents(checkout.build(CASES, "component", "component/fleet"))
    }
    (pod,) = templates(found["restricted"])
    return pod


def variables(pod: dict[str, Any], container: str, files: Path) -> dict[str, str]:
    """Return a container's environment, with *files* for the directory of the certificates."""
    values = environment(pod, named(pod, container))
    return {name: value.replace(_TLS, str(files)) for name, value in values.items()}


def flags(values: dict[str, str], prefix: str) -> dict[str, str]:
    """Return the variables that begin with *prefix* as flags."""
    return {
        f"--{name.removeprefix(prefix).lower().replace('_', '-')}": value
        for name, value in values.items()
        if name.startswith(prefix)
    }


def certificates(directory: Path, authority: Authority, name: str) -> Path:
    """Write the files of a Secret of cert-manager."""
    place = directory / name
    place.mkdir()
    issued = authority.issue(name, common_name=name)
    (place / "ca.crt").write_bytes(authority.cert.read_bytes())
    (place / "tls.crt").write_bytes(issued.cert.read_bytes())
    (place / "tls.key").write_bytes(issued.key.read_bytes())
    return place


def test_the_options_exist_and_both_sides_agree(checkout: Checkout, tmp_path: Path) -> None:
    """The relay looks for the label that the component gives, at the port and by the name of the certificate."""
    pod, served = relay_pod(), agent_pod(checkout)
    files = certificates(tmp_path, Authority(tmp_path / "pki"), "any")
    relay = resolve_relay({}, variables(pod, "penstock-relay", files))
    agent = resolve_agent({}, variables(served, "penstock", files))
    (selector,) = relay.agents.pods
    key, value = selector.labels.split("=")
    assert served["metadata"]["labels"][key] == value
    assert [each.port for each in agent.admin_listen if isinstance(each, TcpAddress)] == [selector.port]
    assert agent.admin_tls is not None
    assert agent.admin_tls.allow.roles == {"penstock-relay": Role.WRITE}
    for each, name in ((pod, "penstock-relay"), (served, "penstock")):
        (mount,) = (mount for mount in named(each, name)["volumeMounts"] if mount["mountPath"] == _TLS)
        (volume,) = (volume for volume in each["spec"]["volumes"] if volume["name"] == mount["name"])
        assert volume["secret"]["secretName"] in ("penstock-relay-tls", "penstock-agent-tls")
    assert violations(pod) == violations(served) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_namespace_is_the_users(checkout: Checkout, version: str, tmp_path: Path) -> None:
    """It reaches the subjects of the bindings; each role is one of deploy/crd; every object fits the schemas."""
    (checkout.place / "mine" / "kustomization.yaml").write_text(
        "namespace: serving\n"
        "resources: [../penstock/relay]\n"
        "components: [../penstock/relay/kubernetes-policies]\n"
    )
    found = documents(build(checkout.place / "mine", version))
    for each in found:
        assert kubernetes_validate.validate(each, version, strict=True) == version
    assert {each["metadata"]["namespace"] for each in found} == {"serving"}
    bindings = [each for each in found if each["kind"] == "RoleBinding"]
    subjects = [subject for each in bindings for subject in each["subjects"]]
    account = {"kind": "ServiceAccount", "name": "penstock-relay", "namespace": "serving"}
    assert subjects == [account] * 3
    roles = yaml.safe_load_all((ROOT / "deploy" / "crd" / "roles.yaml").read_text())
    assert {each["roleRef"]["name"] for each in bindings} <= {each["metadata"]["name"] for each in roles}
    (pod,) = (pod for each in found for pod in templates(each))
    assert pod["spec"]["serviceAccountName"] == "penstock-relay"
    files = certificates(tmp_path, Authority(tmp_path / "pki"), "any")
    config = resolve_relay({}, variables(pod, "penstock-relay", files))
    assert config.policy_source is not None
    assert config.policy_source.kind == "kubernetes"


def test_only_the_agent_has_its_certificates(checkout: Checkout) -> None:
    """No other container of the pod can read the key."""
    pod = agent_pod(checkout)
    mounted = [each["name"] for each in containers(pod) if _TLS in str(each.get("volumeMounts"))]
    assert mounted == ["penstock"]


def test_a_relay_reaches_an_agent(checkout: Checkout) -> None:
    """Real ones, with the variables of the manifests and certificates of one authority, for these names only."""
    pod, served = relay_pod(), agent_pod(checkout)
    with short_directory() as directory, ExitStack() as parts:
        authority = Authority(directory / "pki")
        served_files = certificates(directory, authority, "penstock-agent")
        of_admin = [
            f"{name}={value}"
            for name, value in flags(variables(served, "penstock", served_files), "PENSTOCK_AGENT_").items()
            if name.startswith("--admin-") and name != "--admin-listen"
        ]
        # Both flags: the helper's own is the unix socket.
        agent = AgentProcess(directory, ["--admin-listen=127.0.0.1:0", *of_admin])
        parts.callback(agent.stop)
        agent.start()
        address = json.loads((agent.state_dir / "addresses.json").read_text())["admin_tcp"]
        parts.enter_context(FakeEngine(agent.listen, server="decode"))
        own_files = certificates(directory, authority, "penstock-relay")
        own = flags(variables(pod, "penstock-relay", own_files), "PENSTOCK_RELAY_")
        own |= {
            "--agents": f"decode-0={address}",
            "--admin-listen": f"unix://{directory}/relay.sock",
            "--http": "127.0.0.1:0",
        }
        relay = parts.enter_context(
            running_relay(directory, *(f"{name}={value}" for name, value in own.items()))
        )
        relay.wait_for(**{"decode-0": "up"})
        engines = relay.call("ListEngines", admin.ListEnginesRequest()).engines
        assert [each.key.server for each in engines] == ["decode-0/decode"]
        # Nothing acknowledges for the engine; the agent has the order all the same.
        relay.agentctl("quarantine", "add", "10.0.0.9:5600", "--timeout=1s")
        (entry,) = relay.call("ListAudit", admin.ListAuditRequest()).entries
        assert entry.author.startswith("tls:penstock-relay")
