"""CURVE, ZeroMQ's encryption and authentication (RFC 26): keys from files, and the options of a socket.

The files are ZeroMQ certificates as ``zmq.auth.create_certificates`` writes them: ``NAME.key`` with a public key and
``NAME.key_secret`` with both keys, as Z85 text. They are read once, at start. No message names a secret key.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import zmq
from zmq.auth.certs import load_certificate
from zmq.utils import z85

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.wire.curve_files import CurveFiles

OVERHEAD: Final = 33
"""Bytes that CURVE adds to a frame: ``MAXMSGSIZE`` counts them."""

ZAP_DOMAIN: Final = b"penstock-ec"

CLIENTS_MAX: Final = 4_096
"""Keys of clients that a producer reads."""

_FILE_MAX: Final = 64 << 10
_KEY_BYTES: Final = 32


class CurveError(ValueError):
    """CURVE cannot be used as it is configured; says which setting and what to do."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Two keys of 32 bytes."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """A producer's keys: its own, and the public keys of the clients that may connect."""

    pair: KeyPair
    allowed: frozenset[bytes]

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        """Make *socket* serve CURVE only; without a ZAP handler in its context it then serves no one."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.pair.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """A consumer's keys: its own, and the public key that every producer must prove."""

    pair: KeyPair
    server: bytes

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        """Make *socket* speak CURVE only."""
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.pair.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.pair.secret)
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.server)


def load_server_keys(files: CurveFiles) -> ServerKeys | None:
    """Return a producer's keys, None if CURVE is not configured.

    Raises:
        CurveError: a setting is missing, or a file cannot be used.

    """
    if not files.enabled:
        return None
    _require("producer", curve_key_file=files.key_file, curve_allowed_clients=files.allowed_clients)
    return ServerKeys(_read_pair(files.key_file), _read_allowed(files.allowed_clients))


def load_client_keys(files: CurveFiles) -> ClientKeys | None:
    """Return a consumer's keys, None if CURVE is not configured.

    Raises:
        CurveError: a setting is missing, or a file cannot be used.

    """
    if not files.enabled:
        return None
    _require("consumer", curve_key_file=files.key_file, curve_server_key_file=files.server_key_file)
    server = _read_public("curve_server_key_file", Path(files.server_key_file))
    return ClientKeys(_read_pair(files.key_file), server)


def _require(role: str, **given: str) -> None:
    missing = [name for name, path in given.items() if not path]
    if missing:
        raise CurveError(
            f"ZmqECConnector: a {role} with CURVE needs {' and '.join(given)}, and {' and '.join(missing)} is missing. "
            "Set it in ec_connector_extra_config, or remove every curve_ key."
        )
    if not zmq.has("curve"):
        raise CurveError(
            "ZmqECConnector: curve_key_file is set and this libzmq has no CURVE. Install a pyzmq wheel from PyPI, "
            "which has it, or remove every curve_ key."
        )


def _read_pair(path: str) -> KeyPair:
    name, file = "curve_key_file", Path(path)
    _check_secret(name, file)
    public, secret = _read(name, file)
    if secret is None:
        raise CurveError(
            f"ZmqECConnector: {name} {file} has no secret key. Name the .key_secret file of the pair, not the .key file."
        )
    if zmq.curve_public(z85.encode(secret)) != z85.encode(public):
        raise CurveError(f"ZmqECConnector: the two keys in {name} {file} are no pair. Make a new pair.")
    return KeyPair(public, secret)


def _read_public(name: str, file: Path) -> bytes:
    return _read(name, file)[0]


def _read_allowed(path: str) -> frozenset[bytes]:
    name, place = "curve_allowed_clients", Path(path)
    if not place.is_dir():
        return frozenset({_read_public(name, place)})
    try:
        files = sorted(each for each in place.iterdir() if each.suffix == ".key")
    except OSError as error:
        raise _unreadable(name, place, error) from None
    if not files:
        raise CurveError(
            f"ZmqECConnector: {name} {place} has no .key file, so no consumer could connect. "
            "Copy the consumers' .key files there."
        )
    if len(files) > CLIENTS_MAX:
        raise CurveError(f"ZmqECConnector: {name} {place} has more than {CLIENTS_MAX} .key files.")
    return frozenset(_read_public(name, each) for each in files)


def _read(name: str, file: Path) -> tuple[bytes, bytes | None]:
    """Return the keys of a certificate; the secret one is None where it has none."""
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _FILE_MAX:
            raise CurveError(f"ZmqECConnector: {name} {file} is no key file. {_HOW}")
        public, secret = load_certificate(file)
    except OSError as error:
        raise _unreadable(name, file, error) from None
    except (ValueError, IndexError) as error:
        if isinstance(error, CurveError):
            raise
        raise CurveError(f"ZmqECConnector: {name} {file} has no public key. {_HOW}") from None
    return _decode(name, file, public), None if secret is None else _decode(name, file, secret)


def _decode(name: str, file: Path, key: bytes) -> bytes:
    try:
        decoded = bytes(z85.decode(key))
    except Exception:  # noqa: BLE001  (z85 checks nothing; and the text of its errors may have a part of the key)
        decoded = b""
    if len(decoded) != _KEY_BYTES or z85.encode(decoded) != key:
        raise CurveError(f"ZmqECConnector: a key in {name} {file} is not 40 characters of Z85. {_HOW}")
    return decoded


def _check_secret(name: str, file: Path) -> None:
    """Refuse a secret that others can read. A file of root's may be readable by a group, as Kubernetes mounts it."""
    try:
        found = file.stat()
    except OSError as error:
        raise _unreadable(name, file, error) from None
    allowed = 0o740 if found.st_uid == 0 else 0o700
    mode = stat.S_IMODE(found.st_mode)
    if mode & ~allowed & 0o077:
        raise CurveError(
            f"ZmqECConnector: {name} {file} has mode {mode:04o}, so other users can read or change the secret key. "
            f"Run: chmod 600 {file} (Kubernetes: defaultMode 0400)."
        )


def _unreadable(name: str, file: Path, error: OSError) -> CurveError:
    why = os.strerror(error.errno) if error.errno else "No such file"
    return CurveError(f"ZmqECConnector: {name} {file} cannot be read: {why}. {_HOW}")


_HOW: Final = "Make keys with zmq.auth.create_certificates (docs/zmq-ec-connector.md)."
