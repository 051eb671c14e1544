"""A quarantine on a clock of its own, for tests."""

from __future__ import annotations

from dataclasses import replace

from penstock.instrumentation.core import constants
from penstock.rules.circuit_breaker import Admit, PeerFailure, Rules
from penstock.rules.quarantine import Change, Quarantine

from tests.support.manual_clock import SECOND

RULES = Rules(failures=2, window_ns=30 * SECOND, duration_ns=60 * SECOND, max_peers_percent=50)
EVERYONE = replace(RULES, max_peers_percent=100)
REFUSED = PeerFailure(constants.FAILURE_MODE_HANDSHAKE, constants.ERROR_TYPE_REFUSED)
INCOMPATIBLE = PeerFailure(constants.FAILURE_MODE_HANDSHAKE, constants.ERROR_TYPE_INCOMPATIBLE)
REMOTE = Admit(remote=True)
IDLE = 900 * SECOND


class Bench:
    """A quarantine with its clock and the changes that it reported."""

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
        """Return the changes since the last call, as (peer, previous, state, reason)."""
        reported = [
            (each.status.peer, each.previous, each.status.state, each.status.reason) for each in self.changes
        ]
        self.changes.clear()
        return reported
