"""An item that a producer was asked for, and what it may answer with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import constants as c

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.naming import Peer

REFUSALS: Final[dict[str, tuple[int, int] | None]] = {
    "NACK_MISSING": (c.FAILURE_MODE_PROBE, c.ERROR_TYPE_EVICTED),
    "NACK_INCOMPAT": (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_INCOMPATIBLE),
    "NACK_VERSION": (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_INCOMPATIBLE),
    "NACK_NOT_READY": None,
}
"""Mode and error type, by what a producer answers that grants no read; None: it is asked again."""

MISSES: Final = frozenset({"NACK_MISSING", "NACK_NOT_READY"})
"""The answers that say that the producer works, and does not have the item."""


@dataclass(slots=True)
class Read:
    """An item that was asked for; times are the wall clock in nanoseconds, *began_ns* is 0 until the read is granted.

    *error*: what ended it, where this process knows more than vLLM says: mode, error type, class, text. *rehearsal*: by a fault drill.
    """

    item: str
    peer: Peer
    nbytes: int
    request_id: str
    asked_ns: int
    began_ns: int = 0
    error: tuple[int, int, str, str] | None = None
    again: bool = False
    rehearsal: bool = False
