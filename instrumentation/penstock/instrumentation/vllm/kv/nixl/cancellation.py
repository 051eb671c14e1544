"""Cancels loads that exceeded their deadline, if no transfer can write to their blocks afterwards.

vLLM may reuse blocks once it reports a request as received or failed. The result depends on the progress of the load:

- Pull, handshake pending: its ``ReqMeta`` is replaced by one without blocks, then the request is failed. When the handshake
  ends, vLLM reads nothing and only notifies the peer, which releases its blocks.
- Push, handshake pending: its registration is withheld, so the peer never learns the blocks. A peer with fewer ranks than this
  engine writes to several ranks when the first of them has registered; then the load cannot be cancelled.
- Transfers posted, or the registration sent: the load cannot be cancelled, and its blocks stay pinned until NIXL reports the
  end of every transfer, although one of them may have failed before. Releasing the handle does not help: NIXL releases the
  handle of a read in progress at once, and the peer's late data is still written to the blocks (docs/upstream.md).
"""

from __future__ import annotations

import dataclasses
import threading
from enum import Enum
from typing import Any, Final

from penstock.instrumentation.vllm.compat import (
    awaits_blocks,
    can_fail_receive,
    fail_receive,
    has_failed_receive,
)

_CANCELLED: Final = "penstock_cancelled"


class CancelResult(Enum):
    """The result of cancelling a load."""

    FAILED = "cancelled: no transfer has started or can start"
    PINNED = "a transfer may still write to its blocks"
    SETTLED = "unknown, or it has ended and vLLM reports it in this step"


def is_cancelled(meta: Any) -> bool:
    """Return whether a ``ReqMeta`` belongs to a load that was cancelled while its handshake was pending."""
    return getattr(meta, _CANCELLED, False)


def _is_written_with_others(worker: Any, meta: Any) -> bool:
    """Return whether a pushing peer may write to this rank when another has registered: with fewer ranks, or an unknown number.

    The number comes with the request; a client may send anything.
    """
    ranks = meta.tp_size
    return not isinstance(ranks, int) or ranks < worker.world_size


class Cancellations:
    """Cancels loads of one worker. Worker's thread; in push mode, registrations are also used by the writer's thread."""

    def __init__(self, *, push: bool) -> None:
        """*push*: peers write to this worker's blocks, at addresses that it registers with them."""
        self._push = push
        self._lock = threading.Lock()
        self._registered: set[str] = set()
        self._withheld: set[str] = set()

    def cancel(self, worker: Any, request_id: str) -> CancelResult:
        """Cancel the load of a request; one that is :attr:`CancelResult.FAILED` goes to vLLM's queue of failed requests."""
        meta = worker._recving_metadata.get(request_id)
        if meta is None or not awaits_blocks(meta):
            return CancelResult.SETTLED
        if worker._recving_transfers.get(request_id):
            # Also of a load that has failed: a read from another rank of the peer goes on, or a release is refused.
            return CancelResult.PINNED
        if request_id in worker._recving_transfers or has_failed_receive(worker, request_id):
            # In push mode an entry means that the peer has written all blocks.
            return CancelResult.SETTLED
        if not can_fail_receive(worker):
            return CancelResult.PINNED
        blocks = meta.local_block_ids
        if self._push:
            with self._lock:
                if request_id in self._registered or _is_written_with_others(worker, meta):
                    return CancelResult.PINNED
                self._withheld.add(request_id)
        else:
            worker._recving_metadata[request_id] = dataclasses.replace(meta)
            meta.local_block_ids = meta.local_physical_block_ids = ()
            meta.awaiting_kvs = False
            setattr(meta, _CANCELLED, True)
        fail_receive(worker, request_id, blocks)
        return CancelResult.FAILED

    def forget(self, request_id: str) -> None:
        """Forget a finished request."""
        if self._push:
            with self._lock:
                self._registered.discard(request_id)

    def try_register(self, request_id: str) -> bool:
        """Return whether the registration may be sent; if so, the load can no longer be cancelled."""
        with self._lock:
            if request_id in self._withheld:
                self._withheld.discard(request_id)
                return False
            self._registered.add(request_id)
            return True

    def pop_withheld(self, request_id: str) -> bool:
        """Return, once, whether the failed handshake of a request belongs to a cancelled load."""
        with self._lock:
            if request_id not in self._withheld:
                return False
            self._withheld.discard(request_id)
            return True
