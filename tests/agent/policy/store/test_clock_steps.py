"""A time of day that is set: what ends at a time lives no longer, and what comes later has its whole time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.policy.store.clock_steps import ClockSteps, PolicyEnds, boot_seconds

from tests.support.policy.policies import action, manifest

if TYPE_CHECKING:
    from penstock.agent.policy.manifest import Manifest

_START = 1_800_000_000.0


class _Clocks:
    """A time of day, and a clock that nothing sets."""

    def __init__(self) -> None:
        self.now, self.steady = _START, 7.0

    def steps(self) -> ClockSteps:
        return ClockSteps(lambda: self.now, lambda: self.steady)

    def policy(self, name: str, seconds: float) -> Manifest:
        """Return a policy that ends after *seconds* by the time of day."""
        ends = datetime.fromtimestamp(self.now + seconds, UTC).isoformat()
        return manifest(name, kvLoadFailure=action("fail"), expiresAt=ends)

    def left(self, ends: PolicyEnds, policy: Manifest) -> float:
        end = ends.end_of(policy)
        assert end is not None
        return end.timestamp() - self.now


def test_a_drift_is_no_step_until_it_adds_up() -> None:
    """Each step is told once."""
    clocks = _Clocks()
    steps = clocks.steps()
    for _ in range(4):
        clocks.now += 0.1
        assert steps.look() == 0
    clocks.now += 0.2
    assert round(steps.look(), 3) == 0.6
    clocks.now -= 3_600
    assert round(steps.look()) == -3_600
    assert steps.look() == 0


@given(st.lists(st.tuples(st.integers(0, 600), st.integers(-7_200, 7_200)), max_size=8))
def test_no_steps_make_a_time_to_live_longer(life: list[tuple[int, int]]) -> None:
    """Whatever the steps, a policy has what the steady clock leaves of its time, or less where its time has come."""
    clocks = _Clocks()
    ends, policy = PolicyEnds(clocks.steps()), clocks.policy("a", 1_800)
    ends.keep([policy])
    for seconds, step in life:
        clocks.now, clocks.steady = clocks.now + seconds + step, clocks.steady + seconds
        by_steady = 1_800 - (clocks.steady - 7.0)
        by_time = _START + 1_800 - clocks.now
        assert abs(clocks.left(ends, policy) - min(by_steady, by_time)) < 1


def test_what_comes_after_a_step_has_its_whole_time() -> None:
    """Also beside one that came before it; a policy that is gone leaves nothing."""
    clocks = _Clocks()
    ends, before = PolicyEnds(clocks.steps()), clocks.policy("a", 1_800)
    ends.keep([before])
    clocks.now -= 3_600
    after = clocks.policy("b", 600)
    ends.keep([before, after])
    assert (clocks.left(ends, before), clocks.left(ends, after)) == (1_800, 600)
    ends.keep([])
    ends.keep([before])
    assert clocks.left(ends, before) == 5_400
    assert ends.end_of(manifest(kvLoadFailure=action("fail"))) is None


def test_the_times_of_the_calendar_do_not_end_it() -> None:
    """A policy for ever, and a clock that begins in 1970."""
    clocks = _Clocks()
    last = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
    policy = manifest(kvLoadFailure=action("fail"), expiresAt=last.isoformat())
    ends = PolicyEnds(clocks.steps())
    ends.keep([policy])
    clocks.now = 0.0
    assert ends.end_of(policy) is not None
    clocks.now = 2 * _START
    assert ends.end_of(policy) == last


def test_the_steady_clock_goes_on() -> None:
    """It is never set."""
    assert boot_seconds() <= boot_seconds()
