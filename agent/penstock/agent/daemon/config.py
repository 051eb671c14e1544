"""Configuration: flags over environment over a TOML file, checked once, frozen; shown without secrets in a bundle."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.agent.daemon.registration import Registration, parse_advertised, parse_name, registration_of
from penstock.agent.errors import ConfigError
from penstock.agent.parsing import MASK, mask_urls, parse_size
from penstock.agent.parsing.options import (
    AGENT_PREFIX,
    Option,
    one_of,
    parse_count,
    parse_directory,
    parse_optional_path,
    parse_positive,
    parse_seconds,
    read_options,
)
from penstock.agent.policy.sources import SourceSpec, parse_sources
from penstock.agent.policy.sources.options import (
    KUBE_OPTIONS,
    NATS_ATTRIBUTES,
    NATS_OPTIONS,
    NatsFiles,
    nats_files,
    parse_registry,
)
from penstock.agent.server import (
    Address,
    AdminTls,
    TcpAddress,
    UnixAddress,
    parse_address,
    parse_tcp,
)
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
from penstock.agent.state import MIB, MIN_LIMIT
from penstock.agent.traces.export import ExportSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ENVIRONMENT_PREFIX = AGENT_PREFIX

# Enough for what happens in a day of trouble.
_MIN_AUDIT = 100
_MIN_MEMORY = 128 * MIB


# Fields whose text is a secret; those of a file's path have another type, or end so.
_SECRET_NAME = re.compile(r"header|token|password|passwd|secret|credential|authorization", re.IGNORECASE)
_SHOWN_AS_PATHS = ("_file", "_key", "certificate")


@dataclass(frozen=True, slots=True)
class Config:
    """The daemon's configuration.

    Attributes:
        policy_file: a file or a directory of policies; None for none.
        policy_sources: all sources of policies in their order; *policy_file* is the first.
        page: how the page is served; None for not at all.
        feed: how the feed for routers is served; None for not at all.
        admin_tls: there if, and only if, one address of *admin_listen* is TCP.
        state_limit: bytes that all files of the state directory may have together.
        memory_limit: resident bytes above which nothing is taken from engines.
        on_fatal: ``exit`` or ``idle``: what to do when the agent cannot start or go on.
        drain_deadline: seconds from SIGTERM to the end, at most.
        source_grace: seconds that a source may be away without a goodbye before it counts as lost.
        retire_after: seconds that an engine may be away before it is forgotten.
        engines_expected: how many engines the pod has; 0 if unknown.
        export: where spans go: the ``OTEL_*`` variables.
        nats: the files for NATS.
        registration: how relays find the agent; None for no registry.
        pod_uid: ``POD_UID`` of the downward API; empty outside Kubernetes.

    """

    listen: Address
    admin_listen: tuple[Address, ...]
    admin_tls: AdminTls | None
    http: TcpAddress
    page: PageSettings | None
    feed: FeedSettings | None
    state_dir: Path
    policy_file: Path | None
    policy_sources: tuple[SourceSpec, ...]
    nats: NatsFiles
    registration: Registration | None
    kube_api: str
    kube_token_file: Path | None
    kube_ca: Path | None
    state_limit: int
    memory_limit: int
    audit_entries: int
    audit_bytes: int
    drain_deadline: float
    source_grace: float
    retire_after: float
    log_format: str
    log_level: str
    engines_expected: int
    on_fatal: str
    export: ExportSettings
    pod_uid: str = ""


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of sizes (``512MiB``, ``1GiB``, ``1.5TiB``) that takes *least* bytes or more."""

    def parse(text: str) -> int:
        return parse_size(text, least)

    return parse


def parse_many(text: str) -> int:
    """Parse a number of audit entries."""
    if parse_count(text) < _MIN_AUDIT:
        raise ValueError(f"expected a whole number, {_MIN_AUDIT} or more")
    return int(text)


OPTIONS: tuple[Option, ...] = (
    Option(
        "listen",
        "unix:///run/penstock/ingest.sock",
        parse_address,
        "Address for engines: unix:///path or host:port.",
    ),
    *admin_options("unix:///run/penstock/admin.sock"),
    Option("http", "127.0.0.1:9464", parse_tcp, "Address of metrics and health: host:port."),
    *page_options("127.0.0.1:9465"),
    feed_option(),
    Option("state-dir", "/var/lib/penstock", parse_directory, "Directory of the journal and the policies."),
    Option(
        "policy-file",
        "",
        parse_optional_path,
        "Policy file, or a directory of *.yaml and *.yml; changes are applied.",
    ),
    Option(
        "policy-source",
        "",
        parse_sources,
        "Where policies come from: file:PATH, kubernetes[:NAMESPACE] or nats://HOST:PORT/BUCKET; several times, the first has precedence.",
        many=True,
    ),
    *NATS_OPTIONS,
    Option(
        "registry",
        "",
        parse_registry,
        "Where relays find this agent: nats://HOST:PORT/BUCKET; the agent keeps its name and address there.",
    ),
    Option(
        "agent-name", "", parse_name, "Its name in the registry.  [default: POD_NAME, else the host's name]"
    ),
    Option(
        "advertise",
        "",
        parse_advertised,
        "Its address in the registry: host:port.  [default: that of --admin-listen, with POD_IP]",
    ),
    *KUBE_OPTIONS,
    Option(
        "state-limit",
        "1GiB",
        at_least(MIN_LIMIT),
        "Maximum disk use of the state directory; beyond it the oldest entries are deleted.",
    ),
    Option(
        "memory-limit",
        "512MiB",
        at_least(_MIN_MEMORY),
        "Resident memory above which messages are refused; engines buffer up to 32 MiB and retry.",
    ),
    Option(
        "audit-entries",
        "50000",
        parse_many,
        "Maximum changes in the policy audit log; beyond it the oldest are deleted, which the log records.",
    ),
    Option(
        "audit-bytes",
        "16MiB",
        at_least(MIB),
        "Maximum disk use of the audit log, at most a sixteenth of --state-limit.",
    ),
    Option("drain-deadline", "10s", parse_seconds, "Maximum time from SIGTERM to exit."),
    Option(
        "source-grace",
        "10s",
        parse_seconds,
        "Time after which a disconnected source counts as lost; 5 s more after a restart of the agent.",
    ),
    Option(
        "retire-after",
        "15m",
        parse_positive,
        "Time after which a disconnected engine is forgotten, with its metrics, rows and alerts.",
    ),
    Option("log-format", "json", one_of("json", "console"), "Log format: json or console."),
    Option(
        "log-level",
        "info",
        one_of("debug", "info", "warning", "error"),
        "Log level: debug, info, warning or error.",
    ),
    Option("engines-expected", "0", parse_count, "Number of engines of the pod; 0 if unknown."),
    Option(
        "on-fatal",
        "exit",
        one_of("exit", "idle"),
        "exit, or idle: report the error on /healthz until SIGTERM, which avoids a restart loop.",
    ),
)


_COMBINED = frozenset(
    {
        *TLS_ATTRIBUTES,
        *NATS_ATTRIBUTES,
        *PAGE_ATTRIBUTES,
        "feed",
        "policy_source",
        "registry",
        "agent_name",
        "advertise",
    }
)
"""Options that are no field of :class:`Config` by themselves."""


def resolve(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> Config:
    """Merge flags, environment and file.

    Args:
        flags: text by option name, None where not given; ``config`` names the file.
        environment: the process's environment.

    Raises:
        ConfigError: one sentence that names where the value comes from, the value and what was expected.

    """
    values = read_options(OPTIONS, flags, environment)
    if values["listen"] in values["admin_listen"]:
        raise ConfigError(
            f"--listen and --admin-listen are both {values['listen']}; give each a socket of its own"
        )
    return Config(
        **{name: value for name, value in values.items() if name not in _COMBINED},
        nats=_nats(values),
        registration=registration_of(values, environment),
        policy_sources=_policy_sources(values),
        admin_tls=(tls := admin_tls(values)),
        page=page_settings(values, tls),
        feed=feed_settings(values, tls),
        export=ExportSettings.from_environment(environment),
        pod_uid=environment.get("POD_UID", ""),
    )


def _nats(values: Mapping[str, Any]) -> NatsFiles:
    used = values["registry"] is not None or any(spec.kind == "nats" for spec in values["policy_source"])
    return nats_files(values, "" if used else "--policy-source or --registry")


def _policy_sources(values: Mapping[str, Any]) -> tuple[SourceSpec, ...]:
    """Return the policy sources; ``--policy-file`` is one of them and the first."""
    file: Path | None = values["policy_file"]
    given: list[SourceSpec] = [] if file is None else [SourceSpec("file", str(file))]
    for spec in values["policy_source"]:
        absolute = spec._replace(place=str(Path(spec.place).absolute())) if spec.kind == "file" else spec
        if absolute in given:
            raise ConfigError(f"--policy-source {absolute.name} comes twice; keep one")
        given.append(absolute)
    return tuple(given)


def shown_config(config: Config) -> bytes:
    """Return the configuration as JSON: secrets are masked, files are named and not read."""
    return (json.dumps(_shown(config), indent=2, ensure_ascii=False) + "\n").encode()


def _shown(value: Any) -> Any:
    """Return a value for JSON. What is of no type that is known here is left out: it may hold anything."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | Path | TcpAddress | UnixAddress | SourceSpec):
        return mask_urls(value.name if isinstance(value, SourceSpec) else str(value))
    return _shown_parts(value)


def _shown_parts(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _shown_field(each.name, getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _shown_field(name, getattr(value, name)) for name in value._fields}
    if isinstance(value, tuple | list):
        return [_shown(item) for item in value]
    return MASK


def _shown_field(name: str, value: Any) -> Any:
    if isinstance(value, str) and value and _SECRET_NAME.search(name) and not name.endswith(_SHOWN_AS_PATHS):
        return MASK
    return _shown(value)
