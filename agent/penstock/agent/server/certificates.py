r"""The names in a client's certificate, read from the certificate itself.

gRPC hands names on as C strings: of ``ops\0.evil.com`` it tells ``ops``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.x509.oid import NameOID
from penstock.agent.errors import AccessError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
