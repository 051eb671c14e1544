"""Certificates for tests of TLS, as files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import grpc
import trustme

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Files:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Somebody who signs certificates, below a directory of its own."""

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

    def credentials(self, client: Files | None) -> grpc.ChannelCredentials:
        """Return what a client that trusts this authority connects with."""
        return grpc.ssl_channel_credentials(
            self.cert.read_bytes(),
            client.key.read_bytes() if client else None,
            client.cert.read_bytes() if client else None,
        )
