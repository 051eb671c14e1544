"""What is wrong with a peer now, as a table."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.agent.admin.lookups.known_peers import Present
from penstock.agent.admin.lookups.peer_conditions import peer_condition
from penstock.agent.metrics.latencies.peers import PeerWindows
from penstock.agent.metrics.latencies.time_slots import DurationWindow, DurationWindows
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.agent.batches import TIME

_SECOND = 10**9
_OK, _SLOW, _HANGING = (
    admin.PEER_CONDITION_OK,
    admin.PEER_CONDITION_SLOW,
    admin.PEER_CONDITION_HANGING,
)
_FAILING, _QUARANTINED = admin.PEER_CONDITION_FAILING, admin.PEER_CONDITION_QUARANTINED
_IDLE = admin.PEER_CONDITION_IDLE
_USUAL = DurationWindow(500, 0.05, 0.1)


def _windows(
    minute: tuple[int, float, float] = (0, 0, 0), hour: DurationWindow = _USUAL, **fields: Any
) -> PeerWindows:
    found = DurationWindows(DurationWindow(*minute), DurationWindow(*minute), hour)
    return PeerWindows(waits=found, **fields)


def _peer(*, waits_since: float = 0, flies_since: float = 0, quarantine: int = 0) -> Present:
    return Present(
        in_flight=bool(flies_since),
        oldest_in_flight=TIME - int(flies_since * _SECOND),
        deferred=bool(waits_since),
        oldest_deferred=TIME - int(waits_since * _SECOND),
        quarantine=quarantine,
    )


@pytest.mark.parametrize(
    ("peer", "windows", "condition", "reason"),
    [
        (_peer(), None, _IDLE, ""),
        (_peer(), _windows(), _IDLE, ""),
        (_peer(), _windows((10, 0.05, 0.1)), _OK, ""),
        # Hanging: longer than a second, and than twice the usual.
        (_peer(waits_since=0.9), None, _OK, ""),
        (_peer(waits_since=12), None, _HANGING, "a request waits for 12.0 s"),
        (_peer(waits_since=12), _windows(), _HANGING, "a request waits for 12.0 s; usually up to 100 ms"),
        (_peer(waits_since=12), _windows(hour=DurationWindow(500, 5, 9)), _OK, ""),
        (_peer(flies_since=2, waits_since=3), _windows(), _HANGING, "a request waits for 3.0 s; usually up to 100 ms"),
        (_peer(flies_since=2), _windows(), _HANGING, "a transfer is in flight for 2.0 s"),
        # It goes before everything else.
        (_peer(waits_since=12), _windows(failures_last_minute=4), _HANGING, "a request waits for 12.0 s; usually up to 100 ms"),
        (_peer(), _windows((10, 6, 6), failures_last_minute=1), _FAILING, "1 failure in the last minute"),
        # Until one succeeds, however long ago it was.
        (_peer(), _windows(unanswered=TIME - 300 * _SECOND), _FAILING, "no transfer has succeeded since the last load failed, 300.0 s ago"),
        # Slow: three times the hour before, and 20 ms more.
        (_peer(), _windows((5, 6.6, 6.6)), _SLOW, "p50 of waits 6.6 s in the last minute, 50 ms in the hour before"),
        (_peer(), _windows((4, 6.6, 6.6)), _OK, ""),
        (_peer(), _windows((5, 0.14, 0.3)), _OK, ""),
        (_peer(), _windows((5, 0.004, 0.005), DurationWindow(500, 0.001, 0.002)), _OK, ""),
        (_peer(), _windows((20, 0.05, 6.6)), _SLOW, "p99 of waits 6.6 s in the last minute, 100 ms in the hour before"),
        (_peer(), _windows((19, 0.05, 6.6)), _OK, ""),
        # Without an hour to compare with.
        (_peer(), _windows((5, 6.6, 6.6), DurationWindow()), _SLOW, "p50 of waits 6.6 s in the last minute, no hour before to compare with"),
        (_peer(), _windows((5, 0.9, 0.9), DurationWindow(5, 0.1, 0.1)), _OK, ""),
        (_peer(quarantine=2), None, _QUARANTINED, ""),
        (_peer(quarantine=1), None, _IDLE, ""),
        # It is not tried: what was before says nothing, but for requests that still wait.
        (_peer(quarantine=2), _windows((10, 6, 6), failures_last_minute=1, unanswered=TIME), _QUARANTINED, ""),
        (_peer(quarantine=3, waits_since=12), None, _HANGING, "a request waits for 12.0 s"),
    ],
)  # fmt: skip
def test_conditions(
    peer: Present, windows: PeerWindows | None, condition: admin.PeerCondition, reason: str
) -> None:
    """Present durations against the peer's own hour before."""
    found = peer_condition(peer, windows, TIME)
    assert (found.condition, found.reason) == (condition, reason)


@pytest.mark.parametrize(("ago", "condition"), [(0, _OK), (899, _OK), (901, _IDLE)])
def test_a_peer_that_is_not_tried_is_idle(ago: int, condition: admin.PeerCondition) -> None:
    """Fifteen minutes after the newest attempt that is counted, also where there are no windows of it."""
    for windows in (None, _windows()):
        assert peer_condition(_peer(), windows, TIME, TIME - ago * _SECOND).condition == condition


def test_since_when_is_told_where_it_is_known() -> None:
    """By the engine's clock: the oldest that waits, the first of the failures since which nothing succeeds."""
    begun = TIME - 12 * _SECOND
    failing = _windows(failures_last_minute=2, unanswered=TIME, unanswered_since=begun)
    quiet = _windows(unanswered=TIME, unanswered_since=begun)
    found = [peer_condition(_peer(waits_since=12), None, TIME), peer_condition(_peer(), failing, TIME)]
    found.append(peer_condition(_peer(), quiet, TIME))
    assert [each.since for each in found] == [begun] * 3
    assert peer_condition(_peer(), _windows(failures_last_minute=2), TIME).since == 0


def test_transfers_count_as_waits_do() -> None:
    """A peer whose transfers are slow is, though no request of this engine waits."""
    slow = DurationWindows(DurationWindow(9, 3, 3), DurationWindow(9, 3, 3), _USUAL)
    assert peer_condition(_peer(), PeerWindows(transfers=slow), TIME).condition == _SLOW
    # Four in the minute are too few: then the last 15 tell.
    slow = DurationWindows(DurationWindow(4, 3, 3), DurationWindow(9, 3, 3), _USUAL)
    found = peer_condition(_peer(), PeerWindows(transfers=slow), TIME)
    assert found.reason == "p50 of transfers 3.0 s in the last 15 minutes, 50 ms in the hour before"


def test_what_is_seen_late_is_not_slow() -> None:
    """Slow is what were so even if each transfer had ended just after the look before."""
    hour, now = DurationWindow(50, 0.01, 0.02), DurationWindow(8, 1.0, 1.0)
    seen = DurationWindows(now, now, hour)
    for least, condition in ((0.009, admin.PEER_CONDITION_OK), (0.9, admin.PEER_CONDITION_SLOW)):
        bound = DurationWindow(8, least, least)
        windows = PeerWindows(seen, least=DurationWindows(bound, bound))
        assert peer_condition(Present(), windows, 10**18, 10**18).condition == condition
