"""Certificates for tests of TLS, as files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import grpc
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Files:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority with a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._authority = trustme.CA()
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.cert = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.cert))

    def issue(
        self, *names: str, common_name: str | None = None, expired: bool = False, file: str = ""
    ) -> Files:
        """Issue a certificate for host names or addresses; *file* names the files."""
        now = datetime.now(UTC)
        issued = self._authority.issue_cert(
            *names,
            common_name=common_name,
            not_before=now - timedelta(days=2),
            not_after=now - timedelta(days=1) if expired else None,
        )
        name = file or common_name or names[0].replace("/", "_")
        files = Files(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        files.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(files.key))
        return files

    def issue_as(self, common_names: Sequence[str], alternatives: Sequence[x509.GeneralName] = ()) -> Files:
        """Issue a certificate for names as they are, such as no good authority signs."""
        now, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(x509.load_pem_x509_certificate(self._authority.cert_pem.bytes()).subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        signer = serialization.load_pem_private_key(self._authority.private_key_pem.bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        signed = builder.sign(signer, hashes.SHA256())
        name = f"{signed.serial_number:x}"
        files = Files(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        files.cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def credentials(self, client: Files | None) -> grpc.ChannelCredentials:
        """Return what a client that trusts this authority connects with."""
        return grpc.ssl_channel_credentials(
            self.cert.read_bytes(),
            client.key.read_bytes() if client else None,
            client.cert.read_bytes() if client else None,
        )
