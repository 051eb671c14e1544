"""``make scale``: its load names what it says, its document is a function of the results, its agent's clocks go forward."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from penstock.proto.v1.ingest_pb2 import Batch

from benchmarks.harness.results import Section, Spread
from benchmarks.load.mixes import FULL
from benchmarks.load.shifted_agent import ClockFile
from benchmarks.scale import answers
from benchmarks.scale.answers import ANSWERS, oldest_kept, rows_of
from benchmarks.scale.document import BEGIN, END, generated, inserted
from benchmarks.scale.fleet import Fleet, peer_names
from benchmarks.scale.requests import REQUESTS, templates, transfers
from tests.support.agent.agent import running_agent, wait_until
from tests.support.agent.batches import TIME

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
RENAMED = np.random.default_rng(1)


def _parsed(body: bytes) -> Batch:
    return Batch.FromString(body)


def test_each_time_a_batch_is_sent_it_has_other_requests_and_the_same_entries() -> None:
    """All that names a request is renamed alike, the client's id too; what is returned is the first of them."""
    (template,) = templates(peer_names(3), TIME)
    (first, name), (second, _) = template.renamed(RENAMED), template.renamed(RENAMED)
    batches = [_parsed(first), _parsed(second)]
    ids = [{event.request_id for event in batch.events} for batch in batches]
    assert [len(found) for found in ids] == [REQUESTS, REQUESTS]
    assert not ids[0] & ids[1]
    assert name in ids[0]
    for batch, found in zip(batches, ids, strict=True):
        assert {batch.strings[at] for at in batch.transfers.request_id} < found
        for event in batch.events:
            if event.HasField("request_closed"):
                assert event.request_id.startswith(f"{event.request_closed.external_request_id}-")


@pytest.mark.parametrize("count", [3, REQUESTS, REQUESTS + 1])
def test_a_pass_reads_from_each_peer(count: int) -> None:
    """In full batches; the peers of transfers are those of their requests."""
    peers = peer_names(count)
    bodies = [_parsed(template.renamed(RENAMED)[0]) for template in templates(peers, TIME)]
    ended = [event.deferral_end.peer.address for body in bodies for event in body.events]
    assert {address for address in ended if address} | {
        event.transfer_failure.peer.address
        for body in bodies
        for event in body.events
        if event.HasField("transfer_failure")
    } == set(peers)
    for body in bodies:
        waited = {each.request_id: each.deferral_end.peer.address for each in body.events}
        for request, peer in zip(body.transfers.request_id, body.transfers.peer, strict=True):
            assert waited[body.strings[request]] in ("", body.strings[peer])


def test_a_batch_that_fills_has_a_request_for_each_transfer() -> None:
    """As many as a full batch has entries."""
    body = _parsed(transfers("10.0.0.1:1", TIME).renamed(RENAMED)[0])
    assert len({body.strings[at] for at in body.transfers.request_id}) == FULL


def test_the_oldest_request_that_the_log_has_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log deletes from the oldest on."""
    names = [str(number) for number in range(10)]
    for first in range(10):
        monkeypatch.setattr(
            answers, "_run", lambda _, __, name, first=first: "no request" if int(name) < first else ""
        )
        agent: Any = None
        assert oldest_kept(agent, names) == str(first)


def test_engines_restart_and_are_replaced() -> None:
    """A restart is the same engine; one that takes another's place has a name that was never there."""
    with running_agent() as agent:
        with Fleet(agent.listen, time.time_ns, 2, peer_names(3)) as fleet:
            fleet.tell()
            fleet.restart(0)
            fleet.restart(1, renamed=True)
            fleet.tell(1)
            fleet.fill(2)
            assert len(fleet.asked) == 2
            assert (agent.metric("penstock_transfers_total", result="ok") or 0) > 4 * FULL
            wait_until(
                lambda: (
                    (
                        agent.metric("penstock_engine_connected", engine="0"),
                        agent.metric("penstock_engine_connected", engine="1"),
                        agent.metric("penstock_engine_connected", engine="2"),
                    )
                    == (1, 0, 1)
                ),
                "one engine took the place of another",
            )
        assert [answers._run(agent, "explain", name) for name in fleet.asked] == ["", ""]


_CLOCKS = """
import asyncio, json, sys, time
from pathlib import Path
from benchmarks.load.shifted_agent import ClockFile, install
clock = ClockFile(Path(sys.argv[1]))
install(clock.path)
loop = asyncio.new_event_loop()
read = lambda: [time.time(), time.time_ns() / 1e9, time.monotonic(), loop.time()]
before = read()
clock.forward(1e9)
print(json.dumps([round((after - was) / 1e9, 3) for was, after in zip(before, read())]))
loop.close()
"""


def test_the_agents_clocks_go_forward_and_its_timers_do_not(tmp_path: Path) -> None:
    """All clocks at once; the event loop keeps the real time, so that no stream looks silent."""
    shown = subprocess.run(
        [sys.executable, "-c", _CLOCKS, str(tmp_path / "clock")], cwd=ROOT, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert json.loads(shown.stdout) == [1, 1, 1, 0]


def test_a_clock_file_begins_without_a_shift(tmp_path: Path) -> None:
    """Two shifts add up."""
    clock, moments = ClockFile(tmp_path / "clock"), []
    for seconds in (0, 1e6, 1e6):
        clock.forward(seconds)
        moments.append(clock.now())
    assert [round((after - before) / 1e15) for before, after in pairwise(moments)] == [1, 1]


def _section(name: str, points: Mapping[int, float], circumstances: Mapping[str, str]) -> Section:
    """Return a variable of which each answer has the same numbers, as shares of its bound."""
    rows = [
        row
        for at, share in points.items()
        for row in rows_of(
            {
                what: Spread.of(
                    [share * answer.bound * 0.9, share * answer.bound, share * answer.bound * 1.2]
                )
                for answer in ANSWERS
                for what in answer.rows
            },
            str(at),
        )
    ]
    return Section(name, name, (), rows, circumstances)


SECTIONS = [
    _section("engines", {1: 0.1, 64: 0.5}, {"Measured": "today", "on": "a machine"}),
    _section("peers", {10: 0.2, 1000: 0.95}, {"Measured": "yesterday", "on": "a machine"}),
]


def test_the_document_states_bounds_and_how_each_answer_grows() -> None:
    """Of each bound the worst median, where it was, and whether all repetitions held it; of each row all medians."""
    text = generated(SECTIONS)
    assert "| A scrape | ≤ 5.000 s | 4.750 s | 1,000 peers | not decided |\n" in text
    assert "- **engines** each with 1,000 peers; " in text
    assert text.endswith("\n<sub>Measured today, yesterday; on a machine</sub>\n")
    assert "| median, at | 1/64 engines | 10/1,000 peers |\n" in text
    assert "| A scrape, s | 0.5/2.500 | 1.000/4.750 |\n" in text
    assert "| `agentctl explain`, the newest request, s | 0.1/0.5 | 0.2/0.95 |\n" in text
    held = generated(SECTIONS[:1])
    assert "| A scrape | ≤ 5.000 s | 2.500 s | 64 engines | holds |\n" in held
    broken = generated([_section("engines", {1: 2.0}, {})])
    assert "| A scrape | ≤ 5.000 s | 10.0 s | 1 engines | does not hold |\n" in broken


def test_only_what_is_between_the_marks_is_written() -> None:
    """Writing it twice changes nothing; a document without marks is refused."""
    once = inserted(f"before\n{BEGIN}\nold\n{END}\nafter\n", SECTIONS)
    assert once.startswith(f"before\n{BEGIN}\n")
    assert once.endswith(f"{END}\nafter\n")
    assert "old" not in once.splitlines()
    assert inserted(once, SECTIONS) == once
    with pytest.raises(ValueError, match="lacks"):
        inserted(f"{END}\n{BEGIN}", SECTIONS)
