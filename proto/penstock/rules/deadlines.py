"""Deadlines of requests that wait for remote state (``deferral.maxStartWait``, ``deferral.maxTransferWait``).

Two waits, two clocks: until the transfer starts, and from its start on. A deadline counted from admission would
hit requests that merely queue (TensorRT-LLM#13824).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.rules.policy import Deferral


class WaitKind(StrEnum):
    """The two waits of a request, each by the policy's field that bounds it; and the first one's by a reflex."""

    START = "maxStartWait"
    TRANSFER = "maxTransferWait"
    REFLEX = "reflexes.startWait"


_CLOCKS: Final = (WaitKind.START, WaitKind.TRANSFER)


@dataclass(frozen=True, slots=True)
class DeadlineLimits:
    """The two deadlines in force, in nanoseconds; None waits as long as vLLM itself does."""

    max_start_wait_ns: int | None = None
    max_transfer_wait_ns: int | None = None

    @classmethod
    def from_policy(cls, deferral: Deferral | None) -> DeadlineLimits:
        """Return the limits of a policy; none without one."""
        if deferral is None:
            return cls()
        start, transfer = deferral.max_start_wait, deferral.max_transfer_wait
        return cls(
            None if start is None else round(start * NANOS),
            None if transfer is None else round(transfer * NANOS),
        )

    def of(self, wait: WaitKind) -> int | None:
        """Return the limit of one kind of wait."""
        return self.max_start_wait_ns if wait is WaitKind.START else self.max_transfer_wait_ns


@dataclass(frozen=True, slots=True)
class Overdue:
    """A request that is over a deadline: it waited *waited_ns*, and *limit_ns* are allowed.

    *reason* is that of a reflex, which has a limit of its own for each request.
    """

    request_id: str
    wait: WaitKind
    waited_ns: int
    limit_ns: int
    reason: str = ""


def exceeded_deadline(
    limits: DeadlineLimits, start: int, transfer: int, end: int
) -> tuple[WaitKind, int, int] | None:
    """Return the deadline that a finished wait exceeded, the nanoseconds it waited and the limit; None if none.

    Times in nanoseconds of any one clock; *transfer* is when the transfer started, 0 if it never did.
    """
    for wait, waited in (
        (WaitKind.START, (transfer or end) - start),
        (WaitKind.TRANSFER, end - (transfer or end)),
    ):
        limit = limits.of(wait)
        if limit is not None and waited > limit:
            return wait, waited, limit
    return None


class Deadlines:
    """The requests that wait, by kind of wait and since when.

    One limit holds for all requests of a kind and each kind is kept in the order in which its waits began, so the
    first is always the next due: a check costs O(1) plus the requests that are over, and a changed limit applies to
    those that already wait. Times are monotonic nanoseconds. Belongs to one thread.

    Attributes:
        tables: the waits for a start and those for an end, by request; always the same two, for who looks in every step.

    """

    __slots__ = ("_latest", "_since", "tables")

    def __init__(self) -> None:
        self._since: dict[WaitKind, dict[str, int]] = {wait: {} for wait in _CLOCKS}
        self.tables = (self._since[WaitKind.START], self._since[WaitKind.TRANSFER])
        self._latest = dict.fromkeys(_CLOCKS, 0)

    def __len__(self) -> int:
        starts, transfers = self.tables
        return len(starts) + len(transfers)

    def begin(self, request_id: str, now: int) -> None:
        """Begin a request's wait for its transfer to start; a repeated call changes nothing."""
        starts, transfers = self.tables
        if request_id not in starts and request_id not in transfers:
            self._append(WaitKind.START, request_id, now)

    def started(self, request_id: str, now: int) -> None:
        """Begin the wait for the transfer of a request that waits for its start; a request that does not wait is ignored.

        A start that is reported behind a later one counts from the later one.
        """
        if self._since[WaitKind.START].pop(request_id, None) is not None:
            self._append(WaitKind.TRANSFER, request_id, now)

    def end(self, request_id: str) -> None:
        """End the wait of a request, for any reason."""
        for waiting in self.tables:
            waiting.pop(request_id, None)

    def pop_overdue(self, limits: DeadlineLimits, now: int) -> list[Overdue]:
        """Remove and return the requests that have waited for longer than *limits* allow."""
        if limits.max_start_wait_ns is None and limits.max_transfer_wait_ns is None:
            return []
        overdue = [*self._scan(WaitKind.START, limits, now), *self._scan(WaitKind.TRANSFER, limits, now)]
        for each in overdue:
            del self._since[each.wait][each.request_id]
        return overdue

    def next_due(self, limits: DeadlineLimits) -> int | None:
        """Return the time after which :meth:`pop_overdue` returns something, if nothing changes until then."""
        due = []
        for wait, waiting in self._since.items():
            limit = limits.of(wait)
            if waiting and limit is not None:
                due.append(next(iter(waiting.values())) + limit)
        return min(due, default=None)

    def _append(self, wait: WaitKind, request_id: str, now: int) -> None:
        self._latest[wait] = max(self._latest[wait], now)
        self._since[wait][request_id] = self._latest[wait]

    def _scan(self, wait: WaitKind, limits: DeadlineLimits, now: int) -> Iterator[Overdue]:
        limit = limits.of(wait)
        if limit is None:
            return
        for request_id, since in self._since[wait].items():
            if now - since <= limit:
                return
            yield Overdue(request_id, wait, now - since, limit)
