"""The outbox against a model: whatever happens, each entry is delivered, accounted for, or still held; once."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from penstock.instrumentation.outbox import KEYS_MAX, Outbox, Sealed, Watermark

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
    """Over the bound the batch in flight keeps its number; those behind it merge into one without."""
    outbox = Outbox(LIMIT)
    for index in range(5):
        outbox.append(Sealed(b"x" * 50, {"event": 1}, drops={("queue_full", "event"): index}))
        outbox.head()
    assert outbox.size == 100
    assert outbox.head() == (
        1,
        Sealed(lost={("outbox_full", "event"): 1}, drops={("queue_full", "event"): 0}),
    )
    outbox.acknowledge(1)
    assert outbox.head() == (
        2,
        Sealed(lost={("outbox_full", "event"): 2}, drops={("queue_full", "event"): 3}),
    )
    outbox.acknowledge(2)
    assert len(outbox) == 2


def test_rejected_batch_keeps_number_and_account() -> None:
    """What the agent will never take is given up; its drops and guard errors are still reported."""
    outbox = Outbox()
    outbox.reject()
    accounts = {"drops": {("queue_full", "event"): 2}, "guard_errors": {("hook", "ValueError"): 1}}
    outbox.append(Sealed(b"x", {"event": 3}, **accounts))
    outbox.reject()
    assert outbox.head() == (1, Sealed(b"x", {"event": 3}, **accounts))
    outbox.reject()
    assert outbox.head() == (1, Sealed(lost={("rejected", "event"): 3}, **accounts))


def test_tombstones_stay_small() -> None:
    """However many kinds are lost, a tombstone holds a bounded number of counts and loses none."""
    outbox = Outbox(1)
    for index in range(KEYS_MAX * 2):
        outbox.append(batch(1, f"kind-{index}"))
    outbox.append(batch(1))
    _, tombstone = outbox.head()
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

    @rule(size=st.integers(1, LIMIT), entries=st.integers(1, 5), dropped=st.integers(0, 3))
    def seal(self, size: int, entries: int, dropped: int) -> None:
        """Seal a batch with its accounts."""
        kind = f"kind-{next(self.serial) % 3}"
        drops = {("queue_full", kind): dropped} if dropped else {}
        self.outbox.append(Sealed(b"x" * size, {kind: entries}, drops=drops))
        self.produced[kind] += entries + dropped

    @rule()
    def send(self) -> None:
        """Send the head if nothing is in flight."""
        if self.in_flight is None:
            self.in_flight = self.outbox.head()

    @precondition(lambda self: self.in_flight)
    @rule(acknowledged=st.booleans())
    def commit(self, acknowledged: bool) -> None:
        """Commit what is in flight; its acknowledgement arrives, or the stream breaks before it does."""
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
        seq, content = self.in_flight
        if seq == len(self.log) + 1 and content.content:
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
        held = [entry.batch for entry in self.outbox._entries]
        # In flight and committed, but not acknowledged: the outbox holds it still.
        delivered = self.log[: self.outbox.acknowledged]
        total: Counter[str] = Counter()
        for sealed in (*self.archived, *delivered, *held):
            total.update(sealed.held if sealed.content else {})
            for counts in (sealed.lost, sealed.drops):
                for (_, kind), number in counts.items():
                    total[kind] += number
        assert total == self.produced

    @invariant()
    def bounded(self) -> None:
        """Hold no more than the bound, number nothing but the head."""
        assert self.outbox.size == sum(len(entry.batch.content) for entry in self.outbox._entries)
        assert self.outbox.size <= LIMIT
        assert all(entry.seq == 0 for entry in list(self.outbox._entries)[1:])
        tombstones = [entry for entry in self.outbox._entries if not entry.batch.content]
        assert len(tombstones) <= 2


AgentAndOutbox.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAgentAndOutbox = AgentAndOutbox.TestCase
