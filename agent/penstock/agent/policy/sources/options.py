"""The options of programs that speak to a Kubernetes API server from outside its pods, or to NATS: its files and its access."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.agent.errors import ConfigError
from penstock.agent.parsing.options import Option, parse_optional_path
from penstock.agent.policy.sources.source_spec import SourceSpec, parse_servers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.agent.policy.sources.nats.connection import NatsAccess

KUBE_OPTIONS = (
    Option("kube-api", "", str, "Outside a pod: address of the Kubernetes API server, https://HOST:PORT."),
    Option("kube-token-file", "", parse_optional_path, "With --kube-api: file of the bearer token."),
    Option("kube-ca", "", parse_optional_path, "With --kube-api: CA bundle of the API server."),
)


NATS_ATTRIBUTES = ("nats_credentials", "nats_ca", "nats_cert", "nats_key")
"""The options that :func:`nats_files` reads."""
NATS_OPTIONS = (
    Option("nats-credentials", "", parse_optional_path, "For nats://: credentials file of nsc."),
    Option(
        "nats-ca",
        "",
        parse_optional_path,
        "For nats://: CA bundle that the server's certificate is signed by.",
    ),
    Option("nats-cert", "", parse_optional_path, "For nats://: PEM file of the agent's certificate."),
    Option("nats-key", "", parse_optional_path, "For nats://: PEM file of the certificate's private key."),
)
_REGISTRY = "expected nats://HOST:PORT/BUCKET"


class NatsFiles(NamedTuple):
    """The files of NATS's options; None where one is not given."""

    credentials: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


def nats_files(values: Mapping[str, Any], users: str) -> NatsFiles:
    """Return the files.

    Args:
        values: of all options.
        users: what uses them, for an error; empty if something does.

    Raises:
        ConfigError: they have no use, or a certificate comes without its key.

    """
    given = [f"--{name.replace('_', '-')}" for name in NATS_ATTRIBUTES if values[name] is not None]
    if given and users:
        raise ConfigError(f"{given[0]} is given, but no {users} is nats://…; add one, or leave it out")
    if (values["nats_cert"] is None) != (values["nats_key"] is None):
        raise ConfigError(f"{given[-1]} is given alone; give --nats-cert and --nats-key, or neither")
    return NatsFiles(*(values[name] for name in NATS_ATTRIBUTES))


def parse_registry(text: str) -> SourceSpec | None:
    """Parse ``nats://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT…]/BUCKET``; None for nothing.

    Raises:
        ValueError: what was expected.

    """
    return parse_servers(text, _REGISTRY) if text else None


def nats_access(spec: SourceSpec, files: NatsFiles, option: str) -> NatsAccess:
    """Return the access to the servers of *spec*, which *option* gave.

    Raises:
        ConfigError: the client is not installed.

    """
    try:
        from penstock.agent.policy.sources.nats.connection import NatsAccess  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{option} {spec.name} needs the package nats-py ({error}): pip install 'nats-py[nkeys]'"
        ) from error
    return NatsAccess(spec.servers, spec.user, spec.password, *files)
