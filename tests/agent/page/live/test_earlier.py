"""A new tab has the failures and changes of the last minutes, before those that come."""

from __future__ import annotations

import time

from tests.support.agent.agent import running_agent
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.page.addresses import page_of
from tests.support.page.tab import Tab


def test_what_was_before_the_tab_comes_once_and_first() -> None:
    """Only to a tab that begins; one that goes on has had it."""
    with running_agent(["--page=127.0.0.1:0"]) as agent, FakeEngine(agent.listen) as engine:
        now = time.time_ns()
        engine.publish(*(transfer_failure(f"before-{each}", time_ns=now + each) for each in range(3)))
        with Tab(page_of(agent)) as tab:
            earlier = tab.until("earlier")
            engine.publish(transfer_failure("after", time_ns=time.time_ns()))
            assert tab.until_requests("after") == ["after"]
        with Tab(page_of(agent), tab.last) as again:
            again.until("screen")
            engine.publish(transfer_failure("later", time_ns=time.time_ns()))
            assert again.until_requests("later") == ["later"]
            assert all(each.event != "earlier" for each in again.seen)

    assert [entry["request"] for entry in earlier.data["entries"]] == [f"before-{each}" for each in range(3)]
    assert earlier.id == ""
