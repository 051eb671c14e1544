"""Which endpoints are out: tables over time, and what holds whatever is said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.ctl.routers.endpoints import EndpointState
from penstock.agent.ctl.routers.rotation import LONGEST_PAUSE, Rotation, RotationRules

A, B, C = (f"http://{name}:8000" for name in "abc")
RULES = RotationRules()
BAD = EndpointState("failing", None, "2 failures in the last minute")


def _out(rotation: Rotation, now: float, bad: str = "") -> str:
    """Return the letters of those that are out when those of *bad* are bad, and all others are ok."""
    states = {url: BAD if url[7] in bad else EndpointState("ok", None, "") for url in (A, B, C)}
    return "".join(sorted(url[7] for url in rotation.look(now, states).out))


def test_out_and_back() -> None:
    """It goes after ten seconds, is tried after thirty, and stays if nothing is wrong any more."""
    rotation = Rotation(dict.fromkeys((A, B, C), ""), RULES)
    course = [
        (0, "a", ""),
        (9, "a", ""),
        (10, "a", "a"),
        (20, "", "a"),
        (39, "", "a"),
        (40, "", ""),
        (99, "", ""),
    ]
    for now, bad, out in course:
        assert _out(rotation, now, bad) == out, now


def test_a_short_one_takes_nobody_out() -> None:
    """What is well in between begins again."""
    rotation = Rotation(dict.fromkeys((A, B, C), ""), RULES)
    for now, bad in ((0, "a"), (9, "a"), (9.5, ""), (12, "a"), (21, "a")):
        assert _out(rotation, now, bad) == "", now
    assert _out(rotation, 22, "a") == "a"


def test_pauses_double_and_begin_again() -> None:
    """One that stays bad is tried for ten seconds after 30, 60, 120 … 600 s; ten good minutes forget that."""
    rotation = Rotation(dict.fromkeys((A, B, C), ""), RULES)
    now = 0
    lengths: list[int] = []
    while len(lengths) < 8:
        begun = now
        while _out(rotation, now, "a"):
            now += 1
        if now > begun:
            lengths.append(now - begun)
        now += 1
    assert lengths == [30, 60, 120, 240, 480, 600, 600, 600]
    back = now
    while now < back + LONGEST_PAUSE + 1:
        assert _out(rotation, now) == ""
        now += 10
    assert _out(rotation, now, "a") == ""
    assert _out(rotation, now + 10, "a") == "a"
    assert _out(rotation, now + 40) == ""


def test_unknown_and_missing_take_nobody_out() -> None:
    """Nor do states that are not to be avoided."""
    rotation = Rotation({A: "", B: ""}, RULES)
    for now in range(0, 100, 5):
        assert not rotation.look(now, {A: EndpointState("unknown", None, "no read")}).out
        assert not rotation.look(
            now, {A: EndpointState("slow", None, ""), B: EndpointState("quarantined", None, "")}
        ).out


def test_enough_of_each_pool_stay() -> None:
    """When all would be out, none is, and a sentence says so once; each pool is counted for itself."""
    rotation = Rotation({A: "prefill", B: "prefill", C: "encoder"}, RULES)
    assert _out(rotation, 0, "ac") == ""
    step = rotation.look(10, dict.fromkeys((A, C), BAD))
    assert list(step.out) == [A]
    assert step.told == [
        "1 of 1 endpoint of pool encoder would be out, and at least 1 must stay (--min-ready): all are in",
        f"out: {A}: failing: 2 failures in the last minute",
    ]
    assert _out(rotation, 11, "abc") == "a"
    step = rotation.look(21, dict.fromkeys((A, B, C), BAD))
    assert step.told == [
        "2 of 2 endpoints of pool prefill would be out, and at least 1 must stay (--min-ready): all are in",
        f"in: {A}",
    ]
    # The one that is tried again is no better: the other stays in.
    assert _out(rotation, 41, "abc") == ""
    assert _out(rotation, 42, "bc") == "b"


def test_the_feed_is_lost() -> None:
    """For less than the bound nothing changes but pauses that end; then all are in, and afterwards it begins anew."""
    rotation = Rotation(dict.fromkeys((A, B, C), ""), RULES)
    _out(rotation, 0, "a")
    assert _out(rotation, 10, "a") == "a"
    assert list(rotation.look(30, None).out) == [A]
    assert not rotation.look(40, None).out
    _out(rotation, 41, "b")
    assert _out(rotation, 51, "b") == "b"
    assert rotation.look(80, None).told == []
    step = rotation.look(81, None)
    assert (step.out, step.told) == (
        {},
        ["the state of endpoints is not known any more: all are in", f"in: {B}"],
    )
    assert rotation.look(90, None).told == []
    step = rotation.look(91, {B: BAD})
    assert (step.out, step.told) == ({}, ["the state of endpoints is known again"])
    assert _out(rotation, 101, "b") == "b"


STATES = st.sampled_from(["ok", "unknown", "slow", "failing", "unreachable", None])
LOOKS = st.lists(
    st.tuples(st.floats(0.1, 40), st.one_of(st.none(), st.lists(STATES, min_size=5, max_size=5))), max_size=60
)


@given(looks=LOOKS, least=st.integers(1, 3), pools=st.lists(st.sampled_from("pq"), min_size=5, max_size=5))
def test_what_always_holds(looks: list, least: int, pools: list[str]) -> None:
    """Enough stay, only what was bad goes, nobody is out for longer than the longest pause, and losing the feed frees all."""
    rules = RotationRules(least=least)
    urls = [f"http://{number}:1" for number in range(5)]
    rotation = Rotation(dict(zip(urls, pools, strict=True)), rules)
    now = silent = 0.0
    out_since: dict[str, float] = {}
    ever_bad: set[str] = set()
    for seconds, said in looks:
        now += seconds
        silent = 0.0 if said is not None else silent + seconds
        known = dict(zip(urls, said or [], strict=False))
        states = {url: EndpointState(state, None, "") for url, state in known.items() if state}
        ever_bad |= {url for url, each in states.items() if each.state in rules.avoid}
        before = set(out_since)
        step = rotation.look(now, None if said is None else states)
        assert step.out.keys() <= ever_bad
        for pool in set(pools):
            members = [url for url, each in zip(urls, pools, strict=True) if each == pool]
            gone = [url for url in members if url in step.out]
            assert not gone or len(members) - len(gone) >= least
        out_since = {url: out_since.get(url, now) for url in step.out}
        for url in before & step.out.keys():
            # It may be seen late that a pause is over, and then it is in.
            assert now - out_since[url] < LONGEST_PAUSE + 40
        if silent >= rules.lost + 40:
            assert not step.out
