"""Which engines a policy of less than 100 percent selects: a hash of engine and policy, the same in each agent. Pure."""

from __future__ import annotations

import hashlib
import socket
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.agent.parsing import Target

ALL = 100
# Hundredths of a percent.
_SLOTS = 10_000


def engine_identity(target: Target) -> str:
    """Return what tells *target* from the other engines of a fleet, before and after a restart of its agent.

    ``namespace/pod/server/engine`` by the downward API's labels. Where an engine has none, its node's name or this
    host's stands for the pod; engines of one host then differ by their server's name.
    """
    if target.identity:
        return target.identity
    labels = target.labels
    place = labels.get("POD_NAME") or labels.get("NODE_NAME") or _host()
    return "/".join((labels.get("POD_NAMESPACE", ""), place, target.key.server, target.key.engine))


def in_share(identity: str, policy: str, percent: int) -> bool:
    """Return whether *policy* selects the engine at *percent*, 0 to 100; one that it selects stays in as *percent* grows."""
    if percent >= ALL:
        return True
    digest = hashlib.sha256(f"{identity}\0{policy}".encode()).digest()
    return int.from_bytes(digest, "big") % _SLOTS < percent * (_SLOTS // ALL)


@cache
def _host() -> str:
    return socket.gethostname()
