"""Cancelling loads that the scheduler has given up: through vLLM's own failure path, never behind its back.

Blocks may be reused once vLLM reports a request as received or failed. So a load is cancelled only where no transfer can
write to its blocks afterwards:

- its transfers are posted: the poll sees a failed state, vLLM releases the handles, and NIXL either stops the transfer or
  refuses the release; then vLLM keeps handle and blocks and tries again;
- it waits for a handshake (pull): its ``ReqMeta`` is made one without blocks before the request is failed. When the
  handshake ends vLLM reads nothing by it, and only tells the peer to let its blocks go;
- it waits for a handshake (push): its registration is held back, so the peer never learns of the blocks;
- the peer has been told where to write (push): nothing can be taken back; the blocks stay pinned until it has written.
"""

from __future__ import annotations

import dataclasses
import threading
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.nixl_transfers import address

if TYPE_CHECKING:
    from collections.abc import Mapping

_MARK: Final = "penstock_cancelled"


class Cancel(Enum):
    """What became of the wish to cancel a load."""

    POLLED = "its transfers are cancelled where they are polled"
    FAILED = "no transfer of it has begun or can begin"
    PINNED = "the peer may write to its blocks at any time"
    SETTLED = "it is done, failed or not known here"


def is_cancelled(meta: Any) -> bool:
    """Tell whether a ``ReqMeta`` is what is left of a load that was cancelled while it waited for its handshake."""
    return getattr(meta, _MARK, False)


class Cancels:
    """The loads of one worker that are given up; for the worker's thread, the registrations for the writer's too."""

    def __init__(self, *, push: bool) -> None:
        """*push*: the peers write, and this side only tells them where."""
        self.doomed: dict[int, str] = {}
        self._push = push
        self._asked: dict[str, None] = {}
        self._lock = threading.Lock()
        self._registered: set[str] = set()
        self._withheld: set[str] = set()

    def cancel(self, worker: Any, request_id: str) -> Cancel:
        """Give up the load of a request; a request that :attr:`Cancel.FAILED` is in vLLM's queue of failed ones."""
        meta = worker._recving_metadata.get(request_id)
        if meta is None or not meta.awaiting_kvs or request_id in worker._recv_failures:
            return Cancel.SETTLED
        if request_id in worker._recving_transfers:
            if self._push:
                return Cancel.SETTLED  # the peer has written all
            self._asked[request_id] = None
            return Cancel.POLLED
        if self._push:
            with self._lock:
                if request_id in self._registered:
                    return Cancel.PINNED
                self._withheld.add(request_id)
        else:
            worker._recving_metadata[request_id] = dataclasses.replace(meta)
            meta.local_block_ids = meta.local_physical_block_ids = ()
            meta.awaiting_kvs = False
            setattr(meta, _MARK, True)
        worker._failed_recv_reqs.put(request_id)
        return Cancel.FAILED

    def before_poll(self, transfers: Mapping[str, list[Any]]) -> None:
        """Look up the handles of the loads that are given up, in vLLM's table of what is being received."""
        self.doomed = {
            address(handle): request_id
            for request_id in self._asked
            for handle in transfers.get(request_id, ())
        }

    def end(self, request_id: str) -> None:
        """Forget a request that is done."""
        self._asked.pop(request_id, None)
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
