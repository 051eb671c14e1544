"""``agentctl get --watch``: the list, then its changes, over restarts of the agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.ctl.errors import RefusedError, UnreachableError
from penstock.agent.ctl.listing import Changes, Listing, ListStyle, watch_rows
from penstock.agent.views.tables import Table

from tests.support.agent.agent import AgentProcess, running_agent, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_MAIN = "from penstock.agent.ctl.main import main; main()"


def _listing(*rows: tuple[str, ...], limited: bool = False) -> Listing:
    return Listing(
        "engine",
        Table(("ENGINE", "STATUS", "LAST-SEEN", "MODEL"), [(*row, "m") for row in rows], wide=1),
        [row[0] for row in rows],
        lambda: {"engines": [{"status": row[1]} for row in rows]},
        "engines",
        "nothing",
        limited=limited,
    )


@pytest.mark.parametrize(
    ("before", "after", "changed", "gone"),
    [
        ([("0", "up", "1s ago")], [("0", "up", "9m ago")], [], []),
        ([("0", "up", "1s ago")], [("0", "up", "in 3s")], [], []),
        ([("0", "1.2s", "54ms/1.2s")], [("0", "41ms", "80µs/5m")], [], []),
        ([("0", "paused, ends in 30m", "1s ago")], [("0", "paused, ends in 5s", "1s ago")], [], []),
        ([("0", "paused, ends in 30m", "1s ago")], [("0", "paused", "1s ago")], [0], []),
        ([("0", "1s", "1s ago")], [("0", "1", "1s ago")], [0], []),
        ([("0", "up", "1s ago")], [("0", "up", "-")], [0], []),
        ([("0", "up", "1s ago")], [("0", "down", "1s ago")], [0], []),
        ([("0", "up", "1s ago")], [("1", "up", "1s ago"), ("0", "up", "1s ago")], [0], []),
        ([("0", "up", "1s ago"), ("1", "up", "1s ago")], [("1", "up", "1s ago")], [], ["0"]),
        # Two rows of one name differ by their order.
        ([("0", "a", "1s"), ("0", "b", "1s")], [("0", "a", "1s"), ("0", "c", "1s")], [1], []),
    ],
)
def test_what_has_changed(before: Any, after: Any, changed: list[int], gone: list[str]) -> None:
    """A row has changed if it is new, or differs in more than times."""
    changes = Changes()
    assert changes.update(_listing(*before)) == (list(range(len(before))), [])
    assert changes.update(_listing(*after)) == (changed, gone)


def test_a_row_that_made_room_is_not_gone() -> None:
    """In a limited list, an old row that newer ones displace is no change."""
    changes = Changes()
    changes.update(_listing(("0", "up", "1s"), limited=True))
    assert changes.update(_listing(("1", "up", "1s"), limited=True)) == ([0], [])


def _watched(answers: list[Listing | Exception], style: ListStyle) -> None:
    """Watch *answers*, one a poll; an interrupt follows the last."""
    answers = [*answers, KeyboardInterrupt()]  # type: ignore[list-item]

    def fetch() -> Listing:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    with pytest.raises(KeyboardInterrupt):
        watch_rows(fetch, fetch(), style, lambda _: None)


_UP, _DOWN = _listing(("0", "up", "1s")), _listing(("0", "down", "1s"))


@pytest.mark.parametrize(
    ("style", "lines"),
    [
        (ListStyle("table"), ["ENGINE   STATUS   LAST-SEEN", "0        up       1s", "0        down     1s"]),
        (ListStyle("table", headers=False), ["0   up   1s", "0   down   1s"]),
        (ListStyle("name"), ["engine/0", "engine/0"]),
        (ListStyle("json"), ['{"status": "up"}', '{"status": "down"}']),
        (ListStyle("yaml"), ["---", "status: up", "---", "status: down"]),
        (ListStyle("jsonpath={.name} {.status}"), ["0 up", "0 down"]),
    ],
)
def test_what_is_printed_of_a_change(
    style: ListStyle, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A table prints the changed row under its one header; JSON prints an object a line."""
    _watched([_listing(), _UP, _UP, _DOWN], style)
    assert capsys.readouterr().out.splitlines() == lines


def test_an_agent_that_is_away_is_awaited(capsys: pytest.CaptureFixture[str]) -> None:
    """The watch reports the outage once and prints the changes of that time; a refusal ends it."""
    away = UnreachableError("no agent answers")
    _watched([_UP, away, away, _DOWN, away, _listing()], ListStyle("name"))
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["engine/0", "engine/0"]
    lost, back = "connection to the agent lost; reconnecting", "reconnected to the agent"
    assert printed.err.splitlines() == [lost, back, lost, back, "engine/0 is gone"]
    with pytest.raises(RefusedError):
        watch_rows(lambda: (_ for _ in ()).throw(RefusedError("no")), _UP, ListStyle("name"), lambda _: None)


def test_a_watch_ends_after_so_many_rows(harness: AdminHarness, agentctl: Agentctl) -> None:
    """``--count`` includes the rows of the first table; an unknown name ends the watch at once."""
    harness.source("0")
    harness.source("1")
    result = agentctl("get", "engines", "-w", "--count", "2")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 3)
    one = agentctl("get", "engines", "-w", "--count", "1", "-o", "name")
    assert (one.exit_code, one.stdout) == (0, "engine/0\n")
    assert agentctl("get", "engine", "9", "-w").exit_code == 1


def test_events_go_on_where_the_list_ended(harness: AdminHarness, agentctl: Agentctl) -> None:
    """Every event is printed once."""
    core = harness.source("0")
    now = time.time_ns()
    harness.append(core, transfer_failure("a", time_ns=now), transfer_failure("b", time_ns=now + 1))
    results: list[Result] = []
    watch = ("get", "events", "-w", "--count", "4", "-o", "jsonpath={.event.requestId}")
    thread = threading.Thread(target=lambda: results.append(agentctl(*watch)))
    thread.start()
    # It follows the log when it waits for the log to move.
    wait_until(lambda: harness.service._tail.notice.waiting, "the watch follows the log")
    harness.append(core, transfer_failure("c", time_ns=now + 2), transfer_failure("d", time_ns=now + 3))
    thread.join(60)
    assert results[0].stdout.splitlines() == ["a", "b", "c", "d"]


@pytest.fixture
def agent() -> Iterator[AgentProcess]:
    """Run an agent."""
    with running_agent() as running:
        yield running


@pytest.mark.parametrize("what", [pytest.param("peers", marks=pytest.mark.long), "events"])
def test_a_real_agent_may_be_killed(agent: AgentProcess, what: str) -> None:
    """After kill -9 of the agent the watch continues; an interrupt ends it with 0."""
    watch = subprocess.Popen(
        [sys.executable, "-c", _MAIN, "get", what, "-w", "-o", "json"],
        env={**os.environ, "AGENTCTL_ADDRESS": agent.admin},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watch.stdout is not None
    assert watch.stderr is not None
    out, err = watch.stdout, watch.stderr
    seen: list[dict[str, Any]] = []
    said: list[str] = []
    reading = [
        threading.Thread(target=lambda: seen.extend(json.loads(line) for line in out)),
        threading.Thread(target=lambda: said.extend(err)),
    ]
    engine = FakeEngine(agent.listen)
    try:
        engine.connect()
        engine.publish(transfer_failure("before", time_ns=time.time_ns()))
        for thread in reading:
            thread.start()
        wait_until(lambda: bool(seen), "the first list is printed")
        before = len(seen)
        agent.kill()
        wait_until(lambda: bool(said), "the watch says that there is no agent")
        agent.start()
        engine.connect()
        engine.publish(transfer_failure("after", time_ns=time.time_ns()))
        wait_until(lambda: len(seen) > before, "the watch shows what came after the kill")
        watch.send_signal(signal.SIGINT)
        assert watch.wait(60) == 0
        reading[1].join()
        assert said == ["connection to the agent lost; reconnecting\n", "reconnected to the agent\n"]
        if what == "events":
            assert [item["event"]["requestId"] for item in seen] == ["before", "after"]
    finally:
        engine.disconnect()
        watch.kill()
        watch.wait()
        for thread in reading:
            thread.join()
        out.close()
        err.close()
