"""TLS files for an agent over TCP."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from penstock.agent.ctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

F = TypeVar("F", bound="Callable[..., Any]")


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The TLS files of one client; :meth:`credentials` reads them.

    Attributes:
        ca: CA bundle for the agent's certificate.
        cert: the client's certificate and chain; the agent's allow-list names its subject.
        key: private key of *cert*.
        server_name: name in the agent's certificate, if it differs from the address's host.

    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""

    def credentials(self, address: str) -> grpc.ChannelCredentials:
        """Read the files.

        Raises:
            UsageError: a file is missing or cannot be read.

        """
        import grpc  # noqa: PLC0415  (the command line's help does without it)

        files = {"--tls-ca": self.ca, "--tls-cert": self.cert, "--tls-key": self.key}
        missing = [flag for flag, path in files.items() if not path]
        if missing:
            raise UsageError(
                f"address {address} is TCP, which requires certificates; "
                f"give {' and '.join(missing)}, or the unix socket"
            )
        ca, cert, key = (_read(flag, path) for flag, path in files.items())
        return grpc.ssl_channel_credentials(ca, key, cert)

    def channel_options(self) -> list[tuple[str, Any]]:
        """Return the channel options of these settings."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


def with_tls(function: F) -> F:
    """Add ``--tls-ca``, ``--tls-cert``, ``--tls-key`` and ``--tls-server-name``."""
    options = (
        _option("ca", "FILE", "With a TCP address: CA bundle for the agent's certificate."),
        _option("cert", "FILE", "With a TCP address: the client certificate."),
        _option("key", "FILE", "With a TCP address: the key of the client certificate."),
        _option(
            "server-name", "NAME", "Name in the agent's certificate, if it differs from the address's host."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _option(name: str, metavar: str, text: str) -> Callable[[F], F]:
    variable = f"AGENTCTL_TLS_{name.upper().replace('-', '_')}"
    return click.option(
        f"--tls-{name}", default="", metavar=metavar, envvar=variable, show_envvar=True, help=text
    )


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{flag} {path!r} cannot be read ({error.strerror}); name a PEM file") from None
