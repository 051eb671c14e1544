"""What the fold of the log keeps in memory, and how much that is. Pure."""

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
    """The bytes that entries in wait take: their own, and those of the batches that they are parts of."""

    def __init__(self) -> None:
        self._users: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self.bytes = 0

    def take(self, batch: int, size: int) -> None:
        """Hold an entry of *batch*, whose body has *size* bytes."""
        if batch not in self._users:
            self._users[batch], self._sizes[batch] = 0, _SWELL * size
            self.bytes += self._sizes[batch]
        self._users[batch] += 1
        self.bytes += _ENTRY_BYTES

    def release(self, batches: Iterable[int]) -> None:
        """Let go of entries: of one of each of *batches*."""
        for batch in batches:
            self.bytes -= _ENTRY_BYTES
            self._users[batch] -= 1
            if not self._users[batch]:
                del self._users[batch]
                self.bytes -= self._sizes.pop(batch)


class FinishedRequests:
    """Finished requests, for what comes late; the oldest are forgotten.

    Args:
        most: how many.
        max_bytes: how much memory, about.

    """

    def __init__(self, most: int, max_bytes: int) -> None:
        self._most = most
        self._max_bytes = max_bytes
        self._requests: OrderedDict[RequestKey, FinishedRequest] = OrderedDict()
        self.bytes = 0

    def get(self, key: RequestKey) -> FinishedRequest | None:
        """Return one; None if it is forgotten, or never was."""
        return self._requests.get(key)

    def put(self, key: RequestKey, done: FinishedRequest) -> None:
        """Remember one as the newest."""
        old = self._requests.pop(key, None)
        if old is not None:
            self.bytes -= _weight(key, old)
        self._requests[key] = done
        self.bytes += _weight(key, done)
        while len(self._requests) > self._most or self.bytes > self._max_bytes:
            self.bytes -= _weight(*self._requests.popitem(last=False))

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._requests)


def _weight(key: RequestKey, done: FinishedRequest) -> int:
    identity = done.identity
    characters = sum(map(len, (*key, identity.request_id, identity.prefill_request_id, identity.tracestate)))
    return _REMEMBERED_BYTES + _CHARACTER * characters
