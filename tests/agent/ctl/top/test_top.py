"""``agentctl top``: its screen at any size."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.ctl.top.layout import PLAIN, Piece, as_text, screen
from penstock.agent.ctl.top.view import SORTS, WINDOW, AgentState, History
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import ERROR_TYPE_REFUSED, FAILURE_MODE_HANDSHAKE

from tests.support.agent.batches import PEER

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

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
    return as_text(screen(history, sort, scroll, width, height, last.now if last is not None else _NOW))


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
    assert "no answer for 8s" in as_text(screen(history, "name", 0, 80, 24, _NOW + 9))
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


def test_a_stopped_engine_is_not_awaited() -> None:
    """It says so, and the heading has no alarm about the others."""
    history = _history(
        _sample(0, _engine("0"), _engine("1", connected=False, said_goodbye=True), engines_expected=2)
    )
    heading, *lines = screen(history, "name", 0, 140, 24, _NOW)
    assert Piece("1 of 2 engines", PLAIN) in heading
    assert any(piece.text.strip() == "stopped" for line in lines for piece in line)


def test_what_does_not_fit_is_counted_and_can_be_scrolled_to() -> None:
    """Rows that do not fit are counted; scrolling reaches the last."""
    peers = tuple(_peer(f"10.0.0.{number:02}:1") for number in range(50))
    history = _history(_sample(0, _engine("0"), peers=peers))
    assert "1 to 16 of 50 peers" in _shown(history)
    end = _shown(history, scroll=1000)
    assert "35 to 50 of 50 peers" in end
    assert "10.0.0.49:1" in end


def test_of_many_peers_the_worst_are_shown_and_all_are_counted() -> None:
    """The caption says so, also where all rows that were asked for fit."""
    few = tuple(_peer(f"10.0.0.{number:02}:1") for number in range(3))
    sample = replace(_sample(0, _engine("0"), peers=few), total_peers=64_000)
    assert "3 peers, the worst of 64000\n" in _shown(_history(sample))
    many = replace(sample, peers=tuple(_peer(f"10.0.0.{number:02}:1") for number in range(50)))
    assert "1 to 16 of 50 peers, the worst of 64000\n" in _shown(_history(many))


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
