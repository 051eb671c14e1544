"""A real relay over two real agents: what all engines did together, what one did, and the page's messages of both."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import wait_until
from tests.support.agent.batches import event
from tests.support.page.pods import Pods
from tests.support.page.tab import Tab, ask

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def pods() -> Iterator[Pods]:
    """Run two pods and a relay; one engine has ended two requests, the other three."""
    with ExitStack() as parts:
        pods = Pods(parts)
        now = time.time_ns()
        for count, engine in enumerate(pods.engines.values(), 2):
            engine.snapshot(Snapshot(time_unix_nano=now, queue={"running": count, "total_blocks": 10}))
            engine.publish(*(event("request_closed", f"r{each}", time_ns=now) for each in range(count)))
        yield pods


def _ended(pods: Pods, **selector: object) -> int:
    request = admin.GetSignalsRequest(selector=selector)
    found: admin.Signals = pods.relay.call("GetSignals", request)
    return sum(slot.requests for slot in found.slots)


def test_a_relay_sums_its_agents(pods: Pods) -> None:
    """All engines, or one of them by the relay's name for it."""
    wait_until(lambda: _ended(pods) == 5, "the slot is over")
    assert _ended(pods, engines=[{"server": "decode-1", "engine": "0"}]) == 3
    found: admin.Signals = pods.relay.call("GetSignals", admin.GetSignalsRequest())
    assert (found.engines, found.engines_left_out) == (2, 0)
    wait_until(
        lambda: any(
            slot.running == 5 for slot in pods.relay.call("GetSignals", admin.GetSignalsRequest()).slots
        ),
        "both queues were seen in one slot",
    )


def test_its_page_shows_them(pods: Pods) -> None:
    """At once when a tab opens, and from then on the newest slots; of one engine where a tab asks."""
    wait_until(lambda: _ended(pods) == 5, "the slot is over")
    with Tab(pods.page) as tab:
        first = tab.until("signals").data
        assert (first["whole"], first["engine"], first["engines"]) == (True, "", 2)
        assert sum(filter(None, first["requests"])) == pytest.approx(5 / 5)
        later = tab.until("signals", lambda data: not data["whole"]).data
        assert (later["engine"], later["step"]) == ("", 5000)
    one = ask(pods.page, "/api/signals", engine="decode-1/0").body
    assert (one["engine"], one["whole"]) == ("decode-1/0", True)
    assert sum(filter(None, one["requests"])) == pytest.approx(3 / 5)
    unknown = ask(pods.page, "/api/signals", engine="no/7")
    assert (unknown.status, bool(unknown.body["error"])) == (404, True)
