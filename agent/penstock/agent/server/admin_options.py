"""The options of an admin service: where it listens, its certificate, and who may do what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.agent.errors import ConfigError
from penstock.agent.parsing.options import Option, parse_optional_path
from penstock.agent.server.addresses import TcpAddress, parse_admin
from penstock.agent.server.callers import AdminTls, parse_allow_list

if TYPE_CHECKING:
    from collections.abc import Mapping

TLS_ATTRIBUTES = ("admin_tls_cert", "admin_tls_key", "admin_tls_client_ca", "admin_allow")
"""The options that :func:`admin_tls` reads."""


def admin_options(default: str) -> tuple[Option, ...]:
    """Return the options of a program whose admin service listens at *default*."""
    return (
        Option(
            "admin-listen",
            default,
            parse_admin,
            "Address for agentctl: unix:///path; host:port with the --admin-tls options; or both, comma-separated.",
            many=True,
        ),
        Option("admin-tls-cert", "", parse_optional_path, "For TCP: PEM file of the agent's certificate."),
        Option(
            "admin-tls-key", "", parse_optional_path, "For TCP: PEM file of the certificate's private key."
        ),
        Option(
            "admin-tls-client-ca",
            "",
            parse_optional_path,
            "For TCP: CA bundle that client certificates must be signed by.",
        ),
        Option(
            "admin-allow",
            "",
            parse_allow_list,
            "For TCP: role of a name in a client certificate: NAME=read or NAME=write.",
            many=True,
        ),
    )


def admin_tls(values: Mapping[str, Any]) -> AdminTls | None:
    """Return the TLS options, which are given all or not at all.

    Raises:
        ConfigError: some are missing for a TCP address, or given without one.

    """
    given = {f"--{name.replace('_', '-')}": values[name] for name in TLS_ATTRIBUTES}
    given["--admin-allow"] = values["admin_allow"].roles
    tcp = next((address for address in values["admin_listen"] if isinstance(address, TcpAddress)), None)
    if tcp is None:
        unused = [flag for flag, value in given.items() if value]
        if unused:
            raise ConfigError(
                f"{unused[0]} is given, but no --admin-listen is host:port; add one, or leave it out"
            )
        return None
    missing = [flag for flag, value in given.items() if not value]
    if missing:
        raise ConfigError(
            f"--admin-listen {tcp} is TCP, which is offered only to clients with a certificate; "
            f"give {', '.join(missing)}, or a unix socket"
        )
    return AdminTls(
        cert=values["admin_tls_cert"],
        key=values["admin_tls_key"],
        client_ca=values["admin_tls_client_ca"],
        allow=values["admin_allow"],
    )
