"""The relay's flags, and how agents are named and found."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from penstock.agent.errors import ConfigError
from penstock.agent.policy.sources import SourceSpec
from penstock.agent.relay.config import resolve
from penstock.agent.relay.discovery import AgentPlace, AgentSet, PodSelector, parse_agents, resolve_name
from penstock.agent.server import TcpAddress

from tests.support.agent.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

LISTEN = {"admin-listen": "unix:///run/relay.sock"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", AgentSet()),
        ("a=10.0.0.1:9465", AgentSet((AgentPlace("a", "10.0.0.1:9465"),))),
        ("10.0.0.1:9465, ", AgentSet((AgentPlace("10.0.0.1:9465", "10.0.0.1:9465"),))),
        ("[::1]:9465", AgentSet((AgentPlace("[::1]:9465", "[::1]:9465"),))),
        ("unix:///run/one/admin.sock", AgentSet((AgentPlace("one", "unix:///run/one/admin.sock"),))),
        (
            "b=unix:///b.sock,dns:agents.default:9465",
            AgentSet((AgentPlace("b", "unix:///b.sock"),), (TcpAddress("agents.default", 9465),)),
        ),
        (
            "nats://n1:4222,n2:4222/agents,a=10.0.0.1:9465",
            AgentSet(
                (AgentPlace("a", "10.0.0.1:9465"),),
                (),
                (SourceSpec("nats", "agents", ("nats://n1:4222", "nats://n2:4222")),),
            ),
        ),
    ],
)
def test_agents(text: str, found: AgentSet) -> None:
    """A name, an address, a socket, a name of DNS."""
    assert parse_agents(text) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a=1.2.3.4", "host:port"),
        ("a/b=1.2.3.4:1", "agent name 'a/b'"),
        ("=1.2.3.4:1", "agent name ''"),
        ("a=h:1,a=h:2", "agent a comes twice"),
        ("h:1,h:1", "agent h:1 comes twice"),
        ("dns:agents", "host:port"),
        ("nats://n1:4222", "BUCKET"),
        ("kubernetes:app=vllm", "SELECTOR:PORT"),
        ("kubernetes:a:b:c:9465", "SELECTOR:PORT"),
        ("kubernetes:app=vllm:70000", "SELECTOR:PORT"),
        ("kubernetes:app in vllm:9465", "kubernetes:app in vllm:9465"),
    ],
)
def test_agents_that_are_wrong(text: str, says: str) -> None:
    """Each is a sentence with what was expected."""
    with pytest.raises(ValueError, match=says):
        parse_agents(text)


def test_a_name_has_an_agent_for_each_address() -> None:
    """The system's resolver is asked."""
    found = asyncio.run(resolve_name(TcpAddress("localhost", 9465)))
    assert AgentPlace("127.0.0.1:9465", "127.0.0.1:9465") in found


def test_what_is_missing(tmp_path: Path) -> None:
    """Agents, certificates for TCP agents, certificates of the own address; each is one sentence."""
    with pytest.raises(ConfigError, match="--agents is missing"):
        resolve(LISTEN, {})
    with pytest.raises(ConfigError, match=r"agent h:1 is TCP.*--agent-tls-ca and --agent-tls-cert"):
        resolve({**LISTEN, "agents": "a=h:1"}, {})
    with pytest.raises(ConfigError, match="agent dns:h:1 is TCP"):
        resolve({**LISTEN, "agents": "dns:h:1"}, {})
    with pytest.raises(ConfigError, match=r"--admin-listen 0\.0\.0\.0:9466 is TCP"):
        resolve({"agents": "unix:///a/b.sock"}, {})
    with pytest.raises(ConfigError, match="--agent-tls-ca is given, but all agents are unix sockets"):
        resolve({**LISTEN, "agents": "unix:///a/b.sock", "agent-tls-ca": str(tmp_path / "ca")}, {})
    with pytest.raises(ConfigError, match="PENSTOCK_RELAY_DEADLINE 'soon' is wrong"):
        resolve({**LISTEN, "agents": "unix:///a/b.sock"}, {"PENSTOCK_RELAY_DEADLINE": "soon"})
    authority = Authority(tmp_path / "tls")
    own = authority.issue("relay")
    files = {
        "agent-tls-ca": str(authority.cert),
        "agent-tls-cert": str(own.cert),
        "agent-tls-key": str(own.key),
    }
    found = resolve({**LISTEN, "agents": "a=h:1", **files}, {})
    assert found.agent_tls is not None
    with pytest.raises(ConfigError, match=r"--agent-tls-key .* cannot be read"):
        resolve({**LISTEN, "agents": "a=h:1", **files, "agent-tls-key": str(tmp_path / "none")}, {})


def test_where_policies_are_written() -> None:
    """One source that is not of files; what only Kubernetes or NATS uses goes with it."""
    agents = {**LISTEN, "agents": "unix:///a/b.sock"}
    assert resolve(agents, {}).policy_source is None
    found = resolve({**agents, "policy-source": "nats://n1:4222,n2:4222/policies"}, {}).policy_source
    assert found is not None
    assert (found.kind, found.place) == ("nats", "policies")
    for wrong in ("file:/etc/p", "kubernetes:a,kubernetes:b", "policies"):
        with pytest.raises(ConfigError, match=r"--policy-source .* is wrong: expected"):
            resolve({**agents, "policy-source": wrong}, {})
    with pytest.raises(ConfigError, match="--kube-api is given, but --policy-source is not kubernetes"):
        resolve({**agents, "kube-api": "https://h:6443"}, {})
    with pytest.raises(
        ConfigError, match="--nats-ca is given, but no item of --agents, and no --policy-source"
    ):
        resolve({**agents, "nats-ca": "/etc/ca"}, {})


def test_pods_are_selected() -> None:
    """The labels may have commas; a namespace comes first; pods are asked over TLS."""
    found = parse_agents("a=h:1,kubernetes:app=vllm,role in (a,b):9465,kubernetes:other:app=vllm:9466")
    assert found.pods == (
        PodSelector("", "app=vllm,role in (a,b)", 9465),
        PodSelector("other", "app=vllm", 9466),
    )
    assert [each.name for each in found.pods] == [
        "kubernetes:app=vllm,role in (a,b):9465",
        "kubernetes:other:app=vllm:9466",
    ]
    assert found.places == (AgentPlace("a", "h:1"),)
    with pytest.raises(ConfigError, match="agent kubernetes:app=vllm:9465 is TCP"):
        resolve({**LISTEN, "agents": "kubernetes:app=vllm:9465"}, {})
