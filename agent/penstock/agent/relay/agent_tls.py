"""What a relay shows to agents over TCP: its certificate, which the agents' allow-lists name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import structlog
from penstock.agent.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_log = structlog.get_logger(__name__)


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
