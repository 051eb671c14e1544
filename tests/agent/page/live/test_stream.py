"""The event stream of a real agent: what it begins with, what it brings, and how it goes on after a cut."""

from __future__ import annotations

import json
import signal
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.agent.page.live import MAX_TABS
from penstock.agent.page.live.tab import Position, written

from tests.support.agent.agent import AgentProcess, running_agent, short_directory, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.page.addresses import page_of
from tests.support.page.sample_fleet import PEERS, sample_fleet
from tests.support.page.tab import MAX_BYTES, Tab

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = "--page=127.0.0.1:0"


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentProcess]:
    """Run an agent with a page and a fleet in trouble."""
    # Without the agent's own entries about engines that leave.
    with running_agent([PAGE, "--source-grace=1h"]) as running, sample_fleet(running):
        yield running


@pytest.fixture
def engine(agent: AgentProcess) -> Iterator[FakeEngine]:
    """Connect one more engine."""
    with FakeEngine(agent.listen, server="extra", engine="0") as connected:
        yield connected


def _fail(engine: FakeEngine, *requests: str) -> None:
    engine.publish(*(transfer_failure(each, time_ns=time.time_ns()) for each in requests))


def test_a_tab_is_told_everything_at_its_beginning(agent: AgentProcess) -> None:
    """Who speaks, the last minutes, a position, a pulse and the whole screen; each within 64 KiB."""
    with Tab(page_of(agent)) as tab:
        tab.until("screen", lambda screen: screen["verdict"]["computed"])
        # The screen does not wait for what is read from the log.
        while not {"pulse", "history", "log"} <= {each.event for each in tab.seen}:
            assert tab.next() is not None
        hello = tab.seen[0].data

        assert tab.seen[0].event == "hello"
        assert (hello["source"], hello["writable"], hello["user"]) == ("agent", False, "")
        assert tab.last
        assert all(each.size <= MAX_BYTES for each in tab.seen)
        minutes = next(each.data["minutes"] for each in tab.seen if each.event == "history")
        assert sum(cell["failures"] for minute in minutes for cell in minute["cells"]) >= 30
        assert {cell["peer"] for minute in minutes for cell in minute["cells"]} == {PEERS[0]}


def test_an_entry_comes_to_each_tab_once(agent: AgentProcess, engine: FakeEngine) -> None:
    """As it is committed, with the words of agentctl."""
    with Tab(page_of(agent)) as one, Tab(page_of(agent)) as other:
        one.until("log")
        other.until("log")
        for number in range(5):
            _fail(engine, f"once-{number}")
        wanted = [f"once-{number}" for number in range(5)]

        assert one.until_requests(*wanted) == other.until_requests(*wanted) == wanted
        entry = one.entries()[0]
        assert entry["sentence"] == "kv handshake/refused"
        assert entry["command"] == "agentctl explain once-0"
        assert (entry["engine"], entry["peer"], entry["severity"]) == ("extra/0", PEERS[0], "error")


def test_a_tab_goes_on_where_it_was_cut(agent: AgentProcess, engine: FakeEngine) -> None:
    """By Last-Event-ID, also in the middle of a batch, while another tab is in front of it."""
    page = page_of(agent)
    with Tab(page) as first, Tab(page) as ahead:
        first.until("log")
        ahead.until("log")
        _fail(engine, "cut-0")
        first.until_requests("cut-0")
        after = first.last
        first.close()
        _fail(engine, "cut-1", "cut-2")
        _fail(engine, "cut-3")
        ahead.until_requests("cut-0", "cut-3")
        with Tab(page, after) as again:
            assert again.until_requests("cut-3") == ["cut-1", "cut-2", "cut-3"]
            _fail(engine, "cut-4")
            assert again.until_requests("cut-4") == ["cut-1", "cut-2", "cut-3", "cut-4"]
        assert ahead.until_requests("cut-4") == [f"cut-{number}" for number in range(5)]


def test_nothing_is_missed_and_nothing_comes_twice_over_a_killed_agent() -> None:
    """A tab reconnects to the next agent on the same state with the position it had."""
    with short_directory() as directory, ExitStack() as parts:
        agent = AgentProcess(directory, [PAGE])
        parts.callback(agent.stop)
        agent.start()
        with FakeEngine(agent.listen, engine="0") as engine:
            tab = Tab(page_of(agent))
            tab.until("log")
            _fail(engine, "life-0", "life-1")
            seen = tab.until_requests("life-0", "life-1")
            agent.kill()
            while tab.next() is not None:
                pass
            positions = [entry["position"] for entry in tab.entries()]
            agent.start()
            engine.address = agent.listen
            engine.connect()
            _fail(engine, "life-2")
            with Tab(page_of(agent), tab.last) as again:
                _fail(engine, "life-3")
                seen += again.until_requests("life-2", "life-3")
                positions += [entry["position"] for entry in again.entries()]

        failed = [each for each in seen if each.startswith("life-")]
        assert failed == [f"life-{number}" for number in range(4)]
        assert len(positions) == len({*positions})


def test_a_replaced_journal_is_a_gap(agent: AgentProcess, engine: FakeEngine) -> None:
    """A position behind the journal's end is of another journal."""
    _fail(engine, "replaced-0")
    with Tab(page_of(agent), written({"": Position(1 << 40, 0)})) as tab:
        gap = tab.until("gap")
        assert "was replaced" in gap.data["sentence"]
        assert "replaced-0" in tab.until_requests("replaced-0")


@pytest.mark.parametrize("after", ["x", "eJyrVgp", "A" * 40_000, "%00", "bnVsbA"])
def test_a_position_of_another_server_is_a_gap(agent: AgentProcess, after: str) -> None:
    """An event stream cannot show a refusal: the tab starts over, and says so."""
    with Tab(page_of(agent), after) as tab:
        assert "starts over" in tab.until("gap").data["sentence"]
        tab.until("log")
        assert tab.last != after


def test_too_many_tabs_are_told() -> None:
    """The tab beyond the limit is said goodbye to; a place that becomes free is given."""
    # An agent of its own: one that others have used may not know yet that their tabs are closed.
    with ExitStack() as parts:
        page = page_of(parts.enter_context(running_agent([PAGE])))
        tabs = [parts.enter_context(Tab(page)) for _ in range(MAX_TABS)]
        for tab in tabs:
            tab.until("hello")
        with Tab(page) as more:
            bye = more.until("bye")
            assert bye.data["reason"] == "full"
            assert more.next() is None
        tabs[0].close()

        def fits() -> bool:
            with Tab(page) as tab:
                return tab.until("log", lambda _: True).event == "log" if _admitted(tab) else False

        wait_until(fits, "a tab is admitted again")


def _admitted(tab: Tab) -> bool:
    tab.until("hello")
    found = tab.next()
    return found is not None and found.event != "bye"


def test_nobody_waits_for_a_tab_that_does_not_read(agent: AgentProcess, engine: FakeEngine) -> None:
    """Others do not wait for it, nor does the engine."""
    place = urlsplit(page_of(agent))
    with (
        socket.create_connection((place.hostname or "", place.port or 0)) as slow,
        Tab(page_of(agent)) as quick,
    ):
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.sendall(f"GET /api/stream HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        quick.until("log")
        for number in range(60):
            names = [f"slow-{number}-{each}-{'x' * 300}" for each in range(200)]
            now = time.time_ns()
            engine.publish(*(transfer_failure(each, time_ns=now, error_text="y" * 300) for each in names))
            # Not "the last one": the agent's own, about engines that have gone, may come behind it.
            requests = quick.until_requests(names[-1])
    published = [each for each in requests if each.startswith("slow-")]

    assert len(published) == len({*published}) == 60 * 200


def test_the_end_of_the_agent_is_said() -> None:
    """SIGTERM: each tab gets a goodbye, and the agent ends in time."""
    with running_agent([PAGE]) as agent, Tab(page_of(agent)) as tab:
        tab.until("log", lambda _: True)
        assert agent.process is not None
        agent.process.send_signal(signal.SIGTERM)
        assert tab.until("bye").data["reason"] == "stopping"
        assert agent.stop() == 0


def test_the_screen_says_what_agentctl_says(agent: AgentProcess) -> None:
    """Peers by condition, who waits, engines and the policy: the same names and numbers as -o json."""
    run = CliRunner(env={"AGENTCTL_ADDRESS": agent.admin})

    def ctl(*words: str) -> dict[str, list[dict[str, object]]]:
        found: dict[str, list[dict[str, object]]] = json.loads(run.invoke(cli, [*words, "-o", "json"]).output)
        return found

    with Tab(page_of(agent)) as tab:
        screen = tab.until("screen", lambda data: data["policy"]["rows"]).data
    peers, waits = ctl("get", "peers"), ctl("get", "requests", "--deferred")

    cells = {
        (row["peer"], cell["engine"]): cell["condition"]
        for row in screen["peers"]["rows"]
        for cell in row["cells"]
        if cell["condition"] != "none"
    }
    expected = {
        (item["peer"]["address"], f"{item['key']['server']}/{item['key']['engine']}"): item["condition"]  # type: ignore[index]
        for item in peers["peers"]
    }
    steady = {key: value for key, value in expected.items() if key[0] != PEERS[0]}
    assert {key: value for key, value in cells.items() if key[0] != PEERS[0]} == steady
    assert {row["request"] for row in screen["waits"]["rows"]} == {
        str(item["requestId"]) for item in waits["requests"]
    }
    assert {row["author"] for row in screen["policy"]["rows"]} == {"alice@shop"}
    assert {row["field"] for row in screen["policy"]["rows"]} == {
        "kvLoadFailure.action",
        "deferral.maxTransferWait",
    }
