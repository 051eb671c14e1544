"""agentctl on quarantines and drills, against the real admin service."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.model import EngineKey
from penstock.agent.parsing.drill_modes import DRILL_MODES, SLOW
from penstock.agent.views import orders as order_rows
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import CHANNEL_EC, CHANNEL_KV
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_HALF_OPEN, QUARANTINE_STATE_OPEN
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.batches import event

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_PEER = "prefill-0:5600"
_ABLE: dict[str, Any] = {"supported": ("kv_load_failure", "peer_quarantine"), "faults_allowed": True}
_FAULT = ("inject-fault", "--mode", "handshake")


def _cells(result: Result) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("   ") if cell] for line in result.stdout.splitlines()]


def test_add_list_and_lift(harness: AdminHarness, agentctl: Agentctl) -> None:
    """add, list and lift, each acknowledged by the engine."""
    harness.engine("0", **_ABLE)
    assert agentctl("quarantine", "list").stderr == "no peer is in quarantine\n"
    added = agentctl("quarantine", "add", _PEER, "--ttl", "30m", "--reason", "INC-7")
    assert added.exit_code == 0, added.stderr
    assert added.stdout.startswith("engine 0 ")
    assert added.stdout.endswith(f", quarantining {_PEER}\n")
    assert added.stderr == f"warning: no engine knows peer {_PEER}; 'agentctl get peers' lists them\n"
    header, row = _cells(agentctl("quarantine", "list"))
    assert header == ["ENGINE", "PEER", "STATE", "REASON", "UNTIL", "AUTHOR"]
    assert row[:4] == ["0", _PEER, "quarantined", "INC-7"]
    assert row[4] in {"in 30m", "in 29m"}
    assert "@" in row[5]
    lifted = agentctl("quarantine", "lift", _PEER, "0")
    assert lifted.stdout.endswith(f", exempting {_PEER}\n")
    _, row = _cells(agentctl("quarantine", "list", "-o", "wide"))
    assert row[:4] == ["0", _PEER, "exempt", "operator"]


def test_a_quarantine_as_json(harness: AdminHarness, agentctl: Agentctl) -> None:
    """The list has the documented JSON shape; a known peer yields no warning."""
    core = harness.source("0")
    harness.engine("0", **_ABLE)
    harness.snapshot(core, Snapshot(peers=[{"peer": {"address": _PEER}, "connected": True}]))
    added = agentctl("quarantine", "add", _PEER, "-l", "role=decode", "-o", "json")
    assert (json.loads(added.stdout)["engines"][0]["state"], added.stderr) == ("acknowledged", "")
    (row,) = json.loads(agentctl("quarantine", "list", "-o", "json").stdout)["quarantines"]
    assert (row["peer"]["address"], row["state"], row["reason"]) == (_PEER, "open", "operator")


def test_a_refused_quarantine_is_a_sentence(harness: AdminHarness, agentctl: Agentctl) -> None:
    """Exit code 1 if the agent refuses, 2 for a usage error."""
    harness.engine("0")
    refused = agentctl("quarantine", "add", _PEER)
    assert refused.exit_code == 1
    assert refused.stderr.startswith("agentctl: engine 0 cannot quarantine peers: ")
    wrong = agentctl("quarantine", "lift", "prefill-0")
    assert wrong.exit_code == 2
    assert "give its side channel as host:port" in wrong.stderr
    assert agentctl("quarantine", "add", _PEER, "--ttl", "2d").exit_code == 2


def test_a_rehearsal_from_its_beginning_to_its_end(harness: AdminHarness, agentctl: Agentctl) -> None:
    """The output has the drill and the command that stops it; the list has it until it is stopped."""
    harness.engine("0", **_ABLE)
    began = agentctl(*_FAULT, "--rate", "0.25", "--peer", _PEER, "--ttl", "10m", "-l", "role=decode")
    assert began.exit_code == 0, began.stderr
    (drill,) = harness.orders.drills()
    first, *_, last = began.stdout.splitlines()
    assert first == (
        f"drill {drill.id} started: handshake, 25% of the attempts with {_PEER}, engines role=decode, for 10m; "
        f"'agentctl drill stop {drill.id}' stops it"
    )
    assert last.startswith("engine 0 acknowledged after ")
    assert last.endswith(", running the drill")
    header, row = _cells(agentctl("drill", "list"))
    assert header == ["ID", "MODE", "RATE", "PEER", "ENDS", "AUTHOR", "ENGINES"]
    assert row[:4] == [drill.id, "handshake", "25%", _PEER]
    assert row[6] == "0 running"
    stopped = agentctl("drill", "stop", drill.id)
    assert stopped.exit_code == 0, stopped.stderr
    assert stopped.stdout.startswith(f"drill {drill.id} stopped\nengine 0 ")
    assert harness.orders.drills() == []
    assert agentctl("drill", "list").stderr == "no drill is running\n"


def test_stop_all(harness: AdminHarness, agentctl: Agentctl) -> None:
    """``--all`` stops every drill; none running exits with 0."""
    harness.engine("0", **_ABLE)
    for _ in range(2):
        agentctl(*_FAULT, "--all")
    assert len(harness.orders.drills()) == 2
    assert agentctl("drill", "stop", "--all").exit_code == 0
    assert harness.orders.drills() == []
    again = agentctl("drill", "stop", "--all")
    assert (again.exit_code, again.stderr) == (0, "no drill is running\n")


def test_a_slow_rehearsal_as_json(harness: AdminHarness, agentctl: Agentctl) -> None:
    """The document has the drill's id and the answers of the engines."""
    harness.engine("0", **_ABLE)
    result = agentctl("inject-fault", "0", "--mode", "slow", "--delay", "2s", "--rate", "1", "-o", "json")
    drill = json.loads(result.stdout)
    assert drill["id"] == harness.orders.drills()[0].id
    assert (drill["spec"]["delay"], drill["engines"][0]["state"]) == ("2s", "acknowledged")
    _, row = _cells(agentctl("drill", "list", "-o", "wide"))
    assert row[1:4] == ["slow by 2.0s", "100%", "all"]


def test_an_engine_that_refuses_the_push_is_shown(harness: AdminHarness, agentctl: Agentctl) -> None:
    """An engine's refusal exits with 1."""
    harness.engine("0", refuse=lambda push: "not today" if push.drills else "", **_ABLE)
    result = agentctl(*_FAULT, "--all")
    assert result.exit_code == 1
    assert "is not in force in 1 of 1 engine: 0 refused it" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "name engines, give --selector, or confirm with --all"),
        (
            ["--all", "--delay", "1s"],
            2,
            "--mode slow needs --delay, such as 2s; other modes take none",
        ),
        (
            ["--all", "--channel", "ec"],
            2,
            "mode handshake cannot be injected in channel ec; use one of probe, transfer, load, slow",
        ),
        (["--all", "--rate", "2"], 2, "rate 2 is not a share of attempts"),
        (["--all", "--ttl", "2h"], 2, "the ttl of a fault drill is 2h; give one from 1s to 1h"),
        (["--all"], 1, "engine 0 does not allow faults: not started with PENSTOCK_ALLOW_FAULTS=1"),
    ],
)
def test_a_rehearsal_that_cannot_be_is_a_sentence(
    harness: AdminHarness, agentctl: Agentctl, arguments: list[str], code: int, sentence: str
) -> None:
    """Each invalid drill has its exit code and sentence."""
    harness.engine("0", supported=_ABLE["supported"])
    result = agentctl(*_FAULT, *arguments)
    assert (result.exit_code, sentence in result.stderr) == (code, True), result.stderr


def test_the_channel_of_a_rehearsal_is_that_of_its_mode(harness: AdminHarness, agentctl: Agentctl) -> None:
    """The help lists the modes of each channel; each mode is accepted without ``--channel``."""
    harness.engine("0", **_ABLE)
    usage = " ".join(agentctl("inject-fault", "--help").stdout.split())
    assert (
        "kv: handshake, setup, transfer, exception, notification, slow; ec: probe, transfer, load, slow."
        in usage
    )
    for modes in DRILL_MODES.values():
        for mode in modes:
            delay = ("--delay", "1s") if mode == SLOW else ()
            begun = agentctl("inject-fault", "0", "--mode", mode, *delay)
            assert begun.exit_code == 0, begun.stderr
    assert {drill.channel for drill in harness.orders.drills()} == {CHANNEL_KV, CHANNEL_EC}


@pytest.mark.parametrize(
    "command",
    [
        ("describe", "engine"),
        ("get", "policy", "--effective"),
        ("pause", "dp/1"),
        ("resume",),
        ("quarantine", "add", _PEER),
        ("quarantine", "lift", _PEER),
        ("quarantine", "list"),
        ("inject-fault", "--mode", "setup"),
    ],
)
def test_a_servers_name_is_answered_with_its_engines(
    harness: AdminHarness, agentctl: Agentctl, command: tuple[str, ...]
) -> None:
    """A server's name in place of an engine's is an error that lists its engines; nothing is ordered."""
    for engine in ("0", "1"):
        harness.source(engine, server="dp")
    result = agentctl(*command, "dp")
    assert (result.exit_code, result.stderr) == (
        1,
        "agentctl: 'dp' is a server; name one of its engines: dp/0, dp/1\n",
    )
    assert agentctl("describe", "engine", "pd/0").stderr.endswith("did you mean dp/0?\n")
    assert not harness.pauses.is_paused(EngineKey("dp", "1"))


@pytest.mark.parametrize("word", ["add", "lift"])
def test_a_slip_in_the_selector_of_a_quarantine_is_shown(
    harness: AdminHarness, agentctl: Agentctl, word: str
) -> None:
    """A selector that matches no engine exits with 1."""
    harness.engine("0", **_ABLE)
    result = agentctl("quarantine", word, _PEER, "-l", "role=decod")
    assert (result.exit_code, "no engine matches the selector" in result.stderr) == (1, True)
    assert harness.orders.quarantines() == []


def test_stop_wants_to_know_what(agentctl: Agentctl) -> None:
    """``drill stop`` needs ids or --all, not both; an unknown id is named."""
    for arguments in ((), ("d1", "--all")):
        assert agentctl("drill", "stop", *arguments).exit_code == 2
    result = agentctl("drill", "stop", "d1")
    assert (result.exit_code, "no drill 'd1' is running" in result.stderr) == (1, True)


def test_how_long_a_quarantine_lasts() -> None:
    """The end is a time, the next request, or a new engine id."""
    soon, due = (
        admin.Quarantine(state=QUARANTINE_STATE_OPEN, until={"seconds": seconds}) for seconds in (160, 90)
    )
    never = admin.Quarantine(state=QUARANTINE_STATE_HALF_OPEN)
    table = order_rows.quarantines([soon, due, never], now=100.0)
    assert [row[4] for row in table.rows] == ["in 60s", "next request", "its engine id changes"]


def test_where_else_it_is_seen(harness: AdminHarness, agentctl: Agentctl) -> None:
    """Engines, peers and audit log show quarantines; ``--peer`` finds events of a peer that delays others."""
    core = harness.source("0")
    harness.engine("0", **_ABLE)
    status = {"peer": {"address": _PEER}, "connected": True, "quarantine": QUARANTINE_STATE_OPEN}
    harness.snapshot(core, Snapshot(engine={"faults_allowed": True}, peers=[status]))
    text = agentctl("describe", "engine", "0").stdout
    assert "Fault drills: allowed (PENSTOCK_ALLOW_FAULTS=1)" in text
    assert f"{_PEER}: 0 ok, 0 failed; quarantined\n" in text
    assert "connected, quarantined" in agentctl("get", "peers", "-o", "wide").stdout
    agentctl("quarantine", "lift", _PEER, "--reason", "INC-7")
    _, entry = _cells(agentctl("get", "audit", f"peer {_PEER}"))
    assert entry[2:4] == ["quarantine-lift", f"peer {_PEER}"]
    assert entry[5] == "INC-7"
    delayed = event(
        "transfer_delayed",
        "req-1",
        peer={"address": "well:1"},
        caused_by_peer={"address": _PEER},
        delay_nano=5 * 10**9,
    )
    harness.append(core, delayed)
    _, line = _cells(agentctl("get", "events", "--peer", _PEER))
    assert line[2:6] == ["transfer_delayed", "req-1", "well:1", f"held up 5.0s by {_PEER}"]
