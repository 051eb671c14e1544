"""Parses ``--policy-source``. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

_START = re.compile(r"(file:|kubernetes\b|(?:nats|tls)://)")
_NATS = re.compile(r"(?:(?P<user>[^@/]*)@)?(?P<hosts>[^/@]+)/(?P<bucket>[A-Za-z0-9_-]+)")
_HOST = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):\d{1,5}")
_EXPECTED = "expected file:PATH, kubernetes[:NAMESPACE] or nats://HOST:PORT/BUCKET"


class SourceSpec(NamedTuple):
    """One ``--policy-source``.

    Attributes:
        kind: ``file``, ``kubernetes`` or ``nats``.
        place: the path; the namespace, empty for the pod's own; or the bucket.
        servers: of NATS, ``nats://HOST:PORT`` or ``tls://HOST:PORT``.
        user: of NATS; empty for none.
        password: of NATS; empty for none.

    """

    kind: str
    place: str
    servers: tuple[str, ...] = ()
    user: str = ""
    password: str = ""

    @property
    def name(self) -> str:
        """The name of the source, without a secret."""
        if self.kind == "nats":
            first, *others = self.servers
            return ",".join([first, *(server.partition("//")[2] for server in others)]) + f"/{self.place}"
        return f"{self.kind}:{self.place}" if self.place else self.kind

    def __repr__(self) -> str:
        """Return the name, so that no log has the password."""
        return self.name


def parse_sources(text: str) -> tuple[SourceSpec, ...]:
    """Parse sources with commas between them; a piece that begins no source continues the one before it.

    Raises:
        ValueError: what was expected.

    """
    pieces: list[str] = []
    for piece in filter(None, text.split(",")):
        if _START.match(piece) or not pieces:
            pieces.append(piece)
        else:
            pieces[-1] += f",{piece}"
    found = tuple(_parse(piece) for piece in pieces)
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} comes {names.count(name)} times; keep one")
    return found


def parse_servers(text: str, what: str) -> SourceSpec:
    """Parse ``nats://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT…]/BUCKET``.

    Raises:
        ValueError: *what* was expected.

    """
    scheme, _, rest = text.partition("://")
    match = _NATS.fullmatch(rest) if scheme in ("nats", "tls") else None
    hosts = match["hosts"].split(",") if match else []
    if match is None or not all(_HOST.fullmatch(host) for host in hosts):
        raise ValueError(what)
    user, _, password = (match["user"] or "").partition(":")
    return SourceSpec("nats", match["bucket"], tuple(f"{scheme}://{host}" for host in hosts), user, password)


def _parse(text: str) -> SourceSpec:
    kind, _, place = text.partition(":")
    if kind == "file" and place and "\0" not in place:
        return SourceSpec("file", place)
    if kind == "kubernetes" and re.fullmatch(r"kubernetes(:[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?", text):
        return SourceSpec("kubernetes", place)
    return parse_servers(text, _EXPECTED)
