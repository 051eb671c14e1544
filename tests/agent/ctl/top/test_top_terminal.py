"""``agentctl top`` on real terminals, with a real agent's data."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from penstock.agent.ctl.connection.client import Client
from penstock.agent.ctl.connection.contexts import ClientTls
from penstock.agent.ctl.top import command
from penstock.agent.ctl.top.command import Poller, poll_agent
from penstock.agent.ctl.top.view import AgentState
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import wait_until
from tests.support.agent.batches import PEER, sample_batch, transfer_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_NOW = 1_800_000_000.0


@pytest.fixture
def filled(harness: AdminHarness) -> AdminHarness:
    """One engine with a failure, a transfer and a snapshot."""
    core = harness.source("0")
    harness.append(core, transfer_failure("r"))
    harness.append(core, batch=sample_batch(["s"]))
    harness.snapshot(core, Snapshot(in_flight=[{"channel": 1, "peer": {"address": PEER}, "count": 2}]))
    return harness


def test_where_there_is_no_terminal_it_prints(
    filled: AdminHarness, agentctl: Agentctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal it prints ``--count`` plain screens."""
    # The environment of the tests may set a width.
    monkeypatch.delenv("COLUMNS", raising=False)
    result = agentctl("top", "--count", "2", "--interval", "200ms")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("penstock ") == 2
    assert "handshake/refused" in result.stdout
    assert "\x1b" not in result.stdout
    assert "q quit" not in result.stdout


def test_it_asks_for_the_worst_peers_only(
    harness: AdminHarness, agentctl: Agentctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 engines with 1,000 peers each have 64,000 rows, for which no agent answers within its time."""
    monkeypatch.setattr(command, "MOST_PEERS", 2)
    core = harness.source("0")
    for number in range(3):
        failure = transfer_failure(f"r{number}", peer=f"10.0.0.{number}:5600", time_ns=time.time_ns())
        harness.append(core, failure)
    shown = agentctl("top", "--count", "1").stdout
    assert "2 peers, the worst of 3" in shown
    assert shown.count(":5600") == 2


def test_the_counters_of_an_engine_are_those_of_the_log(filled: AdminHarness) -> None:
    """Transfers, bytes and failures are those of the log."""
    (engine,) = filled.stub.ListEngines(admin.ListEnginesRequest()).engines
    counters = engine.counters
    assert (counters.transfers_ok, counters.bytes, counters.failures) == (1, 1 << 20, 1)


def test_the_poller_keeps_the_newest_and_an_error_is_a_sample() -> None:
    """The queue of samples is bounded; an error is a sample."""
    numbers = iter(range(10**6))
    with Poller(lambda: AgentState(next(numbers), _NOW), 0.001) as poller:
        wait_until(lambda: next(numbers) > 20, "it has asked again and again")
        assert len(poller.newest()) <= 2

    class Nobody:
        def call(self, *_: object, **__: object) -> None:
            from penstock.agent.ctl.errors import UnreachableError

            raise UnreachableError("no agent answers")

    assert poll_agent(Nobody(), admin.EngineSelector()).error == "no agent answers"  # type: ignore[arg-type]


def test_a_client_that_is_closed_under_the_poller_ends_it_quietly(harness: AdminHarness) -> None:
    """Closing the client between two calls ends the poller without an error."""
    client = Client(harness.address, ClientTls())
    asked, closed = threading.Event(), threading.Event()

    def ask() -> AgentState:
        asked.set()
        assert closed.wait(60)
        return poll_agent(client, admin.EngineSelector())

    with Poller(ask, 1.0) as poller:
        assert asked.wait(60)
    client.close()
    closed.set()
    # An exception in the thread would fail the test.
    poller._thread.join(60)
    assert not poller._thread.is_alive()


class _Terminal:
    """A pseudo-terminal that runs the command."""

    def __init__(self, address: str, *arguments: str, term: str = "xterm-256color") -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.parent, child = pty.openpty()
        self.resize(24, 80)
        code = "from penstock.agent.ctl.main import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "--address", address, "top", "--interval", "200ms", *arguments],
            stdin=child, stdout=child, stderr=child,
            env={**os.environ, "TERM": term},
            start_new_session=True,
        )  # fmt: skip
        os.close(child)
        self.seen = ""

    def resize(self, rows: int, columns: int) -> None:
        """Change the size; the kernel sends SIGWINCH to the foreground process."""
        fcntl.ioctl(self.parent, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if self.process is not None:
            self.process.send_signal(signal.SIGWINCH)

    def type(self, keys: bytes) -> None:
        os.write(self.parent, keys)

    def until(self, words: str) -> None:
        """Read until *words* have been drawn since the last call."""
        wait_until(
            lambda: self._read() and words in self.seen, f"{words!r} is drawn; seen: {self.seen[-2000:]!r}"
        )
        self.seen = ""

    def _read(self) -> bool:
        if select.select([self.parent], [], [], 0.05)[0]:
            # The other end is closed.
            with suppress(OSError):
                self.seen += os.read(self.parent, 65536).decode(errors="replace")
        return True

    def end(self) -> int:
        """Wait for the command's end, reading its output."""
        process = self.process
        assert process is not None
        wait_until(lambda: self._read() and process.poll() is not None, "it has ended")
        self._read()
        assert process.returncode is not None
        return process.returncode


@pytest.fixture
def terminal(filled: AdminHarness) -> Iterator[Callable[..., _Terminal]]:
    """Return a factory of terminals; they are closed at teardown."""
    opened: list[_Terminal] = []

    def begin(*arguments: str, **how: str) -> _Terminal:
        opened.append(_Terminal(filled.address, *arguments, **how))
        return opened[-1]

    yield begin
    for each in opened:
        if each.process is not None and each.process.poll() is None:
            each.process.kill()
            each.process.wait()
        os.close(each.parent)


def test_a_live_screen_takes_keys_and_resizes(terminal: Callable[..., _Terminal]) -> None:
    """It draws, sorts, follows the window's size, and restores the terminal."""
    screen_ = terminal()
    screen_.until(PEER)
    screen_.type(b"s")
    screen_.until("rate")
    screen_.resize(10, 40)
    screen_.until("ENGINE")
    screen_.type(b"q")
    assert screen_.end() == 0
    assert "\x1b[?1049l" in screen_.seen


@pytest.mark.parametrize("term", ["vt100", "ansi"])
def test_a_serial_consoles_terminal_is_drawn_on(terminal: Callable[..., _Terminal], term: str) -> None:
    """Terminals without a hidden cursor, and without default colours."""
    screen_ = terminal(term=term)
    screen_.until(PEER)
    screen_.type(b"q")
    assert screen_.end() == 0
    assert "Traceback" not in screen_.seen


def test_an_unknown_terminal_gets_plain_output(terminal: Callable[..., _Terminal]) -> None:
    """Output is plain, and an interrupt ends it without an error."""
    screen_ = terminal(term="no-such-terminal")
    screen_.until(PEER)
    assert screen_.process is not None
    screen_.process.send_signal(signal.SIGINT)
    assert screen_.end() == 130
    assert "Traceback" not in screen_.seen


def test_an_agent_that_is_not_there_is_one_sentence() -> None:
    """The error precedes any drawing."""
    code = "from penstock.agent.ctl.main import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "--address", "/nowhere/admin.sock", "top"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("agentctl: no agent answers at ")
