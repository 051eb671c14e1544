"""Cancelling loads that the scheduler has given up, where no transfer can write to their blocks afterwards.

Blocks may be reused once vLLM reports a request as received or failed. So it depends on how far a load has come:

- it waits for a handshake (pull): its ``ReqMeta`` is made one without blocks before the request is failed. When the
  handshake ends vLLM reads nothing by it, and only tells the peer to let its blocks go;
- it waits for a handshake (push): its registration is held back, so the peer never learns of the blocks;
- its transfers are posted, or the peer has been told where to write: nothing can be taken back, and the blocks stay pinned
  until NIXL says that the transfer has ended. Releasing the handle is no way out: NIXL releases that of a read in progress
  at once, and the peer's late answer is still written to the blocks (docs/upstream.md).
"""

from __future__ import annotations

import dataclasses
import threading
from enum import Enum
from typing import Any, Final

_MARK: Final = "penstock_cancelled"


class CancelResult(Enum):
    """What became of the wish to cancel a load."""

    FAILED = "no transfer of it has begun or can begin"
    PINNED = "a transfer may write to its blocks at any time"
    SETTLED = "it is done, failed or not known here"


def is_cancelled(meta: Any) -> bool:
    """Tell whether a ``ReqMeta`` is what is left of a load that was cancelled while it waited for its handshake."""
    return getattr(meta, _MARK, False)


class Cancellations:
    """What may be cancelled in one worker; for the worker's thread, the registrations for the writer's too."""

    def __init__(self, *, push: bool) -> None:
        """*push*: the peers write, and this side only tells them where."""
        self._push = push
        self._lock = threading.Lock()
        self._registered: set[str] = set()
        self._withheld: set[str] = set()

    def cancel(self, worker: Any, request_id: str) -> CancelResult:
        """Give up the load of a request; a request that :attr:`CancelResult.FAILED` is in vLLM's queue of failed ones."""
        meta = worker._recving_metadata.get(request_id)
        if meta is None or not meta.awaiting_kvs or request_id in worker._recv_failures:
            return CancelResult.SETTLED
        if request_id in worker._recving_transfers:
            # In push mode an entry says that the peer has written all.
            return CancelResult.SETTLED if self._push else CancelResult.PINNED
        if self._push:
            with self._lock:
                if request_id in self._registered:
                    return CancelResult.PINNED
                self._withheld.add(request_id)
        else:
            worker._recving_metadata[request_id] = dataclasses.replace(meta)
            meta.local_block_ids = meta.local_physical_block_ids = ()
            meta.awaiting_kvs = False
            setattr(meta, _MARK, True)
        worker._failed_recv_reqs.put(request_id)
        return CancelResult.FAILED

    def end(self, request_id: str) -> None:
        """Forget a request that is done."""
        if self._push:
            with self._lock:
                self._registered.discard(request_id)

    def may_register(self, request_id: str) -> bool:
        """Tell whether the peer may be told where to write; from then on the load cannot be cancelled."""
        with self._lock:
            if request_id in self._withheld:
                self._withheld.discard(request_id)
                return False
            self._registered.add(request_id)
            return True

    def withheld(self, request_id: str) -> bool:
        """Tell, once, whether a handshake that failed was awaited by a load that had been cancelled."""
        with self._lock:
            if request_id not in self._withheld:
                return False
            self._withheld.discard(request_id)
            return True
