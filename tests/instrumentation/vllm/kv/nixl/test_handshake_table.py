"""Waits for handshakes: delays, and the attribution of a cancelled load to the peer that blocked it."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.kv.nixl.failure_attribution import (
    HandshakeTurn,
    attribute_wait,
    blocking_peers,
)
from penstock.instrumentation.vllm.kv.nixl.handshake_table import (
    ENGINES_MAX,
    MIN_DELAY_NS,
    WAITERS_MAX,
    HandshakeRun,
    HandshakeTable,
)
from penstock.instrumentation.vllm.messages.worker_report import Culprit
from penstock.instrumentation.vllm.naming.peers import Peer

SECOND = 1_000_000_000


def test_handshakes_are_bounded() -> None:
    """The last engines are kept; the first waiters are named and all are counted."""
    handshakes = HandshakeTable()
    for index in range(ENGINES_MAX + 10):
        handshakes.join(Peer(engine_id=str(index)), "r", Future(), 1)
    assert len(handshakes.recent(ENGINES_MAX + 10)) == ENGINES_MAX
    assert handshakes.last("0") is None
    future: Future[None] = Future()
    shared = handshakes.join(Peer("p:1", "shared"), "first", future, 1)
    assert shared is not None
    for index in range(WAITERS_MAX + 5):
        assert handshakes.join(Peer("p:1", "shared"), str(index), future, 2) is None
    assert (len(shared.waiters), shared.waiters_total) == (WAITERS_MAX, WAITERS_MAX + 6)


def ran(
    handshakes: HandshakeTable,
    name: str,
    start_ns: int,
    end_ns: int,
    waiter: str = "",
    queued_ns: int = 0,
    *,
    failed: bool = False,
    rehearsal: bool = False,
) -> Any:
    """Run a handshake with the peer of that name."""
    made = handshakes.join(Peer(f"{name}:1", name), waiter, Future(), queued_ns)
    handshakes.on_started(name, start_ns)
    handshakes.on_finished(name, HandshakeRun(start_ns, end_ns, rehearsal=rehearsal, failed=failed))
    assert made is not None
    made.future = None
    return made


def queued(handshakes: HandshakeTable, name: str, waiter: str, since_ns: int) -> Any:
    """Queue a handshake with the peer of that name."""
    return handshakes.join(Peer(f"{name}:1", name), waiter, Future(), since_ns)


def given_up(handshakes: HandshakeTable, name: str, waiter: str, now_ns: int) -> Any:
    """Cancel the load of a request for the peer of that name."""
    waited = handshakes.abandon(waiter, f"{name}:1", now_ns)
    assert waited is not None
    return waited


def test_delay_by_other_peers() -> None:
    """A wait is attributed to other peers for the time of their handshakes; the longest is the cause."""
    handshakes, unit = HandshakeTable(), MIN_DELAY_NS
    short = ran(handshakes, "short", 0, unit)
    long = ran(handshakes, "long", unit, 10 * unit)
    mine = ran(handshakes, "mine", 11 * unit, 12 * unit, "early", 0)
    handshakes.join(mine.peer, "late", mine.future, 11 * unit - unit // 2)
    (delay,) = handshakes.delays(mine, HandshakeRun(11 * unit, 12 * unit))
    assert (delay.request_id, delay.delay_ns) == ("early", 10 * unit)
    assert (delay.caused_by.peer, delay.caused_by.handshake_id) == (long.peer, long.id)
    assert delay.caused_by.handshake_id != short.id


def test_no_delay() -> None:
    """An idle thread, and an earlier handshake with the same peer, cause no delay."""
    handshakes, unit = HandshakeTable(), MIN_DELAY_NS
    ran(handshakes, "mine", 0, 10 * unit)
    mine = ran(handshakes, "mine", 10 * unit, 11 * unit, "r1", 0)
    assert handshakes.delays(mine, HandshakeRun(10 * unit, 11 * unit)) == []


def test_attribution_to_the_longest_blocker() -> None:
    """A load blocked by two dead peers is attributed to the longer one; its text names both with their times."""
    handshakes = HandshakeTable()
    ran(handshakes, "dead", 0, 5 * SECOND, "first", failed=True)
    second = queued(handshakes, "late", "second", 0)
    handshakes.on_started("late", 5 * SECOND)
    good = queued(handshakes, "good", "mine", SECOND // 2)
    waited = given_up(handshakes, "good", "mine", 13 * SECOND // 2)
    assert waited.is_collateral
    assert [(blocker.longest.peer.address, blocker.blocked_ns) for blocker in waited.blockers] == [
        ("dead:1", 9 * SECOND // 2),
        ("late:1", 3 * SECOND // 2),
    ]
    blame = attribute_wait(waited)
    assert (blame.request_id, blame.rehearsal) == ("first", False)
    assert blame.culprit == Culprit(Peer("dead:1", "dead"), c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
    assert waited.text == (
        "the load waited 6.0 s to start, while vLLM, which does one handshake at a time, was busy with "
        "dead:1 (4.5 s), late:1 (1.5 s); its own handshake never began"
    )
    assert (good.waiters, good.waiters_total, second.waiters_total) == ({}, 0, 1)
    assert handshakes.abandon("mine", "good:1", 7 * SECOND) is None


@pytest.mark.parametrize(
    ("begins", "now", "others"),
    [(None, 6, True), (5, 6, True), (3, 7, False), (1, 6, False)],
    ids=["never", "just", "longer", "at once"],
)
def test_a_peer_that_had_its_time(begins: int | None, now: int, others: bool) -> None:
    """A peer is at fault if its handshake ran longer than others blocked it; not if it just started."""
    handshakes = HandshakeTable()
    future: Future[Any] = Future()
    ran(handshakes, "dead", 0, (begins or now) * SECOND, failed=True)
    handshakes.join(Peer("mine:1", "mine"), "r", future, 0)
    if begins is not None:
        future.set_running_or_notify_cancel()
        handshakes.on_started("mine", begins * SECOND)
    waited = given_up(handshakes, "mine", "r", now * SECOND)
    assert (waited.is_collateral, waited.started) == (others, begins is not None)


def test_slow_but_well() -> None:
    """A slow peer whose handshake succeeded is named, without a failure counted against it."""
    handshakes = HandshakeTable()
    ran(handshakes, "slow", 0, 5 * SECOND)
    queued(handshakes, "mine", "r", 0)
    blame = attribute_wait(given_up(handshakes, "mine", "r", 6 * SECOND))
    assert blame.culprit == Culprit(Peer("slow:1", "slow"))


def test_a_rehearsed_failure_in_front() -> None:
    """A wait caused by a drill is a rehearsal, also while the drill's handshake runs."""
    for ended in (True, False):
        handshakes = HandshakeTable()
        if ended:
            ran(handshakes, "sick", 0, 5 * SECOND, failed=True, rehearsal=True)
        else:
            queued(handshakes, "sick", "", 0)
            handshakes.on_started("sick", 0, rehearsal=True)
        queued(handshakes, "mine", "r", 0)
        assert attribute_wait(given_up(handshakes, "mine", "r", 6 * SECOND)).rehearsal


def test_a_wrong_address_is_asked() -> None:
    """A shared handshake with another address says nothing about the request's own peer."""
    handshakes = HandshakeTable()
    future: Future[Any] = Future()
    handshakes.join(Peer("wrong:1", "engine"), "misled", future, 0)
    future.set_running_or_notify_cancel()
    handshakes.on_started("engine", 0)
    handshakes.join(Peer("right:1", "engine"), "r", future, SECOND)
    waited = given_up(handshakes, "right", "r", 3 * SECOND)
    assert waited.is_collateral
    assert attribute_wait(waited).culprit == Culprit(
        Peer("wrong:1", "engine"), c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT
    )


def test_no_known_blocker() -> None:
    """A handshake that never started says nothing about its peer, also without known blockers."""
    handshakes = HandshakeTable()
    queued(handshakes, "mine", "r", 0)
    waited = given_up(handshakes, "mine", "r", SECOND)
    assert waited.is_collateral
    assert attribute_wait(waited).culprit is None
    assert waited.text == "the load waited 1.0 s to start; its own handshake never began"


def test_finished_loads_have_no_wait() -> None:
    """Finished loads and loads without a handshake have no wait; a paused run is not recorded."""
    handshakes = HandshakeTable()
    queued(handshakes, "mine", "r", 0)
    handshakes.forget("r")
    assert handshakes.abandon("r", "mine:1", SECOND) is None
    assert handshakes.abandon("stranger", "mine:1", SECOND) is None
    handshakes.on_started("mine", 0)
    handshakes.on_finished("mine", None)
    queued(handshakes, "other", "s", 0)
    assert given_up(handshakes, "other", "s", SECOND).blockers == ()


@given(
    turns=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans()), max_size=12),
    since=st.integers(0, 60),
    wait=st.integers(0, 60),
)
def test_blocked_time_is_at_most_the_wait(turns: list[tuple[str, int, bool]], since: int, wait: int) -> None:
    """Turns do not overlap: blocked time is at most the wait; each other peer is listed once, the longest first."""
    ends = list(itertools.accumulate((length for _, length, _ in turns), initial=0))
    made = [
        HandshakeTurn(Peer(name), 1, "", start, end, bad)
        for (name, _, bad), (start, end) in zip(turns, itertools.pairwise(ends), strict=True)
    ]
    blockers = blocking_peers(made, "a", since, since + wait)
    assert sum(blocker.blocked_ns for blocker in blockers) <= wait
    names = [blocker.longest.peer.address for blocker in blockers]
    assert len(set(names)) == len(names)
    assert "a" not in names
    assert sorted((blocker.blocked_ns for blocker in blockers), reverse=True) == [
        blocker.blocked_ns for blocker in blockers
    ]
    assert all(blocker.blocked_ns > 0 for blocker in blockers)


def edges(handshakes: HandshakeTable) -> list[tuple[str, int, bool]]:
    """Return what the scheduler hears of waiting requests, once."""
    found = list(handshakes.edges)
    handshakes.edges.clear()
    return found


def test_a_handshake_on_a_free_thread_waits_behind_none() -> None:
    """Its requests are at their peer from the first, also those that join it while it runs or waits for the thread."""
    handshakes = HandshakeTable()
    mine = queued(handshakes, "mine", "first", 10)
    handshakes.join(mine.peer, "second", mine.future, 20)
    mine.future.set_running_or_notify_cancel()
    handshakes.on_started("mine", 30)
    handshakes.join(mine.peer, "third", mine.future, 40)
    assert edges(handshakes) == []


def test_a_handshake_behind_others() -> None:
    """Its requests are in the queue from when they ask until it starts; a heartbeat is no request."""
    handshakes = HandshakeTable()
    first = queued(handshakes, "first", "", 0)
    handshakes.on_started("first", 1)
    second, third = queued(handshakes, "second", "b", 10), queued(handshakes, "third", "c", 20)
    handshakes.join(third.peer, "d", third.future, 30)
    handshakes.join(third.peer, "d", third.future, 31)
    assert edges(handshakes) == [("b", 10, False), ("c", 20, False), ("d", 30, False)]
    handshakes.on_finished("first", HandshakeRun(1, 40))
    # Between two runs the thread is free, but the next one is behind another all the same.
    handshakes.join(third.peer, "e", third.future, 41)
    handshakes.join(second.peer, "f", second.future, 42)
    assert edges(handshakes) == [("e", 41, False)]
    handshakes.on_started("second", 50)
    assert edges(handshakes) == [("b", 50, True)]
    handshakes.on_finished("second", HandshakeRun(50, 60))
    handshakes.on_started("third", 70)
    assert edges(handshakes) == [("c", 70, True), ("d", 70, True), ("e", 70, True)]
    assert first.queued == []


def test_a_run_during_a_pause_leaves_nothing_in_the_queue() -> None:
    """Its start is not recorded, its end is."""
    handshakes = HandshakeTable()
    queued(handshakes, "unseen", "a", 0)
    handshakes.on_finished("unseen", None)
    queued(handshakes, "next", "b", 10)
    assert edges(handshakes) == []
