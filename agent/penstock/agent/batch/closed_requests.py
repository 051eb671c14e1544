"""What an engine reports of a request that ends: what it waited for before its first token, and whether it is vLLM's clean-up. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from penstock.proto.v1.common_pb2 import ROLE_DECODE

if TYPE_CHECKING:
    from penstock.proto.v1.events_pb2 import RequestClosed

GATES: Final = (
    "queue",
    "handshake_queue",
    "peer",
    "transfer",
    "recompute",
    "own_prefill",
    "encoder",
)
"""The gates; each is the field ``<gate>_nano`` of the wire's ``Gates``."""

# Once for each closed request that an answer reads.
_nano: Final = attrgetter(*(f"{gate}_nano" for gate in GATES))
CLEAN_UP: Final = "clean-up"
"""What lists say of such a request in place of an outcome and a finish reason."""
_ABORTED = "abort"


@dataclass(frozen=True, slots=True)
class GateTimes:
    """The time of one request at each gate.

    Attributes:
        nano: nanoseconds, in the order of :data:`GATES`; their sum is the time to first token, or without one the time
            from arrival to the end.
        first_token: the request got its first token.

    """

    nano: tuple[int, ...]
    first_token: bool

    @property
    def total_nano(self) -> int:
        """The time at all gates, in nanoseconds."""
        return sum(self.nano)

    def largest_first(self) -> list[tuple[str, int]]:
        """Return (gate, nanoseconds) of each gate at which the request was, the longest time first."""
        found = [(gate, nano) for gate, nano in zip(GATES, self.nano, strict=True) if nano]
        return sorted(found, key=lambda item: -item[1])

    @property
    def longest(self) -> str:
        """The gate at which the request was longest; empty if it took no time."""
        return next((gate for gate, _ in self.largest_first()), "")


def gate_times(closing: RequestClosed) -> GateTimes | None:
    """Return the times of a closed request; None if its engine does not report them."""
    if not closing.HasField("gates"):
        return None
    return GateTimes(_nano(closing.gates), bool(closing.first_token_time_unix_nano))


def is_clean_up(closing: RequestClosed) -> bool:
    """Return whether a request is a clean-up: a prompt of one made-up token, aborted as it arrives.

    vLLM's API server sends it (``AsyncLLM.notify_kv_transfer_request_rejected``) with the transfer parameters of a user's
    request that got an error. No user waits for it. A user's own one-token prompt that was aborted before its first step is
    taken for one, too: it does the same.
    """
    return (
        closing.finish_reason == _ABORTED
        and closing.prompt_tokens == 1
        and closing.kv_role == ROLE_DECODE
        and not closing.scheduled_time_unix_nano
    )
