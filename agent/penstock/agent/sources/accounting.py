"""Accounts of each source's entries in the log and of those reported lost. Pure.

With what a source says it has produced and what waits in it, every entry is accounted for: produced = stored + lost +
pending.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from penstock.proto.names import NOT_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.proto.v1.ingest_pb2 import Batch

# Sources whose account is kept; above it, the one that was quiet for longest is forgotten.
MAX_ACCOUNTS = 4_096

# Kinds of drops that are no entries.


class Account(NamedTuple):
    """One source's entries in the log."""

    stored: int = 0
    lost: int = 0

    def plus(self, batch: Batch) -> Account:
        """Return the account after one more committed batch."""
        stored = (
            len(batch.events) + len(batch.transfers.end_time_unix_nano) + len(batch.probes.end_time_unix_nano)
        )
        lost = sum(
            drop.count for drop in (*batch.drops, *batch.tombstone.lost) if drop.kind not in NOT_ENTRIES
        )
        return Account(self.stored + stored, self.lost + lost)


class Accounts:
    """The accounts by epoch, of sources whose first batch was seen: an account that begins later would be wrong."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[int, Account] = OrderedDict()

    def apply(self, epoch: int, batch: Batch) -> None:
        """Count a committed batch, in the order of the log."""
        account = Account() if batch.seq == 1 else self._accounts.pop(epoch, None)
        if account is None:
            return
        self._accounts[epoch] = account.plus(batch)
        self._accounts.move_to_end(epoch)
        while len(self._accounts) > MAX_ACCOUNTS:
            self._accounts.popitem(last=False)

    def get(self, epoch: int) -> Account | None:
        """Return a source's account; None if its first batch was not seen or is too old."""
        return self._accounts.get(epoch)

    def dump(self) -> list[list[int]]:
        """Return the state for JSON."""
        return [[epoch, *account] for epoch, account in self._accounts.items()]

    @classmethod
    def load(cls, rows: Iterable[Sequence[int]]) -> Accounts:
        """Return the accounts that :meth:`dump` described.

        Raises:
            ValueError: a row is of another shape.

        """
        accounts = cls()
        for epoch, stored, lost in rows:
            accounts._accounts[epoch] = Account(stored, lost)
        return accounts
