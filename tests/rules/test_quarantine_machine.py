"""Whatever happens in whatever order, quarantine keeps its promises."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from penstock.instrumentation.core import constants
from penstock.rules.circuit_breaker import BreakerState, PeerFailure, Rules
from penstock.rules.quarantine import Quarantine, QuarantineOrder

from tests.support.examples import examples

MAX_PEERS = 5
IDLE = 200
peers = st.sampled_from(["a", "b", "c", "d", "e", "f", "g"])
engine_ids = st.sampled_from(["", "e1", "e2"])
CHANNELS = (constants.CHANNEL_KV, constants.CHANNEL_EC)
channels = st.sampled_from(CHANNELS)
modes = st.sampled_from(
    [constants.FAILURE_MODE_HANDSHAKE, constants.FAILURE_MODE_TRANSFER, constants.FAILURE_MODE_TIMEOUT]
)
error_types = st.sampled_from(
    [constants.ERROR_TYPE_REFUSED, constants.ERROR_TYPE_TIMEOUT, constants.ERROR_TYPE_INCOMPATIBLE],
)
failures = st.builds(PeerFailure, modes, error_types, st.booleans())
rules = st.builds(Rules, st.integers(1, 3), st.integers(1, 60), st.integers(1, 60), st.integers(0, 100))
orders = st.builds(
    QuarantineOrder,
    st.sampled_from(["1", "2", "3"]),
    peers,
    st.booleans(),
    st.none() | st.integers(1, 50),
)


class QuarantineMachine(RuleBasedStateMachine):
    """Requests, results, policies, orders and time in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.in_force: Rules | None = None
        self.reported: dict[str, BreakerState] = {}
        self.sick: set[str] = set()
        self.probes: list[tuple[str, int]] = []
        self.quarantine = Quarantine(self.hear, idle_ns=IDLE, max_peers=MAX_PEERS)

    def hear(self, change) -> None:
        """Fold the changes as a reader of the events would."""
        peer = change.status.peer
        assert change.previous is self.reported.get(peer, BreakerState.CLOSED)
        assert change.status.reason
        self.reported[peer] = change.status.state

    @rule(seconds=st.integers(0, 80))
    def wait(self, seconds):
        """Let time pass."""
        self.now += seconds
        self.quarantine.advance(self.now)

    @rule(peer=peers, engine_id=engine_ids, channel=channels)
    def ask(self, peer, engine_id, channel):
        """Ask about a request; a probe is let through only when a circuit's time is over."""
        before = {status.peer: status for status in self.quarantine.listing()}.get(peer)
        answer = self.quarantine.admit(peer, engine_id, self.now, channel=channel)
        if answer.probe:
            assert answer.remote
            assert before is not None
            assert before.until_ns is not None
            assert before.until_ns <= self.now
            assert answer.probe not in {number for _, number in self.probes}
            self.probes.append((peer, answer.probe))
        elif answer.remote:
            assert self.reported.get(peer, BreakerState.CLOSED) is BreakerState.CLOSED
        else:
            assert answer.reason
            assert self.reported[peer] is not BreakerState.CLOSED

    @rule(peer=peers, engine_id=engine_ids, failure=failures, channel=channels)
    def fail(self, peer, engine_id, failure, channel):
        """Report a failed load that was no probe."""
        self.sick.add(peer)
        self.quarantine.report(peer, engine_id, failure, self.now, channel=channel)

    @rule(peer=peers, engine_id=engine_ids, channel=channels)
    def succeed(self, peer, engine_id, channel):
        """Report a good load that was no probe; it opens no circuit and moves none by itself."""
        self.quarantine.advance(self.now)
        before = {status.peer: status.state for status in self.quarantine.listing()}
        self.quarantine.report(peer, engine_id, None, self.now, channel=channel)
        after = {status.peer: status.state for status in self.quarantine.listing()}
        assert after.items() <= before.items()  # fewer where a peer that came back moved the share

    @precondition(lambda self: self.probes)
    @rule(data=st.data(), failure=st.none() | failures)
    def probe_ends(self, data, failure):
        """Report the result of a probe, the current one or one that was given up."""
        peer, number = data.draw(st.sampled_from(self.probes))
        if failure is not None:
            self.sick.add(peer)
        self.quarantine.report(peer, "", failure, self.now, probe=number, channel=CHANNELS[0])

    @rule(wanted=rules)
    def policy(self, wanted):
        """Put a policy in force."""
        self.in_force = wanted
        self.quarantine.set_rules(wanted, self.now)

    @rule()
    def no_policy(self):
        """Take the policy away; all that is left cut off is so by order."""
        self.in_force = None
        self.quarantine.set_rules(None, self.now)
        assert {status.reason for status in self.quarantine.listing()} <= {"operator"}

    @rule(wanted=st.lists(orders, max_size=3, unique_by=lambda order: order.id))
    def order(self, wanted):
        """Push orders."""
        self.sick |= {order.peer for order in wanted if order.quarantined}
        self.quarantine.set_orders(wanted, self.now)

    @invariant()
    def listing_is_what_was_told(self):
        """Compare the listing with what a reader of the events knows."""
        listed = {status.peer: status.state for status in self.quarantine.listing()}
        assert listed == {
            peer: state for peer, state in self.reported.items() if state is not BreakerState.CLOSED
        }

    @invariant()
    def share_is_never_exceeded(self):
        """Hold that all that is cut off of a channel is within the share, where anything automatic is."""
        automatic = {status.peer for status in self.quarantine.listing() if status.reason != "operator"}
        for channel in CHANNELS:
            cut_off = self.quarantine._cut_off(channel)
            if automatic.intersection(cut_off):
                assert self.in_force is not None
                known = self.quarantine._known(channel)
                assert 100 * len(cut_off) <= self.in_force.max_peers_percent * known

    @invariant()
    def only_the_sick_are_touched(self):
        """Hold that no peer is cut off that never failed and that no order names."""
        assert {status.peer for status in self.quarantine.listing()} <= self.sick

    @invariant()
    def memory_is_bounded(self):
        """Hold that known and remembered peers are bounded."""
        assert self.quarantine.known_peers <= MAX_PEERS
        assert len(self.quarantine._dormant) <= MAX_PEERS

    def teardown(self):
        """End with all closed from any state: orders withdrawn, time, engines restarted, good loads."""
        self.quarantine.set_orders([], self.now)
        for _ in range(2):
            for status in self.quarantine.listing():
                if status.until_ns is not None:
                    self.now = max(self.now, status.until_ns)
                answer = self.quarantine.admit(status.peer, "new", self.now)
                self.quarantine.report(status.peer, "new", None, self.now, probe=answer.probe)
        assert self.quarantine.listing() == []


QuarantineMachine.TestCase.settings = settings(
    max_examples=examples(300, 7), stateful_step_count=40, deadline=None
)
TestQuarantine = QuarantineMachine.TestCase
