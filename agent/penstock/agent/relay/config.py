"""The relay's configuration: flags over environment over a TOML file, checked once, frozen.

What it shows to agents over TCP: its certificate, which the agents' allow-lists name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from penstock.agent.errors import ConfigError
from penstock.agent.parsing.options import (
    Option,
    one_of,
    parse_optional_path,
    parse_positive,
    read_options,
)
from penstock.agent.policy.sources import SourceSpec, parse_sources
from penstock.agent.policy.sources.options import (
    KUBE_OPTIONS,
    NATS_ATTRIBUTES,
    NATS_OPTIONS,
    NatsFiles,
    nats_files,
)
from penstock.agent.relay.discovery import parse_agents
from penstock.agent.server import parse_tcp
from penstock.agent.server.options import (
    PAGE_ATTRIBUTES,
    TLS_ATTRIBUTES,
    FeedSettings,
    PageSettings,
    admin_options,
    admin_tls,
    feed_option,
    feed_settings,
    page_options,
    page_settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.agent.relay.discovery import AgentSet
    from penstock.agent.server import Address, AdminTls, TcpAddress


_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """The configuration of ``penstock-relay``.

    Attributes:
        agents: whom it asks.
        agent_tls: there if an agent's address is TCP.
        nats: the files for a registry or a bucket of policies.
        policy_source: where the relay writes policies; None for a relay that does not.
        admin_tls: there if, and only if, one address of *admin_listen* is TCP.
        page: how the page is served; None for not at all.
        feed: how the feed for routers is served; None for not at all.
        deadline: of one agent's answer, seconds.

    """

    agents: AgentSet
    agent_tls: AgentTls | None
    nats: NatsFiles
    policy_source: SourceSpec | None
    kube_api: str
    kube_token_file: Path | None
    kube_ca: Path | None
    admin_listen: tuple[Address, ...]
    admin_tls: AdminTls | None
    http: TcpAddress
    page: PageSettings | None
    feed: FeedSettings | None
    deadline: float
    log_format: str
    log_level: str


def parse_source(text: str) -> SourceSpec | None:
    """Parse ``kubernetes[:NAMESPACE]`` or ``nats://…/BUCKET``; None for nothing.

    Raises:
        ValueError: what was expected.

    """
    found = parse_sources(text)
    if len(found) > 1 or any(spec.kind == "file" for spec in found):
        raise ValueError("expected one of kubernetes[:NAMESPACE] or nats://HOST:PORT/BUCKET")
    return found[0] if found else None


OPTIONS: tuple[Option, ...] = tuple(
    replace(option, prefix="PENSTOCK_RELAY_")
    for option in (
        Option(
            "agents",
            "",
            parse_agents,
            "The agents: NAME=HOST:PORT, HOST:PORT, unix:///path, dns:NAME:PORT for each address of NAME, or "
            "nats://HOST:PORT/BUCKET for those of a registry, or kubernetes:[NAMESPACE:]SELECTOR:PORT for those of pods.",
            many=True,
        ),
        Option("agent-tls-ca", "", parse_optional_path, "CA bundle for the agents' certificates."),
        Option("agent-tls-cert", "", parse_optional_path, "PEM file of the relay's certificate for agents."),
        Option("agent-tls-key", "", parse_optional_path, "PEM file of that certificate's private key."),
        Option(
            "agent-tls-server-name",
            "",
            str,
            "Name in the agents' certificates, if they share one; their address's host otherwise.",
        ),
        Option(
            "policy-source",
            "",
            parse_source,
            "Where policies are written, the source that the agents follow: kubernetes[:NAMESPACE] or "
            "nats://HOST:PORT/BUCKET.",
        ),
        *NATS_OPTIONS,
        *KUBE_OPTIONS,
        *admin_options("0.0.0.0:9466"),
        Option("http", "127.0.0.1:9467", parse_tcp, "Address of metrics and health: host:port."),
        *page_options("127.0.0.1:9468"),
        feed_option(),
        Option(
            "deadline",
            "2s",
            parse_positive,
            "Time limit for an agent's answer; longer for calls that read much.",
        ),
        Option("log-format", "json", one_of("json", "console"), "json or console."),
        Option("log-level", "info", one_of("debug", "info", "warning", "error"), "Lowest level of the log."),
    )
)

_AGENT_TLS = ("agent_tls_ca", "agent_tls_cert", "agent_tls_key", "agent_tls_server_name")

_COMBINED = frozenset({*TLS_ATTRIBUTES, *_AGENT_TLS, *NATS_ATTRIBUTES, *PAGE_ATTRIBUTES, "feed"})


def resolve(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> RelayConfig:
    """Merge flags, environment and file.

    Raises:
        ConfigError: one sentence that names where the value comes from, the value and what was expected.

    """
    values = read_options(OPTIONS, flags, environment)
    agents: AgentSet = values["agents"]
    if not any(agents):
        raise ConfigError(
            "--agents is missing; give NAME=HOST:PORT for each agent, dns:NAME:PORT, nats://…/BUCKET or "
            "kubernetes:SELECTOR:PORT"
        )
    source: SourceSpec | None = values["policy_source"]
    uses_nats = bool(agents.registries) or (source is not None and source.kind == "nats")
    if values["kube_api"] and not agents.pods and (source is None or source.kind != "kubernetes"):
        raise ConfigError(
            "--kube-api is given, but --policy-source is not kubernetes:NAMESPACE, nor is one of --agents; "
            "add it, or leave it out"
        )
    return RelayConfig(
        **{name: value for name, value in values.items() if name not in _COMBINED},
        nats=nats_files(values, "" if uses_nats else "item of --agents, and no --policy-source,"),
        admin_tls=(tls := admin_tls(values)),
        page=page_settings(values, tls),
        feed=feed_settings(values, tls),
        agent_tls=_agent_tls(values, agents),
    )


def _agent_tls(values: Mapping[str, Any], agents: AgentSet) -> AgentTls | None:
    tcp = next((place.address for place in agents.places if not place.address.startswith("unix:")), "")
    if not tcp and agents.names:
        tcp = f"dns:{agents.names[0]}"
    if not tcp and agents.registries:
        tcp = agents.registries[0].name
    if not tcp and agents.pods:
        tcp = agents.pods[0].name
    files = {f"--{name.replace('_', '-')}": values[name] for name in _AGENT_TLS[:3]}
    missing = [flag for flag, path in files.items() if path is None]
    if not tcp:
        if len(missing) < len(files):
            raise ConfigError(
                f"{next(flag for flag in files if flag not in missing)} is given, but all agents are unix sockets; "
                "leave it out"
            )
        return None
    if missing:
        raise ConfigError(f"agent {tcp} is TCP, which asks for certificates; give {' and '.join(missing)}")
    return AgentTls(
        values["agent_tls_ca"],
        values["agent_tls_cert"],
        values["agent_tls_key"],
        values["agent_tls_server_name"],
    )


class AgentTls:
    """The files; they are read anew for each new connection, because they are renewed."""

    def __init__(self, ca: Path, cert: Path, key: Path, server_name: str = "") -> None:
        """Read them.

        Args:
            ca: CA bundle for the agents' certificates.
            cert: the relay's certificate and chain.
            key: private key of *cert*.
            server_name: the name in the agents' certificates, if they share one; empty for each address's host.

        Raises:
            ConfigError: one cannot be read.

        """
        self._files = (("ca", ca), ("key", key), ("cert", cert))
        self._server_name = server_name
        self._error = ""
        self._last = self._read()

    def contents(self) -> tuple[bytes, bytes, bytes]:
        """Return CA, key and certificate; while one cannot be read, those of the last time."""
        try:
            self._last = self._read()
        except ConfigError as error:
            if str(error) != self._error:
                self._error = str(error)
                _log.warning(
                    "new certificates cannot be read; the present ones stay in use", reason=self._error
                )
        else:
            self._error = ""
        return self._last

    def _read(self) -> tuple[bytes, bytes, bytes]:
        found = []
        for flag, path in self._files:
            try:
                found.append(path.read_bytes())
            except OSError as error:
                raise ConfigError(
                    f"--agent-tls-{flag} {str(path)!r} cannot be read ({error.strerror}); name a PEM file"
                ) from None
        return found[0], found[1], found[2]

    def channel_options(self) -> list[tuple[str, Any]]:
        """Return the channel options of these settings."""
        return [("grpc.ssl_target_name_override", self._server_name)] if self._server_name else []


def credentials_of(contents: tuple[bytes, bytes, bytes]) -> grpc.ChannelCredentials:
    """Return the credentials of CA, key and certificate."""
    ca, key, cert = contents
    return grpc.ssl_channel_credentials(ca, key, cert)
