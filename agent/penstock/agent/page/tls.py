"""The page over TLS: clients show a certificate, and files that are renewed are used from then on."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import structlog
from penstock.agent.errors import AccessError, ConfigError
from penstock.agent.page.wire import AnswerError
from penstock.agent.server.tls import Certificates, names_in

if TYPE_CHECKING:
    import asyncio

    from penstock.agent.server import AdminTls

_log = structlog.get_logger(__name__)


class PageCertificates:
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
                _log.info("new certificates are in use by the page", cert=str(self._tls.cert))
        except (ConfigError, OSError, ssl.SSLError) as error:
            _log.warning("new certificates are invalid; the present ones stay in use", reason=str(error))
        connection.context = self._present


def names_of(transport: asyncio.BaseTransport | None) -> list[str] | None:
    """Return the names in the certificate of a client; None for a connection without TLS.

    Raises:
        AnswerError: the certificate has a name that cannot be on a list.

    """
    tls = None if transport is None else transport.get_extra_info("ssl_object")
    if tls is None:
        return None
    try:
        return names_in(tls.getpeercert(binary_form=True))
    except AccessError as error:
        raise AnswerError(403, str(error)) from error
