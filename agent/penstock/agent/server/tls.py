"""The admin service's certificates over TCP: mutual TLS, and files that are renewed while it runs."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import structlog
from penstock.agent.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.agent.server.callers import AllowList

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AdminTls:
    """The values of ``--admin-tls-*`` and ``--admin-allow``.

    Attributes:
        client_ca: certificates of who may sign clients' certificates.

    """

    cert: Path
    key: Path
    client_ca: Path
    allow: AllowList


class Certificates:
    """The certificates of the files; new ones that are invalid are not used."""

    def __init__(self, tls: AdminTls) -> None:
        """Read them.

        Raises:
            ConfigError: one cannot be read, or key and certificate do not fit.

        """
        self._tls = tls
        self._contents = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that ask every client for a certificate, and follow the files."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._contents),
            # The stubs do not know that None stands for no change.
            self._renewed,  # type: ignore[arg-type]
            require_client_authentication=True,
        )

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return new credentials if the files have changed; gRPC asks at each handshake."""
        try:
            contents = self._read()
        except ConfigError as error:
            _log.warning("new certificates are invalid; the present ones stay in use", reason=str(error))
            return None
        if contents == self._contents:
            return None
        self._contents = contents
        _log.info("new certificates are in use", cert=str(self._tls.cert))
        return _configuration(contents)

    def _read(self) -> tuple[bytes, bytes, bytes]:
        """Read and check the files; without the check gRPC would fail at each handshake instead."""
        tls = self._tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for flag, path in (
            ("--admin-tls-cert", tls.cert),
            ("--admin-tls-key", tls.key),
            ("--admin-tls-client-ca", tls.client_ca),
        ):
            if not path.is_file():
                raise ConfigError(f"{flag} {str(path)!r} is no file; name a PEM file")
        try:
            # A password would be asked for on a terminal.
            context.load_cert_chain(tls.cert, tls.key, password=_no_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--admin-tls-cert {str(tls.cert)!r} and --admin-tls-key {str(tls.key)!r} cannot be used "
                f"({error}); name a certificate and its own key, in PEM and without a password"
            ) from None
        try:
            context.load_verify_locations(tls.client_ca)
            return tls.cert.read_bytes(), tls.key.read_bytes(), tls.client_ca.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"--admin-tls-client-ca {str(tls.client_ca)!r} cannot be used ({error}); name certificates in PEM"
            ) from None


def _no_password() -> str:
    raise ValueError("the key has a password")


def _configuration(contents: tuple[bytes, bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    cert, key, client_ca = contents
    return grpc.ssl_server_certificate_configuration([(key, cert)], client_ca)
