"""Timestamps of 1970 and of 2554 from an engine: every command answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.proto.v1 import snapshot_pb2
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN, Event
from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.batches import PEER, deferral_end, deferral_start, event
from tests.support.agent.stories import (
    DECODE,
    closed_decode,
    failed_load,
    fill,
    handshake,
    lease,
    outcome,
    probe,
    sample,
)
from tests.support.variants import product

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result
    from penstock.agent.batch.rows import ProbeSample, TransferSample

    from tests.support.agent.admin_server import AdminHarness

MOST = (1 << 64) - 1
MOMENTS = (0, 1, 1 << 63, MOST)
COMMANDS = (
    ("trace", DECODE),
    ("explain", DECODE),
    ("get", "requests"),
    ("get", "requests", "--deferred"),
    ("get", "requests", "--outcome", "recomputed", "--since", "1h"),
    ("get", "events"),
    ("get", "events", "--since", "1h"),
    ("get", "peers"),
    ("get", "engines"),
    ("describe", "engine", "0"),
    ("quarantine", "list"),
)


def _entries(moment: int, length: int) -> list[Event | TransferSample | ProbeSample]:
    """Return one entry of each kind at *moment*; every duration is *length*."""
    rebalance: dict[str, Any] = {
        "start_time_unix_nano": moment,
        "duration_nano": length,
        "pause_nano": length,
        "layers": [{"start_time_unix_nano": moment, "duration_nano": length, "experts_received_locally": 1}],
    }
    return [
        deferral_start(DECODE, time_ns=moment),
        deferral_start("waits", time_ns=moment),
        deferral_end(DECODE, start_ns=MOST - moment, time_ns=moment),
        failed_load(start_time_unix_nano=MOST - moment, time_ns=moment),
        outcome(DECODE, time_ns=moment),
        handshake(DECODE, queued_time_unix_nano=moment, start_time_unix_nano=MOST, end_time_unix_nano=moment),
        lease(DECODE, time_ns=moment),
        event("eplb_rebalance", time_ns=moment, **rebalance),
        event("transfer_delayed", DECODE, time_ns=moment, channel=1, delay_nano=length),
        event("blocks_pinned", DECODE, time_ns=moment, channel=1, since_time_unix_nano=MOST - moment),
        event("policy_applied", time_ns=moment, received_time_unix_nano=MOST - moment),
        sample(DECODE, end_time_unix_nano=moment, duration_nano=length),
        probe(DECODE, end_time_unix_nano=moment, duration_nano=length),
        closed_decode(time_ns=moment, arrival_time_unix_nano=MOST - moment),
    ]


def _snapshot(moment: int) -> Snapshot:
    flow: dict[str, Any] = {
        "count": 1,
        "peer": {"address": PEER},
        "oldest_start_time_unix_nano": moment,
        "channel": 1,
    }
    return Snapshot(
        time_unix_nano=moment,
        in_flight=[snapshot_pb2.InFlight(**flow)],
        leases={"count": 1, "oldest_start_time_unix_nano": moment},
        engine={"model": "tiny", "start_time_unix_nano": moment},
        peers=[
            {
                "peer": {"address": PEER},
                "clock_offset_nano": 1 << 62,
                "quarantine": QUARANTINE_STATE_OPEN,
                "quarantine_until_unix_nano": moment,
                "last_active_unix_nano": moment,
            }
        ],
    )


@product(moment={str(each): each for each in MOMENTS}, length={"1": 1, "most": MOST})
def test_every_command_answers(
    harness: AdminHarness, agentctl: Callable[..., Result], moment: int, length: int, tmp_path: Path
) -> None:
    """No timestamp and no duration makes a command raise."""
    core = harness.source("0")
    harness.append(core, batch=fill(Batch(), _entries(moment, length)))
    harness.snapshot(core, _snapshot(moment))
    for command in COMMANDS:
        for output in ((), ("-o", "json")):
            answer = agentctl(*command, *output)
            assert answer.exit_code == 0, (command, answer.output, answer.stderr)
    # Also from a bundle: the evidence of such an engine is what somebody will ask for.
    bundle = str(tmp_path / "bundle.tar.gz")
    assert agentctl("bundle", "-f", bundle).exit_code == 0
    for command in (("get", "engines"), ("explain", DECODE), ("get", "events")):
        answer = agentctl(*command, "--bundle", bundle)
        assert answer.exit_code == 0, (command, answer.output, answer.stderr)
    # It has something to say about clocks.
    assert agentctl("doctor").exit_code in {0, 1}
