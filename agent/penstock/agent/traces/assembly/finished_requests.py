"""Bounds the assembler's memory: bytes of pending entries, and a cache of finished requests. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.traces.assembly.model import FinishedRequest
    from penstock.agent.traces.spans import RequestKey

# Measured: a parsed batch takes five times its bytes, and one entry that is held keeps all of it.
_SWELL = 5
# Of an entry, beside that.
_ENTRY_BYTES = 512
# Of a request that is remembered, beside its ids, which take up to four bytes a character.
_REMEMBERED_BYTES = 1024
_CHARACTER = 4


class PendingBytes:
    """Counts the bytes of pending entries and of the batches that contain them."""

    def __init__(self) -> None:
        self._users: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self.bytes = 0

    def add(self, batch: int, size: int) -> None:
        """Count an entry of *batch*, whose body has *size* bytes."""
        if batch not in self._users:
            self._users[batch], self._sizes[batch] = 0, _SWELL * size
            self.bytes += self._sizes[batch]
        self._users[batch] += 1
        self.bytes += _ENTRY_BYTES

    def release(self, batches: Iterable[int]) -> None:
        """Stop counting one entry of each of *batches*."""
        for batch in batches:
            self.bytes -= _ENTRY_BYTES
            self._users[batch] -= 1
            if not self._users[batch]:
                del self._users[batch]
                self.bytes -= self._sizes.pop(batch)


class FinishedRequests:
    """A cache of finished requests, for their late entries; evicts the oldest.

    Args:
        most: maximum number.
        max_bytes: approximate maximum of memory.

    """

    def __init__(self, most: int, max_bytes: int) -> None:
        self._most = most
        self._max_bytes = max_bytes
        self._requests: OrderedDict[RequestKey, FinishedRequest] = OrderedDict()
        self.bytes = 0

    def get(self, key: RequestKey) -> FinishedRequest | None:
        """Return a request; None if it was evicted or never finished."""
        return self._requests.get(key)

    def put(self, key: RequestKey, done: FinishedRequest) -> None:
        """Add a request as the newest."""
        old = self._requests.pop(key, None)
        if old is not None:
            self.bytes -= _weight(key, old)
        self._requests[key] = done
        self.bytes += _weight(key, done)
        while len(self._requests) > self._most or self.bytes > self._max_bytes:
            self.bytes -= _weight(*self._requests.popitem(last=False))

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self._requests)


def _weight(key: RequestKey, done: FinishedRequest) -> int:
    identity = done.identity
    characters = sum(map(len, (*key, identity.request_id, identity.prefill_request_id, identity.tracestate)))
    return _REMEMBERED_BYTES + _CHARACTER * characters
