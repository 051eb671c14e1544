"""Certificates for an agent that is reached over TCP."""

from __future__ import annotations

import functools
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
    """The files of one client; paths are not read before :meth:`credentials`.

    Attributes:
        ca: who signed the agent's certificate.
        cert: this client's own certificate, with its chain; the agent's allow-list names it.
        key: of *cert*.
        server_name: the name in the agent's certificate, where it is not the host of the address.

    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""

    def credentials(self, address: str) -> grpc.ChannelCredentials:
        """Read the files.

        Raises:
            WrongUseError: one is not given or cannot be read.

        """
        import grpc  # noqa: PLC0415  (the command line's help does without it)

        files = {"--tls-ca": self.ca, "--tls-cert": self.cert, "--tls-key": self.key}
        missing = [flag for flag, path in files.items() if not path]
        if missing:
            raise UsageError(
                f"address {address} is TCP, which the agent offers with certificates only; "
                f"give {' and '.join(missing)}, or the unix socket"
            )
        ca, cert, key = (_read(flag, path) for flag, path in files.items())
        return grpc.ssl_channel_credentials(ca, key, cert)

    def channel_options(self) -> list[tuple[str, Any]]:
        """Return what the channel has to know besides."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


def with_tls(function: F) -> F:
    """Add ``--tls-ca``, ``--tls-cert``, ``--tls-key`` and ``--tls-server-name`` as one argument ``tls``."""

    @_option("ca", "FILE", "With an address of TCP: certificates of who signed the agent's.")
    @_option("cert", "FILE", "With an address of TCP: this client's certificate.")
    @_option("key", "FILE", "With an address of TCP: the key of that certificate.")
    @_option("server-name", "NAME", "The name in the agent's certificate, if it is not the address's host.")
    @functools.wraps(function)
    def command(
        *args: Any, tls_ca: str, tls_cert: str, tls_key: str, tls_server_name: str, **arguments: Any
    ) -> Any:
        return function(*args, tls=ClientTls(tls_ca, tls_cert, tls_key, tls_server_name), **arguments)

    return command  # type: ignore[return-value]


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
