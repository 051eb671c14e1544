r"""Certificates over TCP: mutual TLS over gRPC and HTTPS with files that are renewed while it runs, and the names in a client's.

The names are read from the certificate itself: gRPC hands them on as C strings, and tells ``ops`` of ``ops\\0.evil.com``.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from cryptography import x509
from cryptography.x509.oid import NameOID
from penstock.agent.errors import AccessError, ConfigError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping

    from penstock.agent.server.callers import AdminTls

_log = structlog.get_logger(__name__)


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


class HttpsCertificates:
    """The certificates of the admin service, for HTTPS.

    Attributes:
        context: for a server; asks each client for a certificate.

    """

    def __init__(self, tls: AdminTls) -> None:
        """Read the files.

        Raises:
            ConfigError: one cannot be read, or key and certificate do not fit.

        """
        self._tls = tls
        self._contents = self._read()
        self.context = self._made()
        self._present = self.context
        # Asked at each handshake, before a certificate is chosen.
        self.context.sni_callback = self._renew

    def _read(self) -> tuple[bytes, bytes, bytes]:
        Certificates(self._tls)
        return self._tls.cert.read_bytes(), self._tls.key.read_bytes(), self._tls.client_ca.read_bytes()

    def _made(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._tls.cert, self._tls.key)
        context.load_verify_locations(self._tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _renew(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        """Let a connection use new files; invalid ones are not used."""
        try:
            contents = self._read()
            if contents != self._contents:
                self._present, self._contents = self._made(), contents
                _log.info("new certificates are in use for HTTPS", cert=str(self._tls.cert))
        except (ConfigError, OSError, ssl.SSLError) as error:
            _log.warning("new certificates are invalid; the present ones stay in use", reason=str(error))
        connection.context = self._present


# gRPC's key of the client's own certificate, in PEM.
_CERTIFICATE = "x509_pem_cert"
_SHOWN = 256


def client_names(auth_context: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Return the names in the certificate of a connection: common names, DNS names, URIs, e-mail, addresses.

    Raises:
        AccessError: it has no certificate, one that cannot be read, or a name with a character that cannot be printed.

    """
    pem = next(iter(auth_context.get(_CERTIFICATE, ())), None)
    if pem is None:
        raise AccessError("the client has no certificate; connect with --tls-cert and --tls-key")
    return _read(lambda: x509.load_pem_x509_certificate(pem))


def names_in(certificate: bytes) -> list[str]:
    """Return the names in a client's certificate in DER, as :func:`client_names` does.

    Raises:
        AccessError: it cannot be read, or has a name with a character that cannot be printed.

    """
    return _read(lambda: x509.load_der_x509_certificate(certificate))


def names_of(transport: asyncio.BaseTransport | None) -> list[str] | None:
    """Return the names in the certificate of a client of HTTPS; None for a connection without TLS.

    Raises:
        AccessError: as :func:`names_in`.

    """
    tls = None if transport is None else transport.get_extra_info("ssl_object")
    return None if tls is None else names_in(tls.getpeercert(binary_form=True))


def _read(load: Callable[[], x509.Certificate]) -> list[str]:
    try:
        names = _names(load())
    except (
        ValueError,
        x509.DuplicateExtension,
        x509.InvalidVersion,
        x509.UnsupportedGeneralNameType,
    ) as error:
        raise AccessError(f"the client's certificate cannot be read ({error}); issue another one") from error
    for name in names:
        # NUL, other control characters, marks that reverse text: no name on a list has them.
        if not name.isprintable():
            raise AccessError(
                f"the client's certificate has the name {name[:_SHOWN]!a}, with a character that cannot be printed; "
                "issue one without it"
            )
    return names


def _names(certificate: x509.Certificate) -> list[str]:
    names = [str(each.value) for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    try:
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return names
    for kind in (x509.DNSName, x509.UniformResourceIdentifier, x509.RFC822Name):
        names += alternative.get_values_for_type(kind)
    return names + [str(address) for address in alternative.get_values_for_type(x509.IPAddress)]
