"""agentctl's views of engines, peers, events and traces, against the real admin service."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml
from penstock.agent.traces.spans import semconv
from penstock.agent.views.peers import peer_rows
from penstock.agent.views.requests import MATTERS
from penstock.agent.views.text import printable
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import wait_until
from tests.support.agent.batches import PEER, TIME, sample_batch, transfer_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]


@pytest.fixture
def filled(harness: AdminHarness) -> AdminHarness:
    """One subscribed engine with a failure, a transfer and a snapshot."""
    core = harness.source("0")
    harness.append(core, transfer_failure("req-1", error_text="connection refused"))
    harness.append(core, batch=sample_batch(["req-2"]))
    harness.snapshot(
        core,
        Snapshot(
            engine={"model": "tiny", "kv_connector": "NixlConnector", "kv_load_failure_policy": "fail"},
            policy={"kv_action": "fail", "last_error": "bad"},
            in_flight=[
                {"channel": 1, "peer": {"address": PEER}, "count": 2, "oldest_start_time_unix_nano": TIME}
            ],
            deferred=[
                {"reason": 2, "peer": {"address": PEER}, "count": 3, "oldest_start_time_unix_nano": TIME}
            ],
            leases={"count": 1, "blocks": 7, "oldest_start_time_unix_nano": TIME},
            eplb={
                "enabled": True,
                "asynchronous": True,
                "step_interval": 3000,
                "window_size": 1000,
                "communicator": "nixl",
            },
            hooks=[
                {
                    "name": "scheduler",
                    "installed": True,
                    "missing_parts": [
                        {"name": "waiting", "lost": "time in the queue", "reason": "no such list"},
                        {"name": "lease_expiry", "lost": "why a lease ended", "reason": "no _reqs_to_send"},
                    ],
                },
                {"name": "eplb", "installed": False, "reason": "no such method"},
            ],
            emitter={"produced_entries": 9, "pending_entries": 4},
        ),
    )
    harness.engine("0")
    return harness


def test_the_table_of_engines(filled: AdminHarness, agentctl: Agentctl) -> None:
    """One line an engine; ``-o wide`` has more columns."""
    header, line = agentctl("get", "engines").stdout.splitlines()
    assert header.split() == [
        "ENGINE", "ROLE", "STATUS", "POLICY", "KV-ACTION", "EC-ACTION", "IN-SYNC", "DEFERRED", "IN-FLIGHT", "LAST-SEEN",
    ]  # fmt: skip
    assert line.replace("vllm's own", "own").split()[:9] == [
        "0",
        "decode",
        "connected",
        "own",
        "fail",
        "-",
        "yes",
        "3",
        "2",
    ]
    assert "tiny" in agentctl("get", "engine", "-o", "wide").stdout
    assert "\x1b" not in line
    empty = agentctl("get", "engines", "-l", "role=none")
    assert (empty.exit_code, empty.stdout, empty.stderr) == (
        0,
        "",
        "no engine matches 'role=none'; omit --selector to list all\n",
    )


def test_json_has_words_for_enums(filled: AdminHarness, agentctl: Agentctl) -> None:
    """The documented shape: camelCase, enum words, false and 0 included."""
    engine = json.loads(agentctl("get", "engines", "-o", "json").stdout)["engines"][0]
    assert (engine["role"], engine["connected"], engine["paused"], engine["inSync"]) == (
        "decode",
        True,
        False,
        True,
    )
    assert engine["key"] == {"server": "", "engine": "0"}
    assert engine["inFlight"][0]["channel"] == "kv"
    assert engine["inFlight"][0]["oldestStartTime"] == "2025-06-15T15:06:40.000000000Z"
    assert engine["labels"] == {"role": "decode"}
    assert int(engine["sources"][0]["epoch"])
    assert engine["sources"][0]["hooks"][0]["missingParts"][0] == {
        "name": "waiting",
        "lost": "time in the queue",
        "reason": "no such list",
    }
    assert engine["lastSeen"].endswith("Z")
    assert yaml.safe_load(agentctl("get", "engines", "-o", "yaml").stdout)["engines"][0]["role"] == "decode"


def test_the_table_of_peers(filled: AdminHarness, agentctl: Agentctl) -> None:
    """Transfers, failures by mode and kind, transfers in flight."""
    header, line = agentctl("get", "peers").stdout.splitlines()
    assert header.split() == ["ENGINE", "PEER", "ADDRESS", "NOW", "SINCE", "WAIT-1M"]
    assert line.split()[:4] == ["0", "-", PEER, "hanging"]
    header, line = agentctl("get", "peers", "-o", "wide").stdout.splitlines()
    cells = dict(zip(header.split(), re.split(r" {3,}", line), strict=True))
    assert (cells["OK"], cells["FAILED"], cells["IN-FLIGHT"]) == ("1", "1", "2")
    assert cells["FAILURES"] == "handshake/refused 1"


def test_the_table_of_peers_fits_a_terminal() -> None:
    """Of 120 columns, with the names and addresses that a cluster has."""
    now = 1_750_000_000.0
    window = {"count": 9, "p50_seconds": 0.00085, "p99_seconds": 0.0012}
    items = [
        admin.PeerSummary(
            key={"server": "decode-7d9c8b6f5d-x2x4q", "engine": "0"},
            engine={"server": "prefill-7d9c8b6f5d-x2x4q", "engine": "0"} if condition % 2 else None,
            peer={"address": "10.244.133.207:5600", "engine_id": "a" * 36},
            condition=condition,  # type: ignore[arg-type]
            condition_reason="x" * 200,
            waits={"last_minute": window},
        )
        for condition in admin.PeerCondition.values()
    ]
    for item in items:
        item.condition_since.FromSeconds(int(now) - 119 * 60)
    table = peer_rows(items, now)
    cells = [table.narrow().headers, *table.narrow().rows]
    widths = [
        max(len(click.unstyle(printable(cell))) for cell in column) for column in zip(*cells, strict=True)
    ]
    assert sum(widths) + 3 * (len(widths) - 1) <= 120
    assert {row[1] for row in table.rows} == {"prefill-7d9c8b6f5d-x2x4q/0", "-"}
    assert {row[2] for row in table.rows} == {"10.244.133.207:5600"}
    assert len(table.headers) > len(table.narrow().headers)


@pytest.mark.parametrize(("least", "shown"), [(None, "1.1s"), (1.0, "1.1s"), (0.1, "≤1.1s"), (0.0, "≤1.1s")])
def test_a_mean_of_transfers_that_were_seen_late(least: float | None, shown: str) -> None:
    """It is an upper bound where they may have been much shorter; an older agent does not say."""
    item = admin.PeerSummary(
        transfers_ok=3, mean_duration_seconds=1.1, mean_duration_at_least_seconds=least, key={"engine": "0"}
    )
    table = peer_rows([item], 1e9)
    assert dict(zip(table.headers, table.rows[0], strict=True))["MEAN"] == shown


def test_the_table_of_events(filled: AdminHarness, agentctl: Agentctl) -> None:
    """Time, engine, event and peer."""
    header, line = agentctl("get", "events", "--mode", "handshake").stdout.splitlines()
    assert header.split() == ["AGE", "ENGINE", "KIND", "REQUEST", "PEER", "WHAT"]
    assert line.split()[1:5] == ["0", "transfer_failure", "req-1", PEER]
    assert "kv handshake/refused: connection refused" in line
    event = json.loads(agentctl("get", "events", "-o", "json").stdout)["events"][0]["event"]
    assert event["transferFailure"]["mode"] == "handshake"
    assert "requestClosed" not in event
    wrong = agentctl("get", "events", "--kind", "failure")
    assert wrong.exit_code == 2
    assert "'failure' is not a kind of event; use one of transfer_failure, " in wrong.stderr
    filled.append(filled.source("0"), transfer_failure("req-3"))
    assert "older events are not shown" in agentctl("get", "events", "--limit", "1").stderr


def test_an_engine_in_full(filled: AdminHarness, agentctl: Agentctl) -> None:
    """Facts, policy, deferred requests, peers, processes and problems."""
    text = agentctl("describe", "engine", "0").stdout
    for part in (
        "Engine: 0",
        "KV load failure policy of vLLM: fail",
        "On a failed KV load: fail",
        "Last error: bad",
        f"3 for remote_kv from {PEER}, oldest since ",
        f"2 kv with {PEER}, oldest since ",
        "Leases: 1 of 7 blocks, oldest ",
        "Expert balancing: asynchronous, every 3000 steps, by the load of the last 1000, by nixl",
        f"{PEER}: 1 ok, 1 failed; handshake/refused 1, last ",
        "hook eplb is not installed: no such method",
        "1 of 2 hooks installed",
        "without: time in the queue, why a lease ended (scheduler)",
        "entries: 9 produced, 2 stored, 4 pending, 0 dropped",
        "3 entries are unaccounted for; please report this",
    ):
        assert part in text
    missing = agentctl("describe", "engine", "9")
    assert (missing.exit_code, missing.stderr) == (
        1,
        "agentctl: there is no engine '9'; 'agentctl get engines' lists them\n",
    )
    agentctl("set-policy", "p", "--all", "--kv-load-failure", "auto", "--wait")
    agentctl(
        "set-policy",
        "q",
        "--all",
        "--kv-load-failure",
        "fail",
        "-l",
        "role=decode",
        "--priority",
        "950",
        "--ttl",
        "1h",
    )
    text = agentctl("describe", "engine", "0").stdout
    assert "kvLoadFailure.action = fail, by policy q" in text
    assert re.search(r"in 5\dm|in 60m: kvLoadFailure.action=auto", text)
    document = json.loads(agentctl("describe", "engine", "0", "-o", "json").stdout)
    assert document["leases"]["blocks"] == 7
    assert document["effectivePolicy"]["fields"][0]["newPolicy"] == "q"


def test_a_request_as_a_tree_and_as_a_sentence(filled: AdminHarness, agentctl: Agentctl) -> None:
    """The tree has span attributes; the sentence names peer and cause."""
    lines = agentctl("trace", "req-1").stdout.splitlines()
    assert lines[0].startswith("trace ")
    assert lines[1].startswith(("├─ penstock.request", "└─ penstock.request"))
    assert "mode=handshake" in lines[1]
    assert f"peer={PEER}" in lines[1]
    assert PEER in agentctl("explain", "req-1").stdout
    assert json.loads(agentctl("trace", "req-1", "-o", "json").stdout)["spans"][0]["kind"] == "internal"
    for command in ("trace", "explain"):
        missing = agentctl(command, "nothing")
        assert missing.exit_code == 1
        assert missing.stderr.startswith("agentctl: ")


def test_the_attributes_of_a_tree_exist() -> None:
    """Every attribute that the tree prints is one that spans have."""
    assert set(MATTERS) <= {
        value for key, value in vars(semconv).items() if key.isupper() and isinstance(value, str)
    }


def test_watch_prints_events_as_they_come(filled: AdminHarness, agentctl: Agentctl) -> None:
    """One object a line, ``--count`` of them."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(agentctl("watch", "-o", "json", "--count", "2")))
    thread.start()
    # It has begun when it waits for the log to move.
    wait_until(lambda: filled.service._tail.notice.waiting, "the watch has begun")
    filled.append(filled.source("0"), transfer_failure("r1"), transfer_failure("r2"), transfer_failure("r3"))
    thread.join(60)
    events = [json.loads(line)["event"]["requestId"] for line in results[0].stdout.splitlines()]
    assert events == ["r1", "r2"]
    old = agentctl("watch", "--since", "99999d", "--kind", "transfer_failure", "--count", "1")
    assert "req-1" in old.stdout


def test_every_kind_of_event_has_its_words(filled: AdminHarness, agentctl: Agentctl) -> None:
    """An empty body of each kind has a line."""
    kinds = [field.name for field in Event.DESCRIPTOR.oneofs_by_name["body"].fields]
    bodies: list[dict[str, Any]] = [{kind: {}} for kind in kinds]
    filled.append(
        filled.source("0"), *(Event(time_unix_nano=TIME, rehearsal=True, **body) for body in bodies)
    )
    lines = agentctl("get", "events", "--limit", str(len(kinds))).stdout.splitlines()[1:]
    assert [line.split()[2] for line in lines] == kinds
    assert all("[drill]" in line for line in lines)


def test_a_selector_that_fits_no_engine(filled: AdminHarness, agentctl: Agentctl) -> None:
    """The sentence names the selector."""
    for what in ("engines", "peers"):
        result = agentctl("get", what, "-l", "role=nope")
        assert result.stderr == "no engine matches 'role=nope'; omit --selector to list all\n"


def test_a_request_id_with_control_characters(filled: AdminHarness, agentctl: Agentctl) -> None:
    """No view prints a forged line or an escape code."""
    filled.append(filled.source("0"), transfer_failure("evil\n\x1b[2J"))
    for command in (("get", "events"), ("trace", "evil"), ("explain", "evil")):
        out = agentctl(*command).stdout
        assert "\x1b[2J" not in out
        assert "evil\n" not in out


def test_any_time_ago_is_a_time(filled: AdminHarness, agentctl: Agentctl) -> None:
    """``--since`` may reach before 1970."""
    result = agentctl("get", "events", "--since", "99999999d")
    assert (result.exit_code, result.stderr, "req-1" in result.stdout) == (0, "", True)
