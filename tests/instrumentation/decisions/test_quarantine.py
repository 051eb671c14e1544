"""All peers' circuits, the share that may be cut off, and orders."""

from __future__ import annotations

from dataclasses import replace

import pytest
from penstock.instrumentation import constants
from penstock.instrumentation.circuit import Admit, Failure, Rules, State
from penstock.instrumentation.quarantine import Change, Order, Quarantine, Status

from tests.support.manual_clock import SECOND

RULES = Rules(failures=2, window_ns=30 * SECOND, duration_ns=60 * SECOND, max_peers_percent=50)
EVERYONE = replace(RULES, max_peers_percent=100)
REFUSED = Failure(constants.FAILURE_MODE_HANDSHAKE, constants.ERROR_TYPE_REFUSED)
INCOMPATIBLE = Failure(constants.FAILURE_MODE_HANDSHAKE, constants.ERROR_TYPE_INCOMPATIBLE)
REMOTE = Admit(remote=True)
IDLE = 900 * SECOND


class Bench:
    """A quarantine with its clock and what it told."""

    def __init__(self, rules=RULES, peers=("a", "b"), **options):
        self.now = 0
        self.changes: list[Change] = []
        self.quarantine = Quarantine(self.changes.append, **options)
        self.quarantine.set_rules(rules, 0)
        for peer in peers:
            self.admit(peer)

    def advance(self, seconds):
        """Move the clock on."""
        self.now += seconds * SECOND

    def admit(self, peer, engine_id="e1"):
        """Ask about one request."""
        return self.quarantine.admit(peer, engine_id, self.now)

    def report(self, peer, failure=None, engine_id="e1", probe=0):
        """Report one result."""
        self.quarantine.report(peer, engine_id, failure, self.now, probe=probe)

    def break_peer(self, peer, failure=REFUSED):
        """Let a peer fail as often as it takes."""
        for _ in range(RULES.failures):
            self.report(peer, failure)

    def order(self, *orders):
        """Push orders."""
        self.quarantine.set_orders(orders, self.now)

    def rules(self, rules):
        """Change the policy."""
        self.quarantine.set_rules(rules, self.now)

    def cut_off(self):
        """Return the peers whose circuit is not closed."""
        return {status.peer for status in self.quarantine.listing()}

    def story(self):
        """Return what was told since the last call, as (peer, previous, state, reason)."""
        told = [
            (each.status.peer, each.previous, each.status.state, each.status.reason) for each in self.changes
        ]
        self.changes.clear()
        return told


def test_life_of_a_quarantine():
    """Failures open it, the duration half-opens it, the probe closes it; each change is told once."""
    bench = Bench()
    bench.break_peer("a")
    assert bench.admit("a") == Admit(remote=False, reason="failures")
    assert bench.admit("b") == REMOTE
    assert bench.quarantine.listing() == [
        Status("a", "e1", State.OPEN, "failures", 60 * SECOND, rehearsal=False)
    ]
    bench.advance(60)
    probe = bench.admit("a")
    assert probe.probe
    assert bench.admit("a") == Admit(remote=False, reason="probing")
    bench.report("a", probe=probe.probe)
    assert bench.admit("a") == REMOTE
    assert bench.quarantine.listing() == []
    assert bench.story() == [
        ("a", State.CLOSED, State.OPEN, "failures"),
        ("a", State.OPEN, State.HALF_OPEN, "expired"),
        ("a", State.HALF_OPEN, State.CLOSED, "probe_ok"),
    ]


def test_without_rules_nothing_happens():
    """With no policy nothing is counted and nobody cut off, and nothing counts later."""
    bench = Bench(rules=None)
    bench.break_peer("a", INCOMPATIBLE)
    assert bench.admit("a") == REMOTE
    bench.rules(RULES)
    assert bench.admit("a") == REMOTE
    assert bench.story() == []


@pytest.mark.parametrize("peer", ["", "unknown"])
def test_nobody_is_not_a_peer(peer):
    """Failures without a known peer cut nobody off, and nobody is not a share of the peers."""
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
    assert bench.story() == [
        ("a", State.OPEN, State.CLOSED, "max_peers_percent"),
        ("b", State.OPEN, State.CLOSED, "max_peers_percent"),
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
    bench.order(Order("1", "b", quarantined=True))
    assert bench.cut_off() == {"a", "b", "c"}
    bench.story()
    bench.rules(None)
    assert bench.cut_off() == {"b"}
    assert sorted(bench.story()) == [
        ("a", State.OPEN, State.CLOSED, "policy"),
        ("c", State.OPEN, State.CLOSED, "policy"),
    ]
    bench.rules(EVERYONE)
    assert bench.admit("c") == REMOTE


def test_order_to_quarantine_needs_no_failure_and_ends():
    """An operator's word holds without a policy, for an engine's only peer, and until its time is over."""
    bench = Bench(rules=None, peers=["a"])
    bench.order(Order("1", "a", quarantined=True, ttl_ns=10 * SECOND))
    assert bench.admit("a") == Admit(remote=False, reason="operator")
    bench.advance(10)
    assert bench.admit("a") == REMOTE
    assert bench.story() == [
        ("a", State.CLOSED, State.OPEN, "operator"),
        ("a", State.OPEN, State.CLOSED, "expired"),
    ]


def test_order_is_withdrawn():
    """An order without a time holds until a push leaves it out."""
    bench = Bench()
    bench.order(Order("1", "a", quarantined=True))
    bench.advance(10**6)
    assert not bench.admit("a").remote
    bench.order()
    assert bench.admit("a") == REMOTE
    assert bench.story()[-1] == ("a", State.OPEN, State.CLOSED, "operator")


def test_repeated_push_does_not_prolong_an_order():
    """An order keeps the end that it had when it was first pushed, and does not come back after it."""
    bench = Bench()
    order = Order("1", "a", quarantined=True, ttl_ns=10 * SECOND)
    for _ in range(3):
        bench.order(order)
        bench.advance(6)
    assert bench.admit("a") == REMOTE
    assert len(bench.story()) == 2


@pytest.mark.parametrize("failure", [REFUSED, INCOMPATIBLE])
def test_lift_closes_and_keeps_closed(failure):
    """An order that lifts closes the circuit, holds off new quarantines while it lasts, and counting starts over."""
    bench = Bench()
    bench.break_peer("a", failure)
    bench.story()
    bench.order(Order("1", "a", quarantined=False, ttl_ns=10 * SECOND))
    assert bench.story() == [("a", State.OPEN, State.CLOSED, "operator")]
    bench.break_peer("a", failure)
    assert bench.admit("a").remote
    bench.advance(10)
    assert bench.admit("a") == REMOTE
    bench.break_peer("a", failure)
    assert not bench.admit("a").remote


@pytest.mark.parametrize("how", ["lift", "policy"])
def test_counting_starts_over(how):
    """What was counted before a lift, or under a policy that went, does not count after it."""
    bench = Bench()
    bench.report("a", REFUSED)
    if how == "lift":
        bench.order(Order("1", "a", quarantined=False, ttl_ns=SECOND))
    else:
        bench.rules(None)
        bench.rules(RULES)
    bench.advance(1)
    bench.report("a", REFUSED)
    assert bench.cut_off() == set()


def test_repeated_push_of_a_lift_closes_once():
    """A lift whose time is over does not close what came after it, however often it is pushed."""
    bench = Bench()
    lift = Order("1", "a", quarantined=False, ttl_ns=SECOND)
    bench.order(lift)
    bench.advance(1)
    bench.break_peer("a")
    bench.order(lift)
    assert bench.cut_off() == {"a"}


def test_lift_forgets_an_idle_incompatible_peer():
    """A remembered incompatibility can be lifted as well."""
    bench = Bench()
    bench.break_peer("a", INCOMPATIBLE)
    bench.advance(900)
    bench.order(Order("1", "a", quarantined=False, ttl_ns=SECOND))
    bench.advance(1)
    assert bench.admit("a") == REMOTE


def test_automatic_state_returns_after_an_order():
    """An incompatible peer that an operator quarantined too stays cut off when the order ends."""
    bench = Bench()
    bench.break_peer("a", INCOMPATIBLE)
    bench.order(Order("1", "a", quarantined=True, ttl_ns=SECOND))
    bench.advance(1)
    assert bench.admit("a") == Admit(remote=False, reason="incompatible")
    assert State.CLOSED not in {state for _, _, state, _ in bench.story()}


def test_orders_count_in_the_share():
    """What an operator cut off leaves less to the automatic ones; with none left they are let go."""
    bench = Bench()
    bench.break_peer("a")
    bench.order(Order("1", "b", quarantined=True))
    assert bench.cut_off() == {"b"}
    bench.break_peer("a")
    assert bench.cut_off() == {"b"}


def test_an_order_counts_from_when_its_peer_is_known():
    """A peer that an order cut off before anyone asked for it takes its share when it turns up."""
    bench = Bench(rules=replace(RULES, max_peers_percent=34), peers=["a", "b", "c"])
    bench.order(Order("1", "z", quarantined=True))
    bench.break_peer("a")
    assert bench.cut_off() == {"a", "z"}
    bench.admit("z")
    assert bench.cut_off() == {"z"}


def test_last_order_about_a_peer_wins():
    """Of two orders about one peer the later in the push holds."""
    bench = Bench()
    bench.order(Order("1", "a", quarantined=True), Order("2", "a", quarantined=False))
    assert bench.admit("a").remote
    bench.order(Order("2", "a", quarantined=False), Order("1", "a", quarantined=True))
    assert not bench.admit("a").remote


def test_too_many_orders_are_refused():
    """The number of orders is bounded; those in force stay."""
    bench = Bench(max_peers=2)
    bench.order(Order("1", "a", quarantined=True))
    with pytest.raises(ValueError, match="3 quarantine orders at once; use at most 2"):
        bench.order(*(Order(str(number), "b", quarantined=True) for number in range(3)))
    assert bench.cut_off() == {"a"}


def test_idle_peers_are_forgotten():
    """A peer nobody asks for is no longer a share of the peers; if it was cut off, that ends."""
    bench = Bench(rules=EVERYONE)
    bench.break_peer("a")
    bench.story()
    bench.advance(900)
    bench.admit("c")
    assert bench.quarantine.known_peers == 1
    assert bench.story() == [("a", State.OPEN, State.CLOSED, "expired")]


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
    """A peer stays cut off for the whole duration even if nobody asks for it."""
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
    assert bench.story()[-1] == ("a", State.OPEN, State.CLOSED, "engine_id_changed")


def test_peers_are_bounded():
    """Of more peers than are kept the one heard of longest ago goes, remembered incompatible ones too."""
    bench = Bench(rules=EVERYONE, peers=(), max_peers=3)
    for number in range(10):
        bench.report(f"p{number}", INCOMPATIBLE)
    assert bench.quarantine.known_peers == 3
    assert bench.cut_off() == {f"p{number}" for number in range(4, 10)}


def test_rehearsal_is_told():
    """A quarantine that a drill caused says so until it is over."""
    bench = Bench()
    bench.break_peer("a", replace(REFUSED, rehearsal=True))
    bench.advance(60)
    bench.report("a", probe=bench.admit("a").probe)
    assert [change.status.rehearsal for change in bench.changes] == [True, True, True]


def test_an_idle_check_does_nothing():
    """Between due times nothing is looked at; the due time itself is not missed."""
    bench = Bench()
    bench.order(Order("1", "a", quarantined=True, ttl_ns=10 * SECOND))
    bench.advance(9)
    bench.quarantine.advance(bench.now)
    assert bench.cut_off() == {"a"}
    bench.advance(1)
    bench.quarantine.advance(bench.now)
    assert bench.cut_off() == set()
