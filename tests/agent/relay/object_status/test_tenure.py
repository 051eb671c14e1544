"""Who may take a lease: at no time do two relays believe that they hold it."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st
from penstock.agent.relay.object_status.lease import LeaseWord, Tenure

DURATION = 15.0
NOBODY = LeaseWord("", 0.0, "")


def test_an_absent_lease_is_waited_for() -> None:
    """It may have been deleted under its holder."""
    tenure = Tenure("a", DURATION)
    assert not tenure.may_take(0.0)
    tenure.see(NOBODY, 0.0)
    assert [tenure.may_take(now) for now in (0.0, 14.9, 15.0)] == [False, False, True]


def test_a_lease_that_was_given_back_is_free() -> None:
    """Its holder said so itself; a word without a holder that nobody gives back is waited for."""
    tenure = Tenure("a", DURATION)
    tenure.see(LeaseWord("b", DURATION, "1"), 0.0)
    tenure.see(LeaseWord("", 0.0, "2"), 1.0)
    assert tenure.may_take(1.0)
    tenure.see(LeaseWord("", DURATION, "3"), 2.0)
    assert [tenure.may_take(now) for now in (2.0, 16.9, 17.0)] == [False, False, True]


def test_a_renewed_lease_is_anothers() -> None:
    """The wait begins anew with each renewal, and lasts as long as the longer of both durations."""
    tenure = Tenure("a", DURATION)
    tenure.see(LeaseWord("b", 30.0, "1"), 0.0)
    tenure.see(LeaseWord("b", 30.0, "1"), 20.0)
    assert not tenure.may_take(29.9)
    assert tenure.may_take(30.0)
    tenure.see(LeaseWord("b", 30.0, "2"), 30.0)
    assert not tenure.may_take(59.9)
    tenure.see(LeaseWord("b", 1.0, "3"), 60.0)
    assert [tenure.may_take(now) for now in (74.9, 75.0)] == [False, True]


def test_a_holder_is_sure_for_two_thirds_from_the_time_it_asked() -> None:
    """It ends by itself, or as soon as it sees another holder."""
    tenure = Tenure("a", DURATION)
    tenure.renewed("1", asked=100.0)
    assert [tenure.held(now) for now in (100.0, 109.9, 110.0)] == [True, True, False]
    tenure.renewed("2", asked=110.0)
    tenure.see(LeaseWord("a", DURATION, "2"), 111.0)
    assert tenure.held(111.0)
    tenure.see(LeaseWord("b", DURATION, "3"), 112.0)
    assert not tenure.held(112.0)


@dataclass
class _Relay:
    """A relay whose clock began at another time than those of the others, and its request under way."""

    tenure: Tenure
    name: str
    offset: float
    asked: float = 0.0
    version: str | None = None
    written: str | None = None


PARTS = ("read", "send", "arrive", "hear")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(PARTS), st.integers(0, 2)),
        st.tuples(st.just("exchange"), st.integers(0, 2)),
        # A lease's time is short and long beside these.
        st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 4.9, 10.0, 14.9, DURATION])),
        st.tuples(st.just("delete"), st.just(0)),
        st.tuples(st.just("give back"), st.integers(0, 2)),
    ),
    max_size=200,
)
# The first relay has taken the lease.
TAKEN: list[tuple[str, float]] = [("exchange", 0), ("wait", DURATION), ("exchange", 0)]


@given(STEPS, st.tuples(*[st.floats(-1e6, 1e6)] * 3))
@example([("exchange", 1), ("wait", DURATION), ("exchange", 1)], (0.0, 0.0, 0.0))
@example(
    [
        ("read", 0),
        ("send", 0),
        ("arrive", 0),
        ("exchange", 1),
        ("wait", DURATION),
        ("hear", 0),
        ("exchange", 1),
    ],
    (0.0, 0.0, 0.0),
)
def test_never_two(steps: list[tuple[str, float]], offsets: tuple[float, ...]) -> None:
    """Whatever is delayed, lost or deleted, and whatever the clocks say."""
    relays = [
        _Relay(Tenure(name, DURATION), name, offset) for name, offset in zip("abc", offsets, strict=True)
    ]
    # Between two relays' looks there may be any time; a lease that is deleted stays in its relays' memory.
    stored, count, now = NOBODY, 0, 0.0
    for step, number in (
        (each, who) for kind, who in TAKEN + steps for each in (PARTS if kind == "exchange" else (kind,))
    ):
        if step == "wait":
            now += number
        elif step == "delete":
            stored = NOBODY
        else:
            relay = relays[int(number)]
            own = now + relay.offset
            if step == "give back" and relay.tenure.held(own):
                # As a relay that ends: it stops its duties, and then writes if the lease is its own.
                relay.tenure.lose()
                relay.version = relay.written = None
                relay.asked = 0.0
                if stored.holder == relay.name:
                    count += 1
                    stored = LeaseWord("", 0.0, str(count))
            elif step == "read":
                relay.tenure.see(stored, own)
                relay.version = stored.version
            elif step == "send" and relay.version is not None and relay.tenure.may_take(own):
                relay.asked = own
            elif step == "arrive" and relay.asked and relay.version == stored.version:
                count += 1
                stored = LeaseWord(relay.name, DURATION, str(count))
                relay.version, relay.written = None, stored.version
            elif step == "hear" and relay.written is not None:
                relay.tenure.renewed(relay.written, relay.asked)
                relay.written, relay.asked = None, 0.0
        assert sum(each.tenure.held(now + each.offset) for each in relays) <= 1
