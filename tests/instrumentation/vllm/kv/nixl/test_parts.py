"""The pure parts of the NIXL hook: which factor differs, whether a port is closed, how much is affected, who was in the way."""

from __future__ import annotations

import itertools
import socket
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.kv.nixl.compatibility import differing, versions_near
from penstock.instrumentation.vllm.kv.nixl.failure_attribution import HandshakeTurn, in_the_way, of_wait
from penstock.instrumentation.vllm.kv.nixl.handshake_mixin import clock_offset_ns
from penstock.instrumentation.vllm.kv.nixl.handshake_table import DELAY_NS, HandshakeRun, HandshakeTable
from penstock.instrumentation.vllm.kv.nixl.nixl_sizes import bytes_of
from penstock.instrumentation.vllm.kv.nixl.port_probe import refuses
from penstock.instrumentation.vllm.messages.worker_report import Culprit
from penstock.instrumentation.vllm.naming.peers import Peer

from demo.common.processes import free_port
from tests.support.kv.nixl_pair import HOST

FACTORS = {
    "dtype": "float16",
    "transfer_mode": "pull",
    "vllm_version": "0.32.0",
    "nixl_connector_version": 14,
}
ALTERNATIVES: dict[str, list[Any]] = {
    "dtype": ["bfloat16", "float32"],
    "transfer_mode": ["push"],
    "vllm_version": ["0.33.0"],
    "nixl_connector_version": [15],
}


def hash_of(factors: dict[str, Any]) -> str:
    """Return a readable stand-in of vLLM's hash."""
    return repr(sorted(factors.items()))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"dtype": "float32"}, ("dtype",)),
        ({"transfer_mode": "push"}, ("transfer_mode",)),
        ({"dtype": "bfloat16", "transfer_mode": "push"}, ("dtype", "transfer_mode")),
        (
            {"vllm_version": "0.33.0", "nixl_connector_version": 15},
            ("vllm_version", "nixl_connector_version"),
        ),
        ({"dtype": "int4"}, ()),
        ({"model": "another"}, ()),
    ],
    ids=str,
)
def test_differing_factors(changes: dict[str, Any], names: tuple[str, ...]) -> None:
    """What differs is found where its values are known, and not guessed where they are not."""
    assert differing(FACTORS, ALTERNATIVES, hash_of({**FACTORS, **changes}), hash_of) == names


@pytest.mark.parametrize(
    ("result", "took_ms", "offset_ms"),
    [
        (({}, 0.69), 1_400, 0),
        (({}, -0.69), 1_400, 0),
        (({}, 0.69), 1_300, 690),
        (({}, -86_400.0), 1_300, -86_400_000),
        (({}, 0.0), 0, 0),
        (({},), 0, None),
        (None, 0, None),
    ],
    ids=str,
)
def test_a_slow_handshake_tells_no_clock_offset(result: object, took_ms: int, offset_ms: int | None) -> None:
    """VLLM's estimate is wrong by half of the round trip at most; on one machine there is no offset."""
    found = clock_offset_ns(result, took_ms * 1_000_000)
    assert found == (None if offset_ms is None else offset_ms * 1_000_000)


def test_versions_near() -> None:
    """The releases that a fleet in the middle of an upgrade may run are tried; a development version has none."""
    assert {"0.31.0", "0.32.1", "0.33.0"} <= set(versions_near("0.32.0"))
    assert versions_near("dev") == []


def test_reach() -> None:
    """A closed port refuses; a port that takes connections and a name that does not exist do not."""
    with socket.create_server((HOST, 0)) as listener:
        assert not refuses(HOST, listener.getsockname()[1])
    assert refuses(HOST, free_port(), deadline=5.0)
    assert not refuses("no-such-host.invalid", 80)


@pytest.mark.parametrize(
    ("lengths", "group_of", "groups", "expected"),
    [
        ([100, 100], [0, 0], [[1, 2, 3]], 600),
        ([100, 10], [0, 1], [[1, 2], [3]], 210),
        ([100, 10], [0, -1], [[1, 2], [3]], 230),
        ([100], [], [[1], [2]], 200),
        ([100, 10], [0, 2], [[1], [2]], None),
        ([], [], [[1]], None),
        ([100], [0], [], 0),
    ],
    ids=str,
)
def test_bytes_of(
    lengths: list[int], group_of: list[int], groups: list[list[int]], expected: int | None
) -> None:
    """Bytes follow from the regions of each group; what does not fit is not known."""
    worker = SimpleNamespace(block_len_per_layer=lengths, region_group_ids=group_of)
    assert bytes_of(worker, groups) == expected


def test_bytes_of_a_state_space_model() -> None:
    """Pages of different kinds have no common size."""
    worker = SimpleNamespace(block_len_per_layer=[100], region_group_ids=[0], _has_mamba=True)
    assert bytes_of(worker, [[1]]) is None


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
    """Let a handshake with the peer of that name run."""
    made = handshakes.join(Peer(f"{name}:1", name), waiter, Future(), queued_ns)
    handshakes.begins(name, start_ns)
    handshakes.ran(name, HandshakeRun(start_ns, end_ns, rehearsal=rehearsal, failed=failed))
    made.future = None
    return made


def test_who_was_in_the_way() -> None:
    """A wait is another peer's doing for as long as that peer's handshakes ran; the longest one is the cause."""
    handshakes, unit = HandshakeTable(), DELAY_NS
    short = ran(handshakes, "short", 0, unit)
    long = ran(handshakes, "long", unit, 10 * unit)
    mine = ran(handshakes, "mine", 11 * unit, 12 * unit, "early", 0)
    handshakes.join(mine.peer, "late", mine.future, 11 * unit - unit // 2)
    (delay,) = handshakes.delays(mine, HandshakeRun(11 * unit, 12 * unit))
    assert (delay.request_id, delay.delay_ns) == ("early", 10 * unit)
    assert (delay.caused_by.peer, delay.caused_by.handshake_id) == (long.peer, long.id)
    assert delay.caused_by.handshake_id != short.id


def test_nobody_was_in_the_way() -> None:
    """An idle thread, and an earlier handshake of the same peer, delay nobody."""
    handshakes, unit = HandshakeTable(), DELAY_NS
    ran(handshakes, "mine", 0, 10 * unit)
    mine = ran(handshakes, "mine", 10 * unit, 11 * unit, "r1", 0)
    assert handshakes.delays(mine, HandshakeRun(10 * unit, 11 * unit)) == []


SECOND = 1_000_000_000


def queued(handshakes: HandshakeTable, name: str, waiter: str, since_ns: int) -> Any:
    """Let a handshake with the peer of that name wait for the thread."""
    return handshakes.join(Peer(f"{name}:1", name), waiter, Future(), since_ns)


def given_up(handshakes: HandshakeTable, name: str, waiter: str, now_ns: int) -> Any:
    """Give up the load of a request that wants to reach the peer of that name."""
    waited = handshakes.give_up(waiter, f"{name}:1", now_ns)
    assert waited is not None
    return waited


def test_the_one_in_front_is_to_blame() -> None:
    """A load that waited behind two dead peers blames the one that took longer, and names both with their times."""
    handshakes = HandshakeTable()
    ran(handshakes, "dead", 0, 5 * SECOND, "first", failed=True)
    second = queued(handshakes, "late", "second", 0)
    handshakes.begins("late", 5 * SECOND)
    good = queued(handshakes, "good", "mine", SECOND // 2)
    waited = given_up(handshakes, "good", "mine", 13 * SECOND // 2)
    assert waited.blames_others
    assert [(hold.longest.peer.address, hold.held_ns) for hold in waited.holds] == [
        ("dead:1", 9 * SECOND // 2),
        ("late:1", 3 * SECOND // 2),
    ]
    blame = of_wait(waited)
    assert (blame.request_id, blame.rehearsal) == ("first", False)
    assert blame.culprit == Culprit(Peer("dead:1", "dead"), c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
    assert waited.text == (
        "the load waited 6.0 s to start, while vLLM, which does one handshake at a time, was busy with "
        "dead:1 (4.5 s), late:1 (1.5 s); its own handshake never began"
    )
    assert (good.waiters, good.waiters_total, second.waiters_total) == ({}, 0, 1)
    assert handshakes.give_up("mine", "good:1", 7 * SECOND) is None


@pytest.mark.parametrize(
    ("begins", "now", "others"),
    [(None, 6, True), (5, 6, True), (3, 7, False), (1, 6, False)],
    ids=["never", "just", "longer", "at once"],
)
def test_a_peer_that_had_its_time(begins: int | None, now: int, others: bool) -> None:
    """A peer is to blame that has not answered for longer than others were in its way; one that was just asked is not."""
    handshakes = HandshakeTable()
    future: Future[Any] = Future()
    ran(handshakes, "dead", 0, (begins or now) * SECOND, failed=True)
    handshakes.join(Peer("mine:1", "mine"), "r", future, 0)
    if begins is not None:
        future.set_running_or_notify_cancel()
        handshakes.begins("mine", begins * SECOND)
    waited = given_up(handshakes, "mine", "r", now * SECOND)
    assert (waited.blames_others, waited.asked) == (others, begins is not None)


def test_slow_but_well() -> None:
    """A peer whose handshake was slow and ended well is named, and nothing counts against it."""
    handshakes = HandshakeTable()
    ran(handshakes, "slow", 0, 5 * SECOND)
    queued(handshakes, "mine", "r", 0)
    blame = of_wait(given_up(handshakes, "mine", "r", 6 * SECOND))
    assert blame.culprit == Culprit(Peer("slow:1", "slow"))


def test_a_rehearsed_failure_in_front() -> None:
    """What a drill held up is a rehearsal, also while the drill's handshake runs."""
    for ended in (True, False):
        handshakes = HandshakeTable()
        if ended:
            ran(handshakes, "sick", 0, 5 * SECOND, failed=True, rehearsal=True)
        else:
            queued(handshakes, "sick", "", 0)
            handshakes.begins("sick", 0, rehearsal=True)
        queued(handshakes, "mine", "r", 0)
        assert of_wait(given_up(handshakes, "mine", "r", 6 * SECOND)).rehearsal


def test_a_wrong_address_is_asked() -> None:
    """Who waits for a handshake that another request has sent to another address has not been to its own peer yet."""
    handshakes = HandshakeTable()
    future: Future[Any] = Future()
    handshakes.join(Peer("wrong:1", "engine"), "misled", future, 0)
    future.set_running_or_notify_cancel()
    handshakes.begins("engine", 0)
    handshakes.join(Peer("right:1", "engine"), "r", future, SECOND)
    waited = given_up(handshakes, "right", "r", 3 * SECOND)
    assert waited.blames_others
    assert of_wait(waited).culprit == Culprit(
        Peer("wrong:1", "engine"), c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT
    )


def test_nothing_is_known_of_the_thread() -> None:
    """A handshake that never began says nothing about its peer, also where it is not known what was in the way."""
    handshakes = HandshakeTable()
    queued(handshakes, "mine", "r", 0)
    waited = given_up(handshakes, "mine", "r", SECOND)
    assert waited.blames_others
    assert of_wait(waited).culprit is None
    assert waited.text == "the load waited 1.0 s to start; its own handshake never began"


def test_who_is_done_waits_no_longer() -> None:
    """A load that has ended, and one that never waited, are not among those who wait; a paused run leaves no trace."""
    handshakes = HandshakeTable()
    queued(handshakes, "mine", "r", 0)
    handshakes.done("r")
    assert handshakes.give_up("r", "mine:1", SECOND) is None
    assert handshakes.give_up("stranger", "mine:1", SECOND) is None
    handshakes.begins("mine", 0)
    handshakes.ran("mine", None)
    queued(handshakes, "other", "s", 0)
    assert given_up(handshakes, "other", "s", SECOND).holds == ()


@given(
    turns=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans()), max_size=12),
    since=st.integers(0, 60),
    wait=st.integers(0, 60),
)
def test_nobody_holds_longer_than_the_wait(turns: list[tuple[str, int, bool]], since: int, wait: int) -> None:
    """Turns do not overlap, so what others took is at most the wait; a peer is named once and never itself, the longest first."""
    ends = list(itertools.accumulate((length for _, length, _ in turns), initial=0))
    made = [
        HandshakeTurn(Peer(name), 1, "", start, end, bad)
        for (name, _, bad), (start, end) in zip(turns, itertools.pairwise(ends), strict=True)
    ]
    holds = in_the_way(made, "a", since, since + wait)
    assert sum(hold.held_ns for hold in holds) <= wait
    names = [hold.longest.peer.address for hold in holds]
    assert len(set(names)) == len(names)
    assert "a" not in names
    assert sorted((hold.held_ns for hold in holds), reverse=True) == [hold.held_ns for hold in holds]
    assert all(hold.held_ns > 0 for hold in holds)
