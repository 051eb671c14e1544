"""What rules read of the log: one record an event, without what no rule needs, sorted into the two windows of a diagnosis. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.batch import gate_times
from penstock.agent.diagnosis.facts.windows import Window
from penstock.proto.names import NANOS
from penstock.proto.v1.common_pb2 import TRANSFER_RESULT_ERROR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.agent.batch import GateTimes
    from penstock.agent.model import EngineKey
    from penstock.proto.v1.events_pb2 import Event


class Failure(NamedTuple):
    """A failed attempt; numbers of the wire's enums.

    Attributes:
        time: nanoseconds, by the agent's clock as far as the offset is known; so in all records.
        caused_by: the peer whose trouble it fell victim to; empty for none.
        factors: that differ, of an incompatible handshake.

    """

    time: int
    key: EngineKey
    request_id: str
    channel: int
    mode: int
    error_type: int
    peer: str
    caused_by: str
    factors: tuple[str, ...]
    text: str
    rehearsal: bool


class LoadEnd(NamedTuple):
    """What was done for a request whose load failed."""

    time: int
    key: EngineKey
    request_id: str
    channel: int
    outcome: int
    decided_by: int
    mode: int
    error_type: int
    peer: str
    tokens: int
    policy_hash: str
    rehearsal: bool


class Wait(NamedTuple):
    """A deferral that has ended; ``seconds`` is 0 if its start is not known."""

    time: int
    key: EngineKey
    request_id: str
    reason: int
    peer: str
    ending: int
    seconds: float


class Delay(NamedTuple):
    """A transfer that another peer's trouble held up."""

    time: int
    key: EngineKey
    request_id: str
    peer: str
    caused_by: str
    seconds: float


class LeaseEnd(NamedTuple):
    """Blocks that were kept for a reader and let go."""

    time: int
    key: EngineKey
    request_id: str
    ending: int
    blocks: int
    seconds: float


class Rebalance(NamedTuple):
    """A rebalance of experts on one rank.

    Attributes:
        start: nanoseconds, by the agent's clock as far as the offset is known.
        step: of the engine; 0 for unknown.

    """

    time: int
    key: EngineKey
    ok: bool
    pause: float
    seconds: float
    text: str
    rank: int
    model: str
    step: int
    start: int


class Loss(NamedTuple):
    """A process that vanished without a goodbye."""

    time: int
    key: EngineKey
    process: str
    role: str


class Closed(NamedTuple):
    """A request that left the scheduler.

    Attributes:
        first_token: seconds from its arrival; 0 for none.
        gates: how long it was at each gate; None where its engine does not report it.

    """

    time: int
    key: EngineKey
    request_id: str
    kv_role: int
    peer: str
    first_token: float
    prompt_tokens: int
    finish_reason: str
    gates: GateTimes | None = None


class PolicyRefusal(NamedTuple):
    """A policy that an engine refused."""

    time: int
    key: EngineKey
    policy_hash: str
    error: str


class Pinning(NamedTuple):
    """A transfer that was given up, and whose blocks could not be released, or now are."""

    time: int
    key: EngineKey
    peer: str
    blocks: int
    released: bool


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
        Failure(
            time, key, event.request_id, body.channel, body.mode, body.error_type, body.peer.address or UNKNOWN,
            body.caused_by_peer.address, tuple(body.incompatibility.factors), body.error_text, event.rehearsal,
        )
    )  # fmt: skip


def _load_end(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.load_outcome
    window.load_ends.append(
        LoadEnd(
            time, key, event.request_id, body.channel, body.outcome, body.decided_by, body.mode, body.error_type,
            body.peer.address or UNKNOWN, body.tokens_recomputed, body.policy_hash, event.rehearsal,
        )
    )  # fmt: skip


def _wait(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.deferral_end
    start = body.start_time_unix_nano
    seconds = max(0, event.time_unix_nano - start) / NANOS if start else 0.0
    window.waits.append(
        Wait(time, key, event.request_id, body.reason, body.peer.address, body.ending, seconds)
    )


def _delay(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.transfer_delayed
    window.delays.append(
        Delay(
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
    window.lease_ends.append(LeaseEnd(time, key, event.request_id, body.ending, body.blocks, seconds))


def _rebalance(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.eplb_rebalance
    begun = body.start_time_unix_nano or event.time_unix_nano - body.duration_nano
    window.rebalances.append(
        Rebalance(
            time, key, body.result != TRANSFER_RESULT_ERROR, body.pause_nano / NANOS, body.duration_nano / NANOS,
            body.error_text, event.rank, body.model, body.step, begun + time - event.time_unix_nano,
        )
    )  # fmt: skip


def _loss(window: Window, time: int, key: EngineKey, event: Event, role: str) -> None:
    window.losses.append(Loss(time, key, event.source_lost.process, role))


def _closed(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.request_closed
    arrival, first = body.arrival_time_unix_nano, body.first_token_time_unix_nano
    seconds = max(0, first - arrival) / NANOS if arrival and first else 0.0
    window.closed.append(
        Closed(
            time, key, event.request_id, body.kv_role, body.peer.address, seconds, body.prompt_tokens,
            body.finish_reason,
            gate_times(body),
        )
    )  # fmt: skip


def _refusal(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.policy_applied
    if not body.accepted:
        window.refusals.append(PolicyRefusal(time, key, body.hash, body.error))


def _pinning(window: Window, time: int, key: EngineKey, event: Event, _: str) -> None:
    body = event.blocks_pinned
    window.pinnings.append(Pinning(time, key, body.peer.address or UNKNOWN, body.blocks, body.released))


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
}
