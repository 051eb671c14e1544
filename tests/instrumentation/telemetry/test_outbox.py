"""The outbox against a model: whatever happens, each entry is delivered, accounted for, or still held; once."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from penstock.instrumentation.telemetry.outbox import KEYS_MAX, Outbox, Sealed, Watermark

from tests.support.examples import examples

LIMIT = 100


def batch(size: int, kind: str = "event", entries: int = 1) -> Sealed:
    """Build a batch of *size* bytes."""
    return Sealed(b"x" * size, {kind: entries})


def test_numbers_begin_at_one_and_stay() -> None:
    """The head keeps its number until it is acknowledged; the next one gets the next."""
    outbox = Outbox()
    assert outbox.head() is None
    first, second = batch(1), batch(2)
    outbox.append(first)
    outbox.append(second)
    assert outbox.head() == (1, first)
    assert outbox.head() == (1, first)
    assert outbox.acknowledge(1) is Watermark.GOOD
    assert outbox.head() == (2, second)
    assert (len(outbox), outbox.size, outbox.acknowledged) == (1, 2, 1)


def test_watermark_of_a_greeting() -> None:
    """A greeting behind the batch in flight has it resent, one at it acknowledges it."""
    outbox = Outbox()
    outbox.append(batch(1))
    outbox.head()
    assert outbox.acknowledge(0) is Watermark.GOOD
    assert len(outbox) == 1
    assert outbox.acknowledge(1) is Watermark.GOOD
    assert len(outbox) == 0


@pytest.mark.parametrize("watermark", [0, 3])
def test_foreign_watermarks(watermark: int) -> None:
    """A watermark behind what was acknowledged, or ahead of what was sent, is no good; a restart numbers anew."""
    outbox = Outbox()
    outbox.append(batch(1))
    outbox.head()
    outbox.acknowledge(1)
    outbox.append(batch(2))
    outbox.head()
    assert outbox.acknowledge(watermark) is Watermark.FOREIGN
    outbox.restart()
    assert outbox.head() == (1, batch(2))


def test_oldest_becomes_a_tombstone() -> None:
    """Over the bound the batch in flight stays as it is; those behind it go, and the next one tells."""
    outbox = Outbox(LIMIT)
    for index in range(5):
        outbox.append(Sealed(b"x" * 50, {"event": 1}, drops={("queue_full", "event"): index}))
        outbox.head()
    assert outbox.size == 100
    assert outbox.head() == (1, Sealed(b"x" * 50, {"event": 1}, drops={("queue_full", "event"): 0}))
    outbox.acknowledge(1)
    assert outbox.head() == (
        2,
        Sealed(
            b"x" * 50, {"event": 1}, lost={("outbox_full", "event"): 3}, drops={("queue_full", "event"): 10}
        ),
    )
    outbox.acknowledge(2)
    assert (len(outbox), outbox.entries) == (0, 0)


def test_samples_go_before_events() -> None:
    """However old the events are: every sample that waits goes first, then the oldest events."""
    outbox = Outbox(LIMIT)
    for index in range(8):
        outbox.append(Sealed(b"e" * 10, {f"event-{index}": 1}, b"s" * 10, {"transfer_sample": 7}))
    assert outbox.size == LIMIT
    lost = {("outbox_full", "transfer_sample"): 42}
    assert outbox.head() == (1, Sealed(b"e" * 10, {"event-0": 1}, lost=lost))
    kept = []
    while (head := outbox.head()) is not None:
        kept.append((*head[1].held, *head[1].sampled))
        outbox.acknowledge(head[0])
    assert kept == [(f"event-{n}",) for n in range(6)] + [(f"event-{n}", "transfer_sample") for n in (6, 7)]
    for index in range(12):
        outbox.append(Sealed(b"e" * 10, {f"event-{index}": 1}, b"s" * 10, {"transfer_sample": 7}))
    head = outbox.head()
    assert head is not None
    _, oldest = head
    assert oldest.held == {"event-2": 1}
    assert oldest.lost == {
        ("outbox_full", "transfer_sample"): 84,
        ("outbox_full", "event-0"): 1,
        ("outbox_full", "event-1"): 1,
    }


def test_halves_of_one_append_are_one_batch() -> None:
    """Nothing is joined that was not sealed together: the agent counts what a message holds."""
    outbox = Outbox()
    both = Sealed(b"e", {"event": 1}, b"s", {"transfer_sample": 1})
    outbox.append(both)
    outbox.append(Sealed(samples=b"s", sampled={"probe_sample": 1}))
    outbox.append(Sealed(b"e", {"event": 1}))
    found = []
    while (head := outbox.head()) is not None:
        found.append(head[1])
        outbox.acknowledge(head[0])
    assert found == [both, Sealed(samples=b"s", sampled={"probe_sample": 1}), Sealed(b"e", {"event": 1})]


def test_rejected_batch_keeps_number_and_account() -> None:
    """What the agent will never take is given up; its drops and guard errors are still reported."""
    outbox = Outbox()
    outbox.reject()
    accounts: dict[str, Any] = {
        "drops": {("queue_full", "event"): 2},
        "guard_errors": {("hook", "ValueError"): 1},
    }
    outbox.append(Sealed(b"x", {"event": 3}, **accounts))
    outbox.reject()
    assert outbox.head() == (1, Sealed(b"x", {"event": 3}, **accounts))
    outbox.reject()
    assert outbox.head() == (1, Sealed(lost={("rejected", "event"): 3}, **accounts))


def test_tombstones_stay_small() -> None:
    """However many kinds are lost, a tombstone holds a bounded number of counts and loses none."""
    outbox = Outbox(0)
    for index in range(KEYS_MAX * 2):
        outbox.append(batch(1, f"kind-{index}"))
    assert len(outbox) == 1
    head = outbox.head()
    assert head is not None
    _, tombstone = head
    assert len(tombstone.lost) == KEYS_MAX + 1
    assert sum(tombstone.lost.values()) == KEYS_MAX * 2


class AgentAndOutbox(RuleBasedStateMachine):
    """An agent that dies, loses acknowledgements, loses its state, rejects; a sender that overflows."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(LIMIT)
        self.serial = count(1)
        self.produced: Counter[str] = Counter()
        self.log: list[Sealed] = []
        self.archived: list[Sealed] = []
        self.in_flight: tuple[int, Sealed] | None = None

    @rule(
        size=st.integers(0, LIMIT),
        samples=st.integers(0, LIMIT),
        entries=st.integers(1, 5),
        dropped=st.integers(0, 3),
    )
    def seal(self, size: int, samples: int, entries: int, dropped: int) -> None:
        """Seal a batch with its accounts."""
        kind = f"kind-{next(self.serial) % 3}"
        drops = {("queue_full", kind): dropped} if dropped else {}
        held = {kind: entries} if size else {}
        sampled = {"sample": entries} if samples else {}
        self.outbox.append(Sealed(b"e" * size, held, b"s" * samples, sampled, drops=drops))
        for counts in (held, sampled, {kind: dropped}):
            self.produced.update(counts)

    @rule()
    def send(self) -> None:
        """Send the head if nothing is in flight."""
        if self.in_flight is None:
            self.in_flight = self.outbox.head()

    @precondition(lambda self: self.in_flight)
    @rule(acknowledged=st.booleans())
    def commit(self, acknowledged: bool) -> None:
        """Commit what is in flight; its acknowledgement arrives, or the stream breaks before it does."""
        assert self.in_flight is not None
        seq, content = self.in_flight
        assert seq in (len(self.log), len(self.log) + 1)
        if seq == len(self.log) + 1:
            self.log.append(content)
        self.in_flight = None
        if acknowledged:
            assert self.outbox.acknowledge(len(self.log)) is Watermark.GOOD
        else:
            self.reconnect()

    @precondition(lambda self: self.in_flight)
    @rule()
    def reject(self) -> None:
        """Refuse what is in flight, unless it is a tombstone."""
        assert self.in_flight is not None
        seq, content = self.in_flight
        if seq == len(self.log) + 1 and content.size:
            self.in_flight = None
            self.outbox.reject()

    @rule()
    def reconnect(self) -> None:
        """Break the stream and greet with the watermark."""
        self.in_flight = None
        assert self.outbox.acknowledge(len(self.log)) is Watermark.GOOD

    @rule()
    def lose_state(self) -> None:
        """Come back without the log."""
        if not self.log:
            return
        # What was committed but never acknowledged is counted again by the new state, so the old one's copy goes.
        self.in_flight = None
        self.archived += self.log[: self.outbox.acknowledged]
        known = self.outbox.acknowledged
        self.log = []
        expected = Watermark.FOREIGN if known else Watermark.GOOD
        assert self.outbox.acknowledge(0) is expected
        if expected is Watermark.FOREIGN:
            self.outbox.restart()

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        """Delivered, reported as lost and still held make up what was produced."""
        # In flight and committed, but not acknowledged: the outbox holds it still.
        delivered = [*self.archived, *self.log[: self.outbox.acknowledged]]
        total: Counter[str] = Counter()
        for sealed in (*delivered, *self.held()):
            total.update(sealed.held)
            total.update(sealed.sampled)
            for counts in (sealed.lost, sealed.drops):
                for (_, kind), number in counts.items():
                    total[kind] += number
        assert +total == +self.produced
        assert self.outbox.entries == self.produced.total() - sum(sealed.entries for sealed in delivered)

    def held(self) -> list[Sealed]:
        """Return all that the outbox holds, the head first."""
        outbox = self.outbox
        waiting = [sealed for queue in (outbox._events, outbox._samples) for _, sealed in queue]
        return [sealed for sealed in (outbox._head, outbox._given_up, *waiting) if sealed]

    @invariant()
    def bounded(self) -> None:
        """Hold no more than the bound behind the batch in flight, and give up no event while a sample waits."""
        outbox = self.outbox
        assert outbox.size == sum(sealed.size for sealed in self.held())
        assert outbox.size - (outbox._head.size if outbox._head else 0) <= LIMIT
        assert len(outbox) <= 2 + len(outbox._events) + len(outbox._samples)


AgentAndOutbox.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestAgentAndOutbox = AgentAndOutbox.TestCase
