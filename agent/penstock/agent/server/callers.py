"""Callers of the admin service and their roles. Pure.

Over the unix socket everybody who may open it may do everything, and says
who they are. Over TCP the client's certificate says it, and a list says what
that name may do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from penstock.agent.errors import AccessError, ContractError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# What begins an author's name that the agent vouches for.
TLS_PREFIX = "tls:"
_OWN_PREFIXES = (TLS_PREFIX, "file:", "kubernetes:", "nats://")
_MAX_CLAIM = 256


class Role(IntEnum):
    """A caller's permissions; each role includes those before it."""

    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller.

    Attributes:
        name: as the allow-list and the certificate have it; empty over the unix socket.

    """

    name: str
    role: Role

    def author(self, claimed: str) -> str:
        """Return the author for the audit log, of a client that says it is *claimed*.

        Raises:
            AccessError: it claims a name that only the agent gives.

        """
        if self.name:
            return f"{TLS_PREFIX}{self.name} ({claimed[:_MAX_CLAIM]})" if claimed else TLS_PREFIX + self.name
        if claimed.startswith(_OWN_PREFIXES):
            raise AccessError(
                f"author {claimed[:_MAX_CLAIM]!r} cannot be claimed: names that begin with "
                f"{' or '.join(_OWN_PREFIXES)} are the agent's to give; use another one"
            )
        return claimed

    def page_role(self, asked: int) -> Role:
        """Return what a token of the page may allow, of which the caller asks for *asked*; 0 is as much as it has.

        Raises:
            AccessError: it asks for more than it has.
            ContractError: there is no such role.

        """
        if asked not in (0, *Role):
            raise ContractError(f"page_role {asked} is unknown; give 1 to read, or 2 to write")
        if asked > self.role:
            raise AccessError(
                f"{self.name!r} has read access, and a token of the page allows no more than its caller has; "
                f"ask for one that reads, or start with --admin-allow {self.name}=write"
            )
        return Role(asked or self.role)


# Every process that may open the unix socket.
LOCAL = Caller("", Role.WRITE)


@dataclass(frozen=True, slots=True)
class AllowList:
    """Roles by the name in a client's certificate: its common name, or an alternative name."""

    roles: Mapping[str, Role]

    def admit(self, names: Sequence[str]) -> Caller:
        """Return the caller whose certificate has *names*; of several names the one that may most.

        Raises:
            AccessError: none of its names is on the list.

        """
        known = [name for name in names if name in self.roles]
        if not known:
            shown = ", ".join(repr(name[:_MAX_CLAIM]) for name in names[:8]) or "no name"
            raise AccessError(
                f"the client's certificate ({shown}) is not on the list; "
                "start penstock-agent with --admin-allow NAME=read or NAME=write"
            )
        name = max(known, key=lambda name: self.roles[name])
        return Caller(name, self.roles[name])


def parse_allow_list(text: str) -> AllowList:
    """Parse ``ops.example.com=write,spiffe://cluster/grafana=read``; empty for none.

    Raises:
        ValueError: it is something else.

    """
    roles: dict[str, Role] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, word = entry.rpartition("=")
        if not equals or not name or word not in ("read", "write"):
            raise ValueError("expected NAME=read or NAME=write, with commas between them")
        if not name.isprintable():
            raise ValueError("expected names without control characters")
        if name in roles:
            raise ValueError(f"expected each name once, and {name!r} is there twice")
        roles[name] = Role[word.upper()]
    return AllowList(roles)


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
