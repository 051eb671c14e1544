"""vLLM's own counters of a NIXL worker, and how many of the same events the hooks have seen.

vLLM hands a worker's statistics over at the end of each step (``NixlKVConnectorStats``), and its ``vllm:nixl_*`` metrics are
their sums. What the hooks see is counted between two of these moments, so both numbers are of the same events. Workers of
Mooncake have the same (``kv/base/mooncake.py``).
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

LATE: Final = "num_notifications_after_expiry"
EXPIRED: Final = "num_kv_expired_reqs"
HANDSHAKES: Final = "num_failed_handshakes"
NOTIFICATIONS: Final = "num_failed_notifications"
TRANSFERS: Final = "num_failed_transfers"

LOGGED: Final = {
    "notification_failed": NOTIFICATIONS,
    "push_reg_notif_failed": NOTIFICATIONS,
    "transfer_exception": TRANSFERS,
    "transfer_failed": TRANSFERS,
    "transfer_setup_failed": TRANSFERS,
}
"""What vLLM counts after each call of its failure log, by the name of the failure. A transfer whose release is refused is
logged and counted at every poll; its event is emitted once."""

_NAMES: Final = (LATE, EXPIRED, HANDSHAKES, NOTIFICATIONS, TRANSFERS)


class UpstreamCount(NamedTuple):
    """One counter: vLLM's name, its own number, and the number that the hooks have seen."""

    name: str
    upstream: int
    seen: int


class UpstreamCounts:
    """The counters of one worker. :meth:`saw` is called from any thread, :meth:`take` on the worker's.

    Attributes:
        totals: the numbers at the end of the last step; replaced as a whole, so that any thread may read them.

    """

    def __init__(
        self, interruptions: int | None, *, names: Sequence[str] = _NAMES, incomparable: Collection[str] = ()
    ) -> None:
        """Begin to count.

        Args:
            interruptions: of the runtime; None where the hooks are passive.
            names: vLLM's names of the counters.
            incomparable: names under which this vLLM counts something else.

        """
        self._names = [name for name in names if name not in incomparable]
        self.totals: tuple[UpstreamCount, ...] = ()
        self._watched_since = interruptions
        self._lock = threading.Lock()
        self._seen: Counter[str] = Counter()

    def saw(self, name: str) -> None:
        """Count an event that vLLM counts under *name*."""
        with self._lock:
            self._seen[name] += 1

    def take(
        self,
        handed_over: Mapping[str, Any],
        known: Mapping[str, Any],
        interruptions: int | None,
        *,
        settled: bool,
    ) -> None:
        """Add what vLLM hands over, if the hooks have watched all of it; drop both numbers if not.

        Args:
            handed_over: the statistics since the last step, a list of numbers for each name; empty for none.
            known: the names that this vLLM counts; others are not compared.
            interruptions: of the runtime; None while the hooks are passive.
            settled: nothing is under way that began unseen, so counting may begin again after a pause.

        """
        watched = interruptions is not None and interruptions == self._watched_since
        if watched and not handed_over and not self._seen:
            return  # most steps: they cost this look
        with self._lock:
            seen, self._seen = self._seen, Counter()
        if not watched:
            self._watched_since = interruptions if settled else None
            return
        counted = {name: sum(handed_over.get(name, ())) for name in self._names if name in known}
        if not any(counted.values()) and not seen:
            return
        before = {count.name: count for count in self.totals}
        totals = []
        for name, upstream in counted.items():
            _, old_upstream, old_seen = before.get(name, (name, 0, 0))
            row = UpstreamCount(name, old_upstream + upstream, old_seen + seen[name])
            if row.upstream or row.seen:
                totals.append(row)
        self.totals = tuple(totals)
