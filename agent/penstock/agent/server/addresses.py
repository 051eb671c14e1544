"""Addresses to listen on, and how they are written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

# sockaddr_un.sun_path, without its closing zero.
_UNIX_PATH_BYTES = 107


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A unix socket; the path is absolute."""

    path: Path

    def __str__(self) -> str:
        """Return ``unix:///path``, the form that gRPC and people use."""
        return f"unix://{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return ``host:port``, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Address: TypeAlias = UnixAddress | TcpAddress


def parse_tcp(text: str) -> TcpAddress:
    """Parse ``host:port`` or ``[v6]:port``."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:  # noqa: PLR2004
        raise ValueError("expected host:port, with a port from 0 to 65535")
    return TcpAddress(host, int(port))


def parse_address(text: str) -> Address:
    """Parse ``unix:///path`` or ``host:port``."""
    if not text.startswith("unix:"):
        try:
            return parse_tcp(text)
        except ValueError:
            raise ValueError("expected unix:///path or host:port") from None
    path = text.removeprefix("unix:")
    path = path.removeprefix("//") if path.startswith("///") else path
    if not path.startswith("/") or path.startswith("//") or path == "/":
        raise ValueError("expected unix:///path with an absolute path")
    if len(path.encode()) > _UNIX_PATH_BYTES:
        raise ValueError(f"a unix socket's path has at most {_UNIX_PATH_BYTES} bytes")
    return UnixAddress(Path(path))


def parse_admin(text: str) -> tuple[Address, ...]:
    """Parse the admin service's addresses, with commas between them; two of one kind make no sense."""
    addresses = tuple(parse_address(part.strip()) for part in text.split(","))
    kinds = {type(address) for address in addresses}
    if len(kinds) < len(addresses):
        raise ValueError("expected unix:///path, host:port, or one of each with a comma between them")
    return addresses
