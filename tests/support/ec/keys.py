"""CURVE keys in a directory, as people make them with pyzmq."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.instrumentation.vllm.zmq_ec.wire import CurveFiles
from zmq.auth import create_certificates

if TYPE_CHECKING:
    from pathlib import Path


class KeyFiles(NamedTuple):
    """A pair's files."""

    public: Path
    secret: Path

    def secret_text(self) -> str:
        """Return the secret key, to look for where it must not be."""
        (line,) = [each for each in self.secret.read_text().splitlines() if "secret-key" in each]
        return line.split('"')[1]


def make_keys(directory: Path, name: str) -> KeyFiles:
    """Make a pair in *directory*, which may be new."""
    directory.mkdir(exist_ok=True)
    create_certificates(directory, name)
    files = KeyFiles(directory / f"{name}.key", directory / f"{name}.key_secret")
    files.secret.chmod(0o600)
    return files


def producer_files(own: KeyFiles, allowed: Path) -> CurveFiles:
    """Return a producer's configuration."""
    return CurveFiles(key_file=str(own.secret), allowed_clients=str(allowed))


def consumer_files(own: KeyFiles, producer: KeyFiles) -> CurveFiles:
    """Return a consumer's configuration."""
    return CurveFiles(key_file=str(own.secret), server_key_file=str(producer.public))
