"""The replay's clock and arithmetic, and what it reads of callgrind and strace."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay import children
from benchmarks.replay.costs import Added, Play, added, parts, share, throughput
from benchmarks.replay.reports import Dump, parse_calls, parse_dump
from benchmarks.replay.scenarios import SCENARIOS, STEPS
from benchmarks.replay.traffic import Arrival, Recorded, Recording, parse, timetable

BUNDLE = Path(__file__).parent.parent / "golden" / "incidents" / "nothing-wrong.bundle"
TRACE = """\
execve("python", ["python"], 0x7ffc /* 20 vars */) = 0
access("/penstock-replay/load/with/0/on", F_OK) = -1 ENOENT (No such file or directory)
futex(0x7f0000, FUTEX_WAKE_PRIVATE, 1) = 1
--- SIGCHLD {si_signo=SIGCHLD} ---
write(3, "x", 1)                        = 1
access("/penstock-replay/load/with/0/off", F_OK) = -1 ENOENT (No such file or directory)
write(2, "y", 1)                        = 1
access("/penstock-replay/load/with/0/on", F_OK) = -1 ENOENT (No such file or directory)
getpid()                                = 7
access("/penstock-replay/load/with/0/off", F_OK) = -1 ENOENT (No such file or directory)
access("/penstock-replay/load/without/0/on", F_OK) = -1 ENOENT (No such file or directory)
access("/penstock-replay/load/without/0/off", F_OK) = -1 ENOENT (No such file or directory)
"""
DUMP = """\
version: 1
desc: Trigger: Client Request: load/with/0
events: Ir
summary: 1200
fn=(1) _PyEval_EvalFrameDefault
10 5
cfn=(2) _PyObject_Malloc
calls=3 20
10 30
cfn=(2)
calls=4 20
11 40
cfn=(3) _PyObject_Free
calls=9 20
12 90
fn=(2)
20 70
cfn=(4) _PyObject_Malloc'2
calls=1 20
21 5
totals: 1200
"""


def _play(steps: int, requests: int, transfers: int, counted: float) -> Play:
    return Play(steps, requests, transfers, 0, counted)


def _closed(server: str, name: str, arrival: str, *, end: str, first: str, output: int) -> dict[str, Any]:
    body = {"arrivalTime": arrival, "firstTokenTime": first, "promptTokens": 55, "outputTokens": output}
    event = {"time": end, "requestId": name, "requestClosed": body}
    return {"key": {"server": server}, "event": event}


def _at(seconds: float) -> str:
    return f"2026-11-24T21:28:{seconds:012.9f}Z"


def test_recorded_requests_have_their_waits_and_leases():
    """Of one server, in the order of arrival, from the end of the handshake on; a step is the median of the requests' own."""
    events = [
        {"key": {"server": "b"}, "event": {"time": _at(9), "handshake": {"endTime": _at(2)}}},
        _closed("a", "early", _at(1), first=_at(2), end=_at(30), output=2),
        _closed("a", "late", _at(4.5), first=_at(5), end=_at(5.02), output=11),
        _closed("a", "one", _at(3), first=_at(3.5), end=_at(3.5), output=1),
        _closed("b", "other", _at(3), first=_at(3.5), end=_at(4), output=2),
        {
            "key": {"server": "a"},
            "event": {
                "time": _at(4),
                "requestId": "one",
                "leaseClosed": {"startTime": _at(3.75)},
            },
        },
        {
            "key": {"server": "a"},
            "event": {
                "time": _at(5),
                "requestId": "late",
                "deferralEnd": {"reason": "remote_kv", "duration": "0.004s"},
            },
        },
    ]
    found = parse(events, "a")
    assert found == Recording(
        (Recorded(0, 55, 1, lease=250_000), Recorded(1_500_000, 55, 11, wait=4000)), 2000.0
    )
    with pytest.raises(ValueError, match="no request of 'c'"):
        parse(events, "c")


def test_the_virtual_clock_counts_steps():
    """Two recordings at once are half a period apart; times become steps, of which a wait takes one at least."""
    recording = Recording(
        (Recorded(0, 55, 12, wait=3000), Recorded(10_000, 50, 1, wait=100, lease=9000)), 1000.0
    )
    once = timetable(recording, streams=1, steps=25)
    assert once == [
        Arrival(0, 55, 12, wait=3),
        Arrival(10, 50, 1, wait=1, lease=9),
        Arrival(20, 55, 12, wait=3),
    ]
    assert [each.step for each in timetable(recording, streams=2, steps=25)] == [0, 0, 10, 10, 20, 20]
    single = Recording((Recorded(0, 55, 12), Recorded(10_000, 50, 1), Recorded(20_000, 50, 1)), 1000.0)
    assert [each.step for each in timetable(single, streams=2, steps=10)] == [0, 5]


def test_scenarios_play_what_was_recorded(tmp_path):
    """The stored bundle has both engines' requests, with waits on one side and leases on the other."""
    events = tmp_path / "events.json"
    children.record(BUNDLE, events)
    recorded = json.loads(events.read_text())["events"]
    recordings = {server: parse(recorded, server) for server in ("prefill", "decode")}
    by_kind = {each.kind: each.arrivals(recordings) for each in SCENARIOS}
    assert len(by_kind["decode"]) == 8
    assert all(each.wait for each in by_kind["load"])
    assert 0 < sum(each.lease is not None for each in by_kind["lease"]) < len(by_kind["lease"])
    assert {each.output for each in by_kind["short"]} == {1, 4}
    assert all(each.lease is None and each.prompt >= 64 for each in by_kind["picture"])
    assert all(0 <= each.step < STEPS for arrivals in by_kind.values() for each in arrivals)


def test_a_dump_has_its_label_total_and_allocations():
    """Names are given once and then by number; a recursive call's has a suffix. A dump at the end was not asked for."""
    assert parse_dump(DUMP.splitlines()) == Dump("load/with/0", 1200, 8)
    assert parse_dump(["desc: Trigger: Program termination", "totals: 7"]) is None
    with pytest.raises(ValueError, match="no total"):
        parse_dump(DUMP.splitlines()[:3])


def test_system_calls_count_between_their_marks():
    """Neither the marks count nor signals nor what is outside; a label without any has zero."""
    assert parse_calls(TRACE.splitlines()) == {"load/with/0": 3, "load/without/0": 0}


def test_parts_are_differences():
    """A step, a request and a transfer that were put in come out."""
    step, request, transfer = 5.0, 70.0, 900.0
    found = {
        "decode": Added(_play(300, 0, 0, 0), 300 * step),
        "short": Added(_play(298, 168, 0, 0), 298 * step + 168 * request),
        "load": Added(_play(310, 90, 80, 0), 310 * step + 90 * request + 80 * transfer),
    }
    got = parts(found, idle="decode", requests="short", transfers=("load",))
    assert (got.step, got.request, got.transfer["load"]) == pytest.approx((step, request, transfer))
    assert found["load"].by_step == pytest.approx(step + 90 / 310 * request + 80 / 310 * transfer)


def test_added_is_of_the_medians():
    """With less without; plays of other traffic are refused."""
    theirs = [_play(10, 1, 0, each) for each in (100, 900, 110)]
    assert added([_play(10, 1, 0, each) for each in (150, 140, 700)], theirs).total == 40
    with pytest.raises(ValueError, match="differ"):
        added([_play(11, 1, 0, 5)], theirs)


def test_shares_of_a_step():
    """20 µs are one per cent of 2 ms, and cost nearly as much throughput."""
    assert share(20, 2) == pytest.approx(1.0)
    assert throughput(20, 2) == pytest.approx(1 / 1.01)


@pytest.mark.long
@pytest.mark.parametrize("meter", ["clock", "blocks"])
def test_plays_are_the_same_with_and_without(meter, tmp_path):
    """All scenarios end on vLLM's scheduler, in the same steps on both sides; only Penstock's emits."""
    events = tmp_path / "events.json"
    children.record(BUNDLE, events)
    plays = children.measured(meter, events, 1)
    for scenario in SCENARIOS:
        (ours,), (theirs,) = plays[scenario.kind, "with"], plays[scenario.kind, "without"]
        sizes = (ours.steps, ours.requests, ours.transfers)
        assert sizes == (theirs.steps, theirs.requests, theirs.transfers)
        assert theirs.entries == 0
        assert (ours.entries > 0) == bool(scenario.server)
        assert (ours.transfers > 0) == (scenario.kind in {"load", "lease", "picture"})
        assert meter != "clock" or theirs.counted > 0


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_callgrind_counts_between_on_and_off(tmp_path):
    """A loop of ten times the length has ten times the instructions; what is outside is in neither."""
    from benchmarks.replay.meters import build

    build()
    program = (
        "from benchmarks.replay.meters import meter\n"
        "m = meter('callgrind')\n"
        "for label, n in (('none', 0), ('short', 1000), ('long', 10000)):\n"
        "    m.begin(label); sum(range(5000)); m.on(); sum(range(1000, 1000 + n)); m.off(); m.end(label)\n"
    )
    options = ("--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no")
    subprocess.run(
        ["valgrind", *options, f"--callgrind-out-file={tmp_path}/out", sys.executable, "-c", program],
        check=True,
        capture_output=True,
    )
    dumps = [parse_dump(path.read_text().splitlines()) for path in tmp_path.glob("out*")]
    found = {dump.label: dump.instructions for dump in dumps if dump is not None}
    none, short, long = (found[label] for label in ("none", "short", "long"))
    assert 0 < none < short
    assert 9 < (long - none) / (short - none) < 11
