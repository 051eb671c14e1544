"""``agentctl top``: its screen at any size, and on real terminals."""

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
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.ctl.client import Client
from penstock.agent.ctl.tls import ClientTls
from penstock.agent.ctl.top.layout import screen, text
from penstock.agent.ctl.top.poll import Poller, poll_agent
from penstock.agent.ctl.top.view import SORTS, WINDOW, AgentState, History
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import ERROR_TYPE_REFUSED, FAILURE_MODE_HANDSHAKE
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import wait_until
from tests.support.agent.batches import PEER, sample_batch, transfer_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_NOW = 1_800_000_000.0


def _engine(name: str, *, ok: int = 0, failures: int = 0, **fields: Any) -> admin.Engine:
    values: dict[str, Any] = {"connected": True, "in_sync": True, "policy": {"kv_action": "recompute"}}
    counters = {"transfers_ok": ok, "bytes": ok << 20, "failures": failures}
    return admin.Engine(key={"engine": name}, counters=counters, **{**values, **fields})


def _peer(
    address: str, *, engine: str = "0", ok: int = 0, refused: int = 0, **fields: Any
) -> admin.PeerSummary:
    failure = {"mode": FAILURE_MODE_HANDSHAKE, "error_type": ERROR_TYPE_REFUSED, "count": refused}
    return admin.PeerSummary(
        key={"engine": engine},
        peer={"address": address},
        transfers_ok=ok,
        failures=[failure] if refused else [],
        **fields,
    )


def _sample(
    at: float, *engines: admin.Engine, peers: tuple[admin.PeerSummary, ...] = (), **status: Any
) -> AgentState:
    return AgentState(at, _NOW + at, admin.AgentStatus(version="1.0", **status), engines, peers)


def _history(*samples: AgentState) -> History:
    history = History()
    for sample in samples:
        history.add(sample)
    return history


def _shown(
    history: History, *, sort: str = "failures", scroll: int = 0, width: int = 80, height: int = 24
) -> str:
    last = history.last
    return text(screen(history, sort, scroll, width, height, last.now if last is not None else _NOW))


def test_a_rate_is_taken_over_the_window() -> None:
    """A rate spans the window's oldest and newest sample; a counter that was reset has none."""
    history = _history(*(_sample(at, _engine("0", ok=at * 10)) for at in range(30)))
    assert len(history.samples) == WINDOW + 1
    (row,) = history.engines("name")
    assert (row.transfers, row.bytes) == (10.0, 10.0 * (1 << 20))
    history.add(_sample(31, _engine("0", ok=5), _engine("1", ok=5)))
    assert [row.transfers for row in history.engines("name")] == [None, None]
    assert _history(_sample(0, _engine("0"))).engines("name")[0].transfers is None


def test_what_is_shown_at_80_by_24() -> None:
    """The screen has engines, peers, rates, failures, deferrals and policy within 80 columns."""
    oldest = {"oldest_start_time_unix_nano": int((_NOW - 30) * 1e9), "count": 4}
    history = _history(
        _sample(0, _engine("0"), peers=(_peer(PEER),)),
        _sample(
            10,
            _engine("0", ok=100, failures=20, deferred=[oldest], in_flight=[oldest]),
            peers=(_peer(PEER, ok=100, refused=20, in_flight=4),),
            engines_expected=2,
        ),
    )
    shown = _shown(history)
    lines = shown.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("penstock 1.0  ")
    assert "1 of 2 engines  10 transfers/s  10.0 MiB/s" in lines[0]
    assert lines[1].startswith("2.0 failures/s  4 in flight  4 deferred")
    assert "recompute" in lines[4]
    assert lines[4].split()[-1] == "40s"
    assert lines[7].split()[:2] == [PEER, "0"]
    assert lines[-1].startswith("q quit   s sort: failures")


def test_what_an_engine_would_do_is_not_what_it_does() -> None:
    """A paused engine is not late; two EngineCores of one name are marked and not in force."""
    paused = _engine("0", paused=True, in_sync=False, wanted_kv_action="auto", wanted_hash="a" * 64)
    cores = [{"connected": True, "hello": {"process": "engine-core", "pid": pid}} for pid in (1, 2)]
    shown = _shown(_history(_sample(0, paused, _engine("1", in_sync=False, sources=cores))))
    assert "paused (would be auto)" in shown
    assert "auto (late)" not in shown
    assert "2 share a name" in shown
    assert "policy: not in force in 2 engines" in shown


def test_trouble_has_a_line_of_its_own() -> None:
    """The line has the worst of: unreachable agent, agent health, policy, traces."""
    late = _engine("0", in_sync=False)
    for sample, words in (
        (_sample(0, late, degraded="disk full", otlp_error="x"), "agent: disk full"),
        (_sample(0, late, otlp_error="x"), "policy: not in force in 1 engine;"),
        (_sample(0, _engine("0"), otlp_error="no route"), "traces: no route"),
    ):
        assert words in _shown(_history(sample))
    history = _history(_sample(0, late, degraded="disk full"))
    history.add(AgentState(1, _NOW + 1, error="no agent answers"))
    history.add(AgentState(9, _NOW + 9, error="no agent answers"))
    assert "no answer for 8s" in text(screen(history, "name", 0, 80, 24, _NOW + 9))
    assert "no agent answers" in _shown(_history(AgentState(0, _NOW, error="no agent answers")))
    assert "waiting for the agent" in _shown(History())


@pytest.mark.parametrize(
    ("sort", "engines", "peers"),
    [
        ("now", ["0", "2", "1"], ["b", "c", "a"]),
        ("failures", ["2", "1", "0"], ["c", "b", "a"]),
        ("rate", ["0", "1", "2"], ["a", "b", "c"]),
        ("waiting", ["1", "0", "2"], ["b", "a", "c"]),
        ("name", ["0", "1", "2"], ["a", "b", "c"]),
    ],
)
def test_orders(sort: str, engines: list[str], peers: list[str]) -> None:
    """Each sort order has the largest first, and equals by name."""
    deferred = [{"count": 3}]
    history = _history(
        _sample(0, *map(_engine, "012"), peers=tuple(map(_peer, "abc"))),
        _sample(
            10,
            _engine("0", ok=30),
            _engine("1", ok=20, failures=10, deferred=deferred),
            _engine("2", ok=10, failures=20),
            peers=(
                _peer("a", ok=30, condition=admin.PEER_CONDITION_OK),
                _peer("b", ok=20, refused=10, in_flight=3, condition=admin.PEER_CONDITION_HANGING),
                _peer("c", ok=10, refused=20, condition=admin.PEER_CONDITION_SLOW),
            ),
        ),
    )
    assert [row.name for row in history.engines(sort)] == engines
    assert [row.address for row in history.peers(sort)] == peers


def test_an_engine_that_is_away_and_a_peer_in_quarantine_stand_first() -> None:
    """They precede others with more failures."""
    history = _history(
        _sample(
            0,
            _engine("0", failures=9),
            _engine("1", connected=False),
            peers=(_peer("a", refused=9), _peer("b", status={"quarantine": 2})),
        )
    )
    shown = _shown(history, width=140).splitlines()
    assert shown[4].split()[:3] == ["1", "unknown", "disconnected"]
    assert shown[8].split()[:4] == ["b", "0", "-", "quarantined"]


def test_what_does_not_fit_is_counted_and_can_be_scrolled_to() -> None:
    """Rows that do not fit are counted; scrolling reaches the last."""
    peers = tuple(_peer(f"10.0.0.{number:02}:1") for number in range(50))
    history = _history(_sample(0, _engine("0"), peers=peers))
    assert "1 to 16 of 50 peers" in _shown(history)
    end = _shown(history, scroll=1000)
    assert "35 to 50 of 50 peers" in end
    assert "10.0.0.49:1" in end


_NAMES = st.text(st.characters(codec="utf-8"), max_size=40)


@given(
    names=st.lists(_NAMES, max_size=6),
    width=st.integers(1, 200),
    height=st.integers(1, 60),
    scroll=st.integers(0, 99),
    sort=st.sampled_from(SORTS),
    trouble=_NAMES,
)
def test_any_size_holds_what_it_is_given(
    names: list[str], width: int, height: int, scroll: int, sort: str, trouble: str
) -> None:
    """Lines fit width and height, and have no control characters."""
    engines = [_engine(name, failures=len(name)) for name in names]
    peers = tuple(_peer(name, refused=len(name)) for name in names)
    sample = _sample(0, *engines, peers=peers, degraded=trouble)
    lines = screen(_history(sample), sort, scroll, width, height, _NOW)
    assert 1 <= len(lines) <= height
    for line in lines:
        joined = "".join(piece.text for piece in line)
        assert len(joined) <= width
        assert joined.isprintable()


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
