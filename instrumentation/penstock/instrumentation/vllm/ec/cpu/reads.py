"""The reads of an ``ECCPUConnector``: what a request says about its items, what a producer may answer with, and fault drills.

A request names by ``mm_hash`` which producer has an item: it is the client's word. What a drill hits fails before it begins, or
begins late.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import SLOW
from penstock.instrumentation.vllm.naming import Peer, address

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.orders import Drill

REFUSALS: Final[dict[str, tuple[int, int] | None]] = {
    "NACK_MISSING": (c.FAILURE_MODE_PROBE, c.ERROR_TYPE_EVICTED),
    "NACK_INCOMPAT": (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_INCOMPATIBLE),
    "NACK_VERSION": (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_INCOMPATIBLE),
    "NACK_NOT_READY": None,
}
"""Mode and error type, by what a producer answers that grants no read; None: it is asked again."""

MISSES: Final = frozenset({"NACK_MISSING", "NACK_NOT_READY"})
"""The answers that say that the producer works, and does not have the item."""
CAPACITY: Final = 4096
"""Attempts that are remembered; beyond it the oldest is drawn anew."""


def announced_peer(request: Any, item: str) -> Peer | None:
    """Return the producer that a request names for *item*; None if it names none, an unknown one if it cannot be one."""
    params = request.ec_transfer_params
    entry = params.get(item) if isinstance(params, dict) else None
    if not isinstance(entry, dict) or "peer_host" not in entry:
        return None
    return Peer(address(entry.get("peer_host"), entry.get("peer_port")))


def withdraw(request: Any, item: str) -> None:
    """Let a request name no producer for *item* any more: it is encoded here, as after a fall-back of vLLM's."""
    params = request.ec_transfer_params
    if isinstance(params, dict):
        request.ec_transfer_params = {name: value for name, value in params.items() if name != item}


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


class RehearsedError(Exception):
    """A fault drill makes a read fail."""


class ReadRehearsal:
    """The drills of one consumer, on its scheduler's thread. vLLM may ask for the same attempt many times; it is drawn once.

    Attributes:
        hit: returns the drill that hits an attempt, by mode and address; None until it is known.

    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Use *clock*, monotonic nanoseconds."""
        self.hit: Callable[[int, str], Drill | None] | None = None
        self._clock = clock
        # Until when an attempt is late; 0 if it is not.
        self._attempts: OrderedDict[str, int] = OrderedDict()

    def failing(self, item: str, address: str) -> Drill | None:
        """Return the drill by which this attempt to get *item* is to fail; draws, if that has not been done."""
        if self.hit is None or item in self._attempts:
            return None
        drill = self.hit(c.FAILURE_MODE_PROBE, address) or self.hit(c.FAILURE_MODE_TRANSFER, address)
        if drill is None:
            slow = self.hit(SLOW, address)
            self._attempts[item] = 0 if slow is None else self._clock() + slow.delay_ns
            if len(self._attempts) > CAPACITY:
                self._attempts.popitem(last=False)
        return drill

    def is_held(self, item: str) -> bool:
        """Return whether the attempt is not to begin yet."""
        return self._clock() < self._attempts.get(item, 0)

    def made_late(self, item: str) -> bool:
        """Return whether a drill has made the attempt late."""
        return self._attempts.get(item, 0) > 0

    def end(self, item: str) -> None:
        """Forget an attempt: the next one is drawn anew."""
        self._attempts.pop(item, None)
