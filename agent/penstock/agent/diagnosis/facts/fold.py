"""Sorts events of the log into the two windows of a diagnosis. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.agent.batch import gate_times
from penstock.agent.diagnosis.facts import records
from penstock.agent.diagnosis.facts.windows import Window
from penstock.proto.names import NANOS
from penstock.proto.v1.common_pb2 import TRANSFER_RESULT_ERROR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.agent.model import EngineKey
    from penstock.proto.v1.events_pb2 import Event

UNKNOWN: Final = "unknown"

RARE: Final = (
    "transfer_failure",
    "load_outcome",
    "lease_closed",
    "policy_applied",
    "eplb_rebalance",
    "source_lost",
    "transfer_delayed",
    "blocks_pinned",
    "kv_caches_released",
)
"""Kinds of events that tell of trouble."""

OF_REQUESTS: Final = ("deferral_end", "request_closed")
"""Kinds of events of which each request has some."""


class WindowFold:
    """Two windows that end *now*, and the events that were put into them."""

    def __init__(
        self, now: int, since: float, baseline: float, ahead: Mapping[EngineKey, int] | None = None
    ) -> None:
        """Create empty windows.

        Args:
            now: the agent's clock, nanoseconds.
            since: seconds of the window.
            baseline: seconds of the time before it.
            ahead: the engines' clocks minus the agent's, nanoseconds.

        """
        self.present, self.before = Window(since), Window(baseline)
        self._edge = now - int(since * NANOS)
        self._ahead = ahead or {}
        self.start = self._edge - int(baseline * NANOS)
        self._now = now

    def add(self, key: EngineKey, role: str, event: Event) -> None:
        """Count an event of an engine; others than the kinds above, and what is older, is left out."""
        kind = event.WhichOneof("body") or ""
        put = _PUT.get(kind)
        time = event.time_unix_nano - self._ahead.get(key, 0)
        if put is not None and time >= self.start:
            put(self.present if time >= self._edge else self.before, time, key, event, role)

    def note_read(self, oldest: int, *, of_requests: bool) -> None:
        """Note that events were read back to *oldest* only, nanoseconds; 0 for all.

        Args:
            oldest: of the events that were read.
            of_requests: it was the kinds ``OF_REQUESTS`` and not ``RARE``.

        """
        reached = max(0.0, (self._now - max(oldest, self.start)) / NANOS)
        present = min(reached, self.present.seconds)
        before = min(max(0.0, reached - self.present.seconds), self.before.seconds)
        for window, seconds in ((self.present, present), (self.before, before)):
            if of_requests:
                window.read_requests = seconds
            else:
                window.read = seconds


def _failure(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.transfer_failure
    window.failures.append(
        records.Failure(
            time, key, event.request_id, body.channel, body.mode, body.error_type, body.peer.address or UNKNOWN,
            body.caused_by_peer.address, tuple(body.incompatibility.factors), body.error_text, event.rehearsal,
        )
    )  # fmt: skip


def _load_end(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.load_outcome
    window.load_ends.append(
        records.LoadEnd(
            time, key, event.request_id, body.channel, body.outcome, body.decided_by, body.mode, body.error_type,
            body.peer.address or UNKNOWN, body.tokens_recomputed, body.policy_hash, event.rehearsal,
        )
    )  # fmt: skip


def _wait(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.deferral_end
    start = body.start_time_unix_nano
    seconds = max(0, event.time_unix_nano - start) / NANOS if start else 0.0
    window.waits.append(
        records.Wait(time, key, event.request_id, body.reason, body.peer.address, body.ending, seconds)
    )


def _delay(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.transfer_delayed
    window.delays.append(
        records.Delay(
            time,
            key,
            event.request_id,
            body.peer.address,
            body.caused_by_peer.address,
            body.delay_nano / NANOS,
        )
    )


def _lease_end(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.lease_closed
    start = body.start_time_unix_nano
    seconds = max(0, event.time_unix_nano - start) / NANOS if start else 0.0
    window.lease_ends.append(records.LeaseEnd(time, key, event.request_id, body.ending, body.blocks, seconds))


def _rebalance(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.eplb_rebalance
    begun = body.start_time_unix_nano or event.time_unix_nano - body.duration_nano
    window.rebalances.append(
        records.Rebalance(
            time, key, body.result != TRANSFER_RESULT_ERROR, body.pause_nano / NANOS, body.duration_nano / NANOS,
            body.error_text, event.rank, body.model, body.step, begun + time - event.time_unix_nano,
        )
    )  # fmt: skip


def _loss(window: Window, time: int, key: EngineKey, event: Event, role: str) -> None:
    window.losses.append(records.Loss(time, key, event.source_lost.process, role))


def _closed(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.request_closed
    arrival, first = body.arrival_time_unix_nano, body.first_token_time_unix_nano
    seconds = max(0, first - arrival) / NANOS if arrival and first else 0.0
    window.closed.append(
        records.Closed(
            time, key, event.request_id, body.kv_role, body.peer.address, seconds, body.prompt_tokens,
            body.finish_reason,
            gate_times(body),
        )
    )  # fmt: skip


def _refusal(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.policy_applied
    if not body.accepted:
        window.refusals.append(records.PolicyRefusal(time, key, body.hash, body.error))


def _pinning(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.blocks_pinned
    window.pinnings.append(
        records.Pinning(time, key, body.peer.address or UNKNOWN, body.blocks, body.released)
    )


def _sleep(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.kv_caches_released
    if body.restored:
        since = body.since_time_unix_nano + time - event.time_unix_nano
        window.sleeps.append(records.Sleep(time, key, since))


_PUT: Final[dict[str, Callable[[Window, int, EngineKey, Event, str], None]]] = {
    "transfer_failure": _failure,
    "load_outcome": _load_end,
    "deferral_end": _wait,
    "transfer_delayed": _delay,
    "lease_closed": _lease_end,
    "eplb_rebalance": _rebalance,
    "source_lost": _loss,
    "request_closed": _closed,
    "policy_applied": _refusal,
    "blocks_pinned": _pinning,
    "kv_caches_released": _sleep,
}
