"""What a relay shows to agents over TCP: its certificate, which the agents' allow-lists name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from penstock.agent.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class AgentTls:
    """The files; they are read anew for each new connection, because they are renewed.

    Attributes:
        ca: CA bundle for the agents' certificates.
        cert: the relay's certificate and chain.
        key: private key of *cert*.
        server_name: the name in the agents' certificates, if they share one; empty for each address's host.

    """

    ca: Path
    cert: Path
    key: Path
    server_name: str = ""

    def contents(self) -> tuple[bytes, bytes, bytes]:
        """Read CA, key and certificate.

        Raises:
            ConfigError: one cannot be read.

        """
        found = []
        for flag, path in (("ca", self.ca), ("key", self.key), ("cert", self.cert)):
            try:
                found.append(path.read_bytes())
            except OSError as error:
                raise ConfigError(
                    f"--agent-tls-{flag} {str(path)!r} cannot be read ({error.strerror}); name a PEM file"
                ) from None
        return found[0], found[1], found[2]

    def channel_options(self) -> list[tuple[str, Any]]:
        """Return the channel options of these settings."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


def credentials_of(contents: tuple[bytes, bytes, bytes]) -> grpc.ChannelCredentials:
    """Return the credentials of CA, key and certificate."""
    ca, key, cert = contents
    return grpc.ssl_channel_credentials(ca, key, cert)
