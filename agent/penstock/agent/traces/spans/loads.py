"""Groups the transfers and failures of one request into loads, one per attempt."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.proto.deferral_channels import LOAD_CHANNELS
from penstock.proto.v1 import common_pb2

if TYPE_CHECKING:
    from penstock.agent.batch import TransferSample
    from penstock.agent.traces.spans.model import EventEntry, SampleEntry
    from penstock.agent.traces.spans.request_history import RequestFacts
    from penstock.proto.v1.events_pb2 import LoadOutcome, TransferFailure

_HOST: Final = "host"

# Failures of these modes do not end an attempt: they come before it (a probe), after it, or are the
# other side's.
_NOT_OF_A_LOAD = frozenset(
    (
        common_pb2.FAILURE_MODE_PROBE,
        common_pb2.FAILURE_MODE_NOTIFICATION,
        common_pb2.FAILURE_MODE_RELEASE,
        common_pb2.FAILURE_MODE_EXPIRED,
        common_pb2.FAILURE_MODE_LATE_READ,
    )
)


def ends_load(failure: TransferFailure) -> bool:
    """Return whether a failure ends a load attempt; one whose content is used all the same does not."""
    return (
        not failure.used and failure.channel != common_pb2.CHANNEL_EPLB and failure.mode not in _NOT_OF_A_LOAD
    )


@dataclass(frozen=True, slots=True)
class Load:
    """One attempt of a request to load remote state, over all ranks and handles.

    ``sending``: this side writes into the other (push mode). ``outcome``: the action on a failure; None if it succeeded or
    no action was reported.
    """

    channel: int
    sending: bool
    attempt: int
    failures: tuple[EventEntry, ...]
    samples: tuple[SampleEntry, ...]
    outcome: LoadOutcome | None
    start_unix_nano: int
    end_unix_nano: int

    @property
    def unseen_nano(self) -> int:
        """By how much it may have ended before its end was seen: the last rank's look decides; 0 also for not known."""
        ends = [entry.sample.end_time_unix_nano - entry.sample.unseen_nano for entry in self.samples]
        # A failure is told as it comes.
        ends += [entry.event.time_unix_nano for entry in self.failures]
        return min(max(self.end_unix_nano - max(ends), 0), self.end_unix_nano - self.start_unix_nano)

    @property
    def failure(self) -> TransferFailure | None:
        """The first failure of its own; if all are collateral, the first of those."""
        failures = [entry.event.transfer_failure for entry in self.failures]
        own = [failure for failure in failures if failure.mode != common_pb2.FAILURE_MODE_COLLATERAL]
        return next(iter(own or failures), None)

    @property
    def failed(self) -> bool:
        """Whether a rank reported an error."""
        return bool(self.failures) or any(
            entry.sample.result == common_pb2.TRANSFER_RESULT_ERROR for entry in self.samples
        )

    @property
    def peer(self) -> common_pb2.Peer:
        """The peer of the failure if there is one, else of a transfer; empty if unknown."""
        failure = self.failure
        if failure is not None and failure.peer.address:
            return failure.peer
        first = next((entry.sample for entry in self.samples if entry.sample.peer), None)
        if first is None:
            return common_pb2.Peer()
        return common_pb2.Peer(address=first.peer, engine_id=first.peer_engine_id)

    @property
    def connector(self) -> str:
        """The connector's class."""
        of_failures = [entry.event.transfer_failure.connector for entry in self.failures]
        return next(filter(None, [*of_failures, *(entry.sample.connector for entry in self.samples)]), "")

    @property
    def bytes(self) -> int:
        """What was moved, 0 if not known. What a peer has brought into this machine's memory is not counted again in the copy from there."""
        sizes = {True: 0, False: 0}
        for entry in self.samples:
            sizes[entry.sample.peer == _HOST] += entry.sample.bytes
        return max(sizes.values())

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that took part."""
        ranks = {entry.event.rank for entry in self.failures} | {entry.sample.rank for entry in self.samples}
        return tuple(sorted(ranks))


def request_loads(facts: RequestFacts) -> list[Load]:
    """Return the loads of a request, by channel, direction and attempt."""
    if not (facts.failures or facts.samples):
        return []
    return [
        load
        for channel in (common_pb2.CHANNEL_KV, common_pb2.CHANNEL_EC)
        for sending in (False, True)
        for load in _loads_of(facts, channel, sending=sending)
    ]


def _loads_of(facts: RequestFacts, channel: int, *, sending: bool) -> list[Load]:
    outcomes = {
        max(entry.event.load_outcome.attempt, 1): entry.event.load_outcome
        for entry in facts.outcomes
        if entry.event.load_outcome.channel == channel and not sending
    }
    failures: dict[int, list[EventEntry]] = defaultdict(list)
    for entry in facts.failures:
        failure = entry.event.transfer_failure
        if _belongs(failure, channel, sending=sending) and ends_load(failure):
            failures[max(failure.attempt, 1)].append(entry)
    samples: dict[int, list[SampleEntry]] = defaultdict(list)
    ends = {attempt: entries[-1].event.time_unix_nano for attempt, entries in sorted(failures.items())}
    last = max(failures, default=1)
    if last in outcomes and outcomes[last].outcome == common_pb2.OUTCOME_RETRIED:
        last += 1
    for sample in facts.samples:
        if _belongs(sample.sample, channel, sending=sending):
            # A sample does not say which attempt it was part of; its time does.
            time = sample.sample.end_time_unix_nano
            samples[next((attempt for attempt, end in ends.items() if time <= end), last)].append(sample)
    return [
        _load(facts, channel, sending, attempt, failures[attempt], samples[attempt], outcomes.get(attempt))
        for attempt in sorted(failures.keys() | samples.keys())
    ]


def _belongs(entry: TransferFailure | TransferSample, channel: int, *, sending: bool) -> bool:
    return entry.channel == channel and (entry.direction == common_pb2.DIRECTION_SEND) == sending


def _load(
    facts: RequestFacts,
    channel: int,
    sending: bool,
    attempt: int,
    failures: list[EventEntry],
    samples: list[SampleEntry],
    outcome: LoadOutcome | None,
) -> Load:
    ends = [entry.event.time_unix_nano for entry in failures]
    ends += [entry.sample.end_time_unix_nano for entry in samples]
    starts = [entry.sample.start_time_unix_nano for entry in samples]
    starts += [
        entry.event.transfer_failure.start_time_unix_nano
        for entry in failures
        if entry.event.transfer_failure.start_time_unix_nano
    ]
    # A failure that does not know when its attempt began: the wait for it is the next best witness.
    waits = [] if starts or sending else _deferral_starts(facts, channel)
    starts = starts or [time for time in waits if time <= min(ends)][-1:]
    # A handshake that others wait for, too, may have begun before the request.
    start = max(min([*starts, min(ends)]), facts.start_unix_nano)
    return Load(channel, sending, attempt, tuple(failures), tuple(samples), outcome, start, max(start, *ends))


def _deferral_starts(facts: RequestFacts, channel: int) -> list[int]:
    """Return when the waits for a channel began, in the order of time."""
    return sorted(
        wait.start_unix_nano for wait in facts.deferrals if LOAD_CHANNELS.get(wait.reason) == channel
    )
