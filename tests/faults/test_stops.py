"""Processes that stop, clocks that jump, forks, two agents on one path: under traffic, judged by the oracle."""

from __future__ import annotations

import signal
import time

import pytest

from tests.faults.bench import FaultyAgent, Producer, bench
from tests.faults.extent import STANDSTILL
from tests.support.agent.agent import wait_until
from tests.support.stop import stop

# Both sides send a ping after 2 seconds of silence and give 3 for its answer; the rest is for a machine that is busy.
NOTICED = 5.0
SLACK = 60.0


def connected(stand):
    """Return how many engines the agent thinks are there."""
    return stand.agent.metric("penstock_engines_connected")


@pytest.mark.long
def test_a_stopped_engine_is_noticed_and_comes_back():
    """SIGSTOP: within some seconds the agent says that it is away; SIGCONT: it goes on where it was."""
    with bench() as stand:
        stand.traffic()
        stand.producers[0].signal(signal.SIGSTOP)
        try:
            wait_until(lambda: connected(stand) == 1, "the stopped engine is missed", NOTICED + SLACK)
        finally:
            stand.producers[0].signal(signal.SIGCONT)
        wait_until(lambda: connected(stand) == 2, "it is back", 60.0)
        stand.traffic()
        stand.settle()


def test_an_engine_that_is_away_for_longer_than_the_grace():
    """The log says that it was lost; when it comes back, its entries are taken like any others."""
    with bench(args=["--source-grace=200ms"]) as stand:
        stand.traffic()
        stand.producers[0].signal(signal.SIGSTOP)
        try:
            wait_until(lambda: connected(stand) == 1, "the stopped engine is missed", NOTICED + SLACK)
            wait_until(
                lambda: stand.agent.metric("penstock_events_total", kind="source_lost", engine="0"),
                "the loss is in the log",
                SLACK,
            )
        finally:
            stand.producers[0].signal(signal.SIGCONT)
        wait_until(lambda: connected(stand) == 2, "it is back", 60.0)
        stand.traffic()
        stand.settle()


def test_a_stopped_agent_is_noticed():
    """By an idle engine the pings find out, by a busy one the batch in flight, which is sent again. Afterwards all goes on."""
    with bench(producers=1, rate=0) as stand:
        idle, busy = stand.producers[0], Producer(stand.directory, stand.agent.listen, 1, 300)
        stand.producers.append(busy)
        idle.command("emit 3")
        wait_until(
            lambda: [book.word for book in stand.books() if book.acknowledged] == [idle.word, busy.word],
            "both engines are there",
        )
        wait_until(lambda: len(stand.books()[0].acknowledged) == 3, "all of the idle one's are acknowledged")
        for producer in stand.producers:
            producer.command("streams")
        process = stand.agent.process
        assert process is not None
        stop(process.pid)
        try:
            wait_until(
                lambda: all(len(book.streams) > 1 for book in stand.books()),
                "both engines try again",
                NOTICED + SLACK,
            )
        finally:
            process.send_signal(signal.SIGCONT)
        idle.command("emit 3")
        wait_until(lambda: len(stand.books()[0].acknowledged) == 6, "all goes on")
        stand.settle()


@pytest.mark.long
def test_an_agent_that_stops_for_longer_than_anyone_waits():
    """Streams break and are opened again, batches are sent twice; nothing is lost or doubled."""
    with bench() as stand:
        stand.traffic()
        for seconds in (0.5, STANDSTILL):
            process = stand.agent.process
            assert process is not None
            stop(process.pid)
            time.sleep(seconds)
            process.send_signal(signal.SIGCONT)
            stand.traffic()
            stand.audit()
        stand.settle()


def test_clocks_that_jump():
    """An hour forward and back, on either side, over a kill: order and counting do not depend on the wall clock."""
    with bench() as stand:
        stand.traffic()
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR2):
            process = stand.agent.process
            assert process is not None
            process.send_signal(number)
            stand.traffic()
            stand.audit()
        for seconds in (3600, -7200):
            stand.producers[0].command(f"clock {seconds}")
            stand.traffic()
        stand.agent.kill()
        stand.agent.start()
        stand.traffic()
        stand.settle()


def test_an_engine_that_forks():
    """The child is a source of its own; nothing of the parent's is sent by both, or by neither."""
    with bench() as stand:
        stand.traffic()
        for producer in stand.producers:
            producer.command("fork")
        wait_until(lambda: len(stand.ended()) == 2, "both children have ended", 60.0)
        stand.traffic()
        stand.settle()
        assert len(stand.books()) == 4


def test_two_agents_on_one_path():
    """The second is refused with a sentence while the first goes on; the path is free when the first has died."""
    with bench() as stand:
        stand.traffic()
        for shared in ("--state-dir", "--listen"):
            other = FaultyAgent(stand.directory / f"other{shared}")
            other.directory.mkdir()
            if shared == "--listen":
                other.listen = stand.agent.listen
            else:
                other.state_dir = stand.agent.state_dir
            other.launch()
            assert other.wait_death() == 2
            assert f"another penstock-agent owns {shared}" in other.log()
            stand.traffic()
        stand.agent.kill()
        stand.agent.start()
        stand.traffic()
        stand.settle()
