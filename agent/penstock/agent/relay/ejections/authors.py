"""Who gave an order: the relay that leads, by a policy, or somebody else. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.proto.v1 import admin_pb2 as admin

_AUTHOR: Final = "relay (policy "
# A person's, over a relay, begins with "relay: ". An agent puts what a certificate says before it.
_AUTHORS: Final = re.compile(r"(tls:[^(]* \()?relay \(policy ")


def author_of(policy: str) -> str:
    """Return what the leading relay calls itself in an order by *policy*."""
    return f"{_AUTHOR}{policy})"


def is_leader(author: str) -> bool:
    """Return whether a relay that led is meant."""
    return _AUTHORS.match(author) is not None


def is_ours(order: admin.Ejection | None) -> bool:
    """Whether a relay that led gave this order: by a policy."""
    return order is not None and is_leader(order.author)
