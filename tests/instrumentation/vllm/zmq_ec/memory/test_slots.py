"""Who has which part of the shared region."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from penstock.instrumentation.vllm.zmq_ec.memory.slots import ALIGNMENT, HEADER, Slot, Slots

from tests.support.examples import examples

PAGE = ALIGNMENT - HEADER


def sealed(slots: Slots, item: str, pages: int = 1, fresh_until: float = 0.0) -> Slot:
    """Return a slot that is whole."""
    slot, _ = slots.allocate(item, pages * ALIGNMENT - HEADER, 0.0)
    assert slot is not None
    slots.seal(slot, fresh_until)
    return slot


def test_the_least_recently_used_goes_first() -> None:
    """No more items are evicted than needed."""
    slots = Slots(0, 3 * ALIGNMENT)
    first, second, third = (sealed(slots, name) for name in "abc")
    slots.touch(first)
    found, evicted = slots.allocate("d", PAGE, 0.0)
    assert found is not None
    assert evicted == [second]
    assert slots.get(third.generation) is third


def test_neighbours_go_until_there_is_room_in_one_piece() -> None:
    """A slot is contiguous."""
    slots = Slots(0, 4 * ALIGNMENT)
    kept, *others = (sealed(slots, name) for name in "abcd")
    slots.retain(kept)
    found, evicted = slots.allocate("e", 3 * ALIGNMENT - HEADER, 0.0)
    assert found is not None
    assert evicted == others


def test_nothing_is_evicted_in_vain() -> None:
    """If all that may go does not make room, all stays."""
    slots = Slots(0, 3 * ALIGNMENT)
    _, middle, _ = (sealed(slots, name) for name in "abc")
    slots.pin(middle, 1, until=10.0)
    assert slots.allocate("d", 2 * ALIGNMENT, 0.0) == (None, [])
    assert len(slots) == 3


def test_slots_in_use_stay() -> None:
    """Filling, held, pinned and fresh ones are not evicted; each may be when that is over."""
    slots = Slots(0, 4 * ALIGNMENT)
    filling, _ = slots.allocate("filling", PAGE, 0.0)
    held, pinned = sealed(slots, "held"), sealed(slots, "pinned")
    fresh = sealed(slots, "fresh", fresh_until=5.0)
    slots.retain(held)
    slots.pin(pinned, 2, until=10.0)
    assert slots.allocate("x", PAGE, 4.9) == (None, [])
    assert slots.allocate("x", PAGE, 5.0)[1] == [fresh]
    slots.end_step(6.0)
    assert slots.allocate("y", PAGE, 6.0)[1] == [held]
    slots.on_report(pinned.generation)
    assert slots.allocate("z", PAGE, 6.0) == (None, [])
    slots.on_report(pinned.generation)
    assert slots.allocate("z", PAGE, 6.0)[1] == [pinned]
    assert filling is not None
    assert slots.get(filling.generation) is filling


def test_a_pin_ends_without_a_report_when_a_later_one_has_come() -> None:
    """A step whose output is lost must not keep a slot for ever; one that is only slow still reads it."""
    slots = Slots(0, 2 * ALIGNMENT)
    lost, later = sealed(slots, "a"), sealed(slots, "b")
    slots.pin(lost, 1, until=10.0)
    slots.end_step(1000.0)
    slots.pin(later, 2, until=1010.0)
    slots.end_step(1000.0)
    assert slots.allocate("c", PAGE, 1000.0) == (None, [])
    slots.on_report(later.generation)
    slots.end_step(1000.0)
    assert slots.allocate("c", PAGE, 1000.0)[1] == [lost]
    slots.on_report(lost.generation)  # late, and for another generation by now
    assert len(slots) == 2


def test_a_doomed_slot_goes_with_its_last_report() -> None:
    """What a step is loading stays as it is until then."""
    slots = Slots(0, ALIGNMENT)
    slot = sealed(slots, "a")
    slots.pin(slot, 1, until=10.0)
    slots.doom(slot)
    assert len(slots) == 1
    slots.on_report(slot.generation)
    assert len(slots) == 0
    assert slots.allocate("b", PAGE, 0.0)[0] is not None


def test_an_item_that_never_fits() -> None:
    """It is distinguished from an item that does not fit now."""
    slots = Slots(100, 3 * ALIGNMENT)
    assert slots.fits(2 * ALIGNMENT - HEADER)
    assert not slots.fits(2 * ALIGNMENT)


class Use(RuleBasedStateMachine):
    """Any use of a small region."""

    made = Bundle("made")

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(0, 16 * ALIGNMENT)
        self.live: set[Slot] = set()
        self.now = 0.0

    @rule(target=made, nbytes=st.integers(1, 8 * ALIGNMENT))
    def allocate(self, nbytes: int) -> Slot | None:
        """Ask for room."""
        slot, evicted = self.slots.allocate("x", nbytes, self.now)
        assert all(
            each in self.live and each.sealed and not each.reports_due and not each.retained
            for each in evicted
        )
        self.live.difference_update(evicted)
        if slot is not None:
            assert slot.content % HEADER == 0
            assert slot.content + nbytes <= slot.start + slot.size
            self.live.add(slot)
        return slot

    @rule(slot=made, wait=st.floats(0, 3))
    def seal(self, slot: Slot | None, wait: float) -> None:
        """Fill it."""
        if slot in self.live and slot is not None and not slot.sealed:
            self.slots.seal(slot, self.now + wait)

    @rule(slot=made, ranks=st.integers(1, 3))
    def load(self, slot: Slot | None, ranks: int) -> None:
        """Promise and pin it."""
        if slot in self.live and slot is not None and slot.sealed:
            if not slot.retained:
                self.slots.retain(slot)
            self.slots.pin(slot, ranks, self.now + 5)

    @rule(slot=made)
    def report(self, slot: Slot | None) -> None:
        """One rank is done."""
        if slot is not None:
            self.slots.on_report(slot.generation)
            self._forget_gone()

    @rule(passed=st.floats(0, 3))
    def end_step(self, passed: float) -> None:
        """Time goes on."""
        self.now += passed
        self.slots.end_step(self.now)
        self._forget_gone()

    @rule(slot=consumes(made))
    def drop(self, slot: Slot | None) -> None:
        """Say that it is bad."""
        if slot in self.live and slot is not None:
            self.slots.doom(slot)
            self._forget_gone()

    def _forget_gone(self) -> None:
        self.live = {each for each in self.live if self.slots.get(each.generation) is each}

    @invariant()
    def nobody_shares_memory(self) -> None:
        """Live slots and free extents cover the region once."""
        extents = sorted([(each.start, each.size) for each in self.live] + self.slots._free)
        assert sum(size for _, size in extents) == 16 * ALIGNMENT
        reach = 0
        for start, size in extents:
            assert start == reach
            reach += size


Use.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestUse = Use.TestCase
