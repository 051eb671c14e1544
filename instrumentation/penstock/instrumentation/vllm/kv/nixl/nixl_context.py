"""What vLLM is doing on a thread while it calls into NIXL: NIXL's own calls do not say for whom they are."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.naming import Peer

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.kv.nixl.handshake_table import Handshake


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """A transfer that vLLM is about to prepare and post.

    *rank* is the peer's; *blocks* are logical blocks of this rank, *size* their bytes (None where that is not known).
    """

    request_id: str = ""
    peer: Peer = field(default_factory=Peer)
    rank: int | None = None
    blocks: int = 0
    size: int | None = None


NO_PLAN: Final = PlannedTransfer()


class CallContext(threading.local):
    """What vLLM is doing on the calling thread.

    Attributes:
        waiter: the request for which it asks for a handshake.
        transfer: what it prepares and posts.
        reading: the request and ReqMeta that it starts to read for.
        handshake: whose end it is telling those who waited for it.

    """

    waiter: str = ""
    transfer: PlannedTransfer = NO_PLAN
    reading: tuple[str, Any] = ("", None)
    handshake: Handshake | None = None
