"""The snapshot that the exporter sends once a second: its providers, and when it is due."""

from __future__ import annotations

import itertools
import time
import weakref
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import registry
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.proto.v1.snapshot_pb2 import Snapshot

    Provider: TypeAlias = Callable[[Snapshot], None]
    from penstock.instrumentation.core import DropCounter, Session
    from penstock.instrumentation.telemetry.entry_account import EntryAccount


class Filling(Protocol):
    """What has a part of the snapshot."""

    def fill(self, snapshot: Snapshot) -> None:
        """Add it; on the exporter's thread."""


class Snapshots:
    """Providers by name.

    A provider is called on the exporter's thread with the snapshot to which it adds its
    part; it must only read the engine's state, and must not wait.
    """

    def __init__(self) -> None:
        self._providers: dict[str, Provider] = {}
        self._numbers = itertools.count()

    def add(self, name: str, provider: Provider) -> None:
        """Add *provider*, replacing the one of that name."""
        self._providers[name] = provider

    def add_living(self, kind: str, owner: Filling) -> None:
        """Add what *owner* fills in, one of several of its *kind*, for as long as it lives; nothing here keeps it alive."""
        name, living = f"{kind}.{next(self._numbers)}", weakref.ref(owner)

        def fill(snapshot: Snapshot) -> None:
            found = living()
            if found is None:
                self.remove(name)
            else:
                found.fill(snapshot)

        self.add(name, fill)

    def remove(self, name: str) -> None:
        """Remove the provider of that name, if there is one."""
        self._providers.pop(name, None)

    def collect(self, snapshot: Snapshot) -> None:
        """Call every provider; one that raises is counted and the rest go on."""
        for name, provider in list(self._providers.items()):
            with guard(f"snapshot.{name}"):
                provider(snapshot)

    def reset(self) -> None:
        """Remove all providers: for a child after a fork, whose parent reports them."""
        self._providers.clear()


SNAPSHOT_INTERVAL: Final = 1.0

SNAPSHOT_REFUSED: Final = 60.0
"""Seconds without snapshots after the agent has rejected one: the next would end the stream again."""


class SnapshotFeed:
    """Makes the snapshots of one process; on the exporter's thread.

    Attributes:
        due_at: when the next is due, on the monotonic clock.

    """

    def __init__(
        self, session: Session, snapshots: Snapshots, account: EntryAccount, drops: DropCounter
    ) -> None:
        """Make the feed; *drops* counts what is cut from a snapshot."""
        self.due_at = 0.0
        self._session = session
        self._snapshots = snapshots
        self._account = account
        self._drops = drops
        self._earliest = 0.0
        # What the last snapshot said: paused, out of rotation, and whether entries were unsent.
        self._said = (False, False, False)

    def resume(self, now: float) -> None:
        """Make the next one due at once, or when the agent may be sent one again."""
        self.due_at = max(now, self._earliest)

    def on_rejected(self, now: float) -> None:
        """Begin the time in which the agent is sent none; :meth:`resume` observes it."""
        self._earliest = now + SNAPSHOT_REFUSED

    def runs(self, now: float) -> bool:
        """Whether the next one is due within an interval, so that the thread wakes by itself."""
        return self.due_at <= now + SNAPSHOT_INTERVAL

    def hurry(self, now: float, *, in_flight: bool) -> None:
        """Make a snapshot due if kill switch or rotation has changed since the last, or what preceded a pause is now sent.

        The operator who pauses, or takes a server out of rotation, waits for it.
        """
        paused, out, pending = self._said
        sent = paused and pending and not self._account.pending(in_flight=in_flight)
        if paused != self._session.paused or out != (self._session.seconds_out_of_rotation > 0) or sent:
            self.due_at = min(self.due_at, max(now, self._earliest))

    def skip(self, now: float) -> None:
        """Make the next one due in an interval."""
        self.due_at = now + SNAPSHOT_INTERVAL

    def build(self, *, sent_batches: int, reconnects: int, in_flight: bool) -> bytes | None:
        """Return a snapshot as a serialized ``Batch``; None, and a drop counted, if it exceeds a message."""
        from penstock.instrumentation.telemetry.encoder import BATCH_BYTES, enforce_limits  # noqa: PLC0415
        from penstock.proto.v1.ingest_pb2 import Batch  # noqa: PLC0415

        batch = Batch(epoch=self._session.epoch)
        snapshot = batch.snapshot
        snapshot.time_unix_nano = time.time_ns()
        snapshot.paused = self._session.paused
        left = self._session.seconds_out_of_rotation
        if left:
            snapshot.out_of_rotation_until_unix_nano = snapshot.time_unix_nano + round(left * NANOS)
        snapshot.emitter.sent_batches = sent_batches
        snapshot.emitter.reconnects = reconnects
        self._account.fill(snapshot.emitter, in_flight=in_flight)
        registry.fill(snapshot)
        self._snapshots.collect(snapshot)
        self._said = (snapshot.paused, left > 0, snapshot.emitter.pending_entries > 0)
        lost = enforce_limits(snapshot)
        if lost:
            self._drops.add("oversize", "snapshot_row", lost)
        content = batch.SerializeToString()
        if len(content) > BATCH_BYTES:
            self._drops.add("oversize", "snapshot")
            return None
        return content
