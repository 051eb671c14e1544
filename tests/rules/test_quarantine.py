"""All peers' circuits, and the share of them that may be cut off."""

from __future__ import annotations

from dataclasses import replace

import pytest
from penstock.rules.circuit_breaker import Admit, BreakerState
from penstock.rules.quarantine import QuarantineOrder, Status

from tests.support.manual_clock import SECOND
from tests.support.policy.quarantine_bench import EVERYONE, IDLE, INCOMPATIBLE, REFUSED, REMOTE, RULES, Bench


def test_life_of_a_quarantine():
    """Failures open it, the duration half-opens it, the probe closes it; each change is reported once."""
    bench = Bench()
    bench.break_peer("a")
    assert bench.admit("a") == Admit(remote=False, reason="failures")
    assert bench.admit("b") == REMOTE
    assert bench.quarantine.listing() == [
        Status("a", "e1", BreakerState.OPEN, "failures", 60 * SECOND, rehearsal=False)
    ]
    assert [bench.quarantine.wait_ns(peer, 20 * SECOND) for peer in "ab"] == [40 * SECOND, 0]
    assert bench.quarantine.wait_ns("a", 90 * SECOND) == 0
    bench.advance(60)
    probe = bench.admit("a")
    assert probe.probe
    assert [status.state for status in bench.quarantine.listing()] == [BreakerState.HALF_OPEN]
    assert bench.admit("a") == Admit(remote=False, reason="probing")
    bench.report("a", probe=probe.probe)
    assert bench.admit("a") == REMOTE
    assert bench.quarantine.listing() == []
    assert bench.story() == [
        ("a", BreakerState.CLOSED, BreakerState.OPEN, "failures"),
        ("a", BreakerState.OPEN, BreakerState.HALF_OPEN, "expired"),
        ("a", BreakerState.HALF_OPEN, BreakerState.CLOSED, "probe_ok"),
    ]


def test_without_rules_nothing_happens():
    """Without a policy no failure is counted, not even later, and no peer is cut off."""
    bench = Bench(rules=None)
    bench.break_peer("a", INCOMPATIBLE)
    assert bench.admit("a") == REMOTE
    bench.rules(RULES)
    assert bench.admit("a") == REMOTE
    assert bench.story() == []


@pytest.mark.parametrize("peer", ["", "unknown"])
def test_an_empty_name_is_not_a_peer(peer):
    """Failures without a known peer cut no peer off and do not add to the known peers."""
    bench = Bench(rules=EVERYONE, peers=())
    bench.break_peer(peer, INCOMPATIBLE)
    assert bench.admit(peer) == REMOTE
    assert bench.quarantine.known_peers == 0


@pytest.mark.parametrize(
    ("known", "percent", "cut_off"),
    [
        (1, 50, 0),
        (1, 99, 0),
        (1, 100, 1),
        (2, 49, 0),
        (2, 50, 1),
        (2, 100, 2),
        (3, 33, 0),
        (3, 34, 1),
        (3, 67, 2),
        (5, 50, 2),
        (10, 0, 0),
        (10, 10, 1),
    ],
)
def test_share_of_the_peers(known, percent, cut_off):
    """Whole peers up to the percentage: one of two at 50 %, an engine's only one at 100 % alone."""
    peers = [f"p{number}" for number in range(known)]
    bench = Bench(rules=replace(RULES, max_peers_percent=percent), peers=peers)
    for peer in peers:
        bench.break_peer(peer)
    assert len(bench.cut_off()) == cut_off


def test_what_the_share_held_back_comes_when_there_is_room():
    """A sick peer that could not be cut off is with its next failure, once more peers are known."""
    bench = Bench(peers=["a"])
    bench.break_peer("a")
    assert bench.cut_off() == set()
    bench.admit("b")
    bench.report("a", REFUSED)
    assert bench.cut_off() == {"a"}


def test_a_lower_share_releases_the_longest_open():
    """A live change of the percentage lets peers go until it holds, incompatible ones last."""
    bench = Bench(rules=EVERYONE, peers=["a", "b", "c"])
    bench.break_peer("c", INCOMPATIBLE)
    for peer in ("a", "b"):
        bench.advance(1)
        bench.break_peer(peer)
    bench.story()
    bench.rules(replace(RULES, max_peers_percent=67))
    assert bench.cut_off() == {"b", "c"}
    bench.rules(replace(RULES, max_peers_percent=34))
    assert bench.cut_off() == {"c"}
    assert bench.quarantine.wait_ns("c", 0) is None
    assert bench.story() == [
        ("a", BreakerState.OPEN, BreakerState.CLOSED, "max_peers_percent"),
        ("b", BreakerState.OPEN, BreakerState.CLOSED, "max_peers_percent"),
    ]


def test_new_duration_holds_for_open_circuits():
    """A live change of the duration moves the end, in the listing too."""
    bench = Bench()
    bench.break_peer("a")
    bench.advance(5)
    bench.rules(replace(RULES, duration_ns=10 * SECOND))
    assert [status.until_ns for status in bench.quarantine.listing()] == [10 * SECOND]
    bench.advance(5)
    assert bench.admit("a").probe


def test_policy_removed_lifts_all_automatic_ones():
    """Without the policy every automatic quarantine ends at once, remembered ones too; orders stay."""
    bench = Bench(rules=EVERYONE, peers=["a", "b", "c"])
    bench.break_peer("c", INCOMPATIBLE)
    bench.advance(900)
    bench.break_peer("a")
    bench.order(QuarantineOrder("1", "b", quarantined=True))
    assert bench.cut_off() == {"a", "b", "c"}
    bench.story()
    bench.rules(None)
    assert bench.cut_off() == {"b"}
    assert sorted(bench.story()) == [
        ("a", BreakerState.OPEN, BreakerState.CLOSED, "policy"),
        ("c", BreakerState.OPEN, BreakerState.CLOSED, "policy"),
    ]
    bench.rules(EVERYONE)
    assert bench.admit("c") == REMOTE


def test_idle_peers_are_forgotten():
    """An idle peer leaves the known peers; if it was cut off, that ends."""
    bench = Bench(rules=EVERYONE)
    bench.break_peer("a")
    bench.story()
    bench.advance(900)
    bench.admit("c")
    assert bench.quarantine.known_peers == 1
    assert bench.story() == [("a", BreakerState.OPEN, BreakerState.CLOSED, "expired")]


def test_idle_peers_shrink_the_share():
    """When healthy peers fall silent the automatic ones are let go, so that the share still holds."""
    bench = Bench(peers=["a", "b", "c", "d"])
    bench.advance(899)
    for peer in ("a", "b"):
        bench.break_peer(peer)
    assert bench.cut_off() == {"a", "b"}
    bench.advance(1)
    bench.quarantine.advance(bench.now)
    assert bench.quarantine.known_peers == 2
    assert len(bench.cut_off()) == 1


def test_a_long_duration_outlasts_idleness():
    """A peer stays cut off for the whole duration even without requests."""
    bench = Bench(rules=replace(EVERYONE, duration_ns=2 * IDLE))
    bench.break_peer("a")
    bench.advance(1799)
    assert not bench.admit("a").remote
    bench.advance(1)
    assert bench.admit("a").probe


def test_incompatible_outlasts_idleness():
    """An incompatible peer is remembered while idle, outside the share, and heals by its engine id alone."""
    bench = Bench(peers=["a", "b", "c", "d"])
    bench.break_peer("a", INCOMPATIBLE)
    bench.advance(10**6)
    for peer in ("b", "c"):
        bench.admit(peer)
    assert bench.quarantine.known_peers == 2
    assert bench.cut_off() == {"a"}
    bench.break_peer("b")
    assert bench.cut_off() == {"a", "b"}
    bench.admit("d")
    assert bench.admit("a") == Admit(remote=False, reason="incompatible")
    bench.advance(10**6)
    bench.story()
    assert bench.admit("a", "e2") == REMOTE
    assert bench.story()[-1] == ("a", BreakerState.OPEN, BreakerState.CLOSED, "engine_id_changed")


def test_peers_are_bounded():
    """Of more peers than are kept the one heard of longest ago goes, remembered incompatible ones too."""
    bench = Bench(rules=EVERYONE, peers=(), max_peers=3)
    for number in range(10):
        bench.report(f"p{number}", INCOMPATIBLE)
    assert bench.quarantine.known_peers == 3
    assert bench.cut_off() == {f"p{number}" for number in range(4, 10)}


def test_a_share_holds_where_peers_of_another_channel_take_the_room():
    """A peer that goes for one of another channel makes a smaller share of its own."""
    bench = Bench(rules=replace(RULES, max_peers_percent=34), peers=("a", "b", "c"), max_peers=3)
    bench.break_peer("c")
    assert bench.cut_off() == {"c"}
    bench.quarantine.admit("encoder", "", bench.now, channel=2)
    assert bench.cut_off() == set()
    assert bench.story()[-1] == ("c", BreakerState.OPEN, BreakerState.CLOSED, "max_peers_percent")


def test_rehearsal_is_reported():
    """A quarantine that a drill caused says so until it is over."""
    bench = Bench()
    bench.break_peer("a", replace(REFUSED, rehearsal=True))
    bench.advance(60)
    bench.report("a", probe=bench.admit("a").probe)
    assert [change.status.rehearsal for change in bench.changes] == [True, True, True]


def test_an_idle_check_does_nothing():
    """Between due times nothing is looked at; the due time itself is not missed."""
    bench = Bench()
    bench.order(QuarantineOrder("1", "a", quarantined=True, ttl_ns=10 * SECOND))
    bench.advance(9)
    bench.quarantine.advance(bench.now)
    assert bench.cut_off() == {"a"}
    bench.advance(1)
    bench.quarantine.advance(bench.now)
    assert bench.cut_off() == set()
