"""The whole text of a scrape: golden in both formats, and what comes and goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.batch.rows import TransferSample, transfer_rows
from penstock.agent.metrics.agent_metrics import BUILD, AgentMetrics
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.metrics.catalogue import METRICS
from penstock.agent.metrics.exposition.text_formats import OPENMETRICS, PLAIN
from penstock.agent.metrics.gatherer import Exemplars, Gatherer
from penstock.agent.model import AGENT_PROCESS, EngineKey
from penstock.agent.policy.files.file_source import FileStatus
from penstock.agent.policy.rollouts.state import RolloutPlan, Rollouts, RolloutState
from penstock.agent.policy.sources.interface import AWAY, CONNECTED, SourceState
from penstock.agent.traces.export.status import ExportStatus
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events
from penstock.proto.v1.ingest_pb2 import Batch, Drop, GuardError, Tombstone
from penstock.proto.v1.snapshot_pb2 import QUEUE_REASON_CAPACITY, Snapshot
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from prometheus_client.registry import Collector

from tests.support.agent.batches import PEER, TIME, deferral_end, event, transfer_failure
from tests.support.agent.metric_logs import SECOND, exposition, live, probes, source, transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.sources.registry import LiveSource
    from prometheus_client.metrics_core import Metric as CoreMetric

GOLDEN = Path(__file__).parent / "golden"
MINUTE = 60 * SECOND
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
DECODE = source(server="decode", epoch=1)
WORKER = source(server="decode", process="worker", rank=1, epoch=2)
FRONT = source(server="decode", engine="", process="api", epoch=3)

LATE = transfers([(30_000_000, 1 << 20, PEER, 1), (7_000_000, 1 << 15, PEER, 1), (9, 9, "", 2)])
LATE.transfers.end_uncertainty_nano[0] = 12_000_000
VERIFIED = {"channel": common.CHANNEL_KV, "peer": {"address": PEER}, "ok": 2, "unverified": 1}
LOG = [
    (WORKER, LATE),
    (WORKER, probes([(PEER, common.PROBE_RESULT_HIT), (PEER, common.PROBE_RESULT_MISS)])),
    (
        WORKER,
        Batch(
            events=[
                transfer_failure("r-1"),
                transfer_failure(
                    "r-2", mode=common.FAILURE_MODE_LATE_READ, error_type=common.ERROR_TYPE_OTHER
                ),
                event(
                    "handshake",
                    peer={"address": PEER},
                    queued_time_unix_nano=TIME - 3 * SECOND,
                    start_time_unix_nano=TIME - SECOND,
                    end_time_unix_nano=TIME,
                ),
                event(
                    "transfer_delayed",
                    "r-3",
                    channel=common.CHANNEL_KV,
                    delay_nano=3 * SECOND,
                    caused_by_peer={"address": PEER},
                ),
                event(
                    "eplb_rebalance",
                    trigger=events.EPLB_TRIGGER_INTERVAL,
                    result=common.TRANSFER_RESULT_OK,
                    duration_nano=2 * SECOND,
                    pause_nano=SECOND // 5,
                    balancedness_before=0.55,
                    balancedness_after=0.95,
                    layers=[{"experts_unchanged": 6, "experts_received_remotely": 2}],
                ),
            ],
            drops=[Drop(reason="queue_full", kind="transfer_sample", count=3)],
            tombstone=Tombstone(lost=[Drop(kind="handshake", count=1)]),
            guard_errors=[GuardError(hook="nixl.poll", error_class="KeyError", count=2)],
        ),
    ),
    (
        DECODE,
        Batch(
            events=[
                deferral_end("r-1", start_ns=TIME - 5 * SECOND),
                event(
                    "load_outcome",
                    "r-1",
                    channel=common.CHANNEL_KV,
                    outcome=common.OUTCOME_RECOMPUTED,
                    decided_by=common.DECIDED_BY_POLICY,
                    mode=common.FAILURE_MODE_HANDSHAKE,
                    peer={"address": PEER},
                    tokens_recomputed=412,
                    items_recomputed=2,
                ),
                event(
                    "request_closed",
                    "r-1",
                    arrival_time_unix_nano=TIME - 6 * SECOND,
                    first_token_time_unix_nano=TIME,
                    gates={
                        "queue_nano": SECOND // 4,
                        "peer_nano": 5 * SECOND,
                        "own_prefill_nano": 3 * SECOND // 4,
                    },
                ),
                event("policy_applied", accepted=True, cause="push"),
                event(
                    "quarantine_changed",
                    peer={"address": PEER},
                    state=events.QUARANTINE_STATE_OPEN,
                    reason="failures",
                ),
            ]
        ),
    ),
    (FRONT, Batch(events=[event("request_closed", "r-1", verifications=[VERIFIED])])),
]

SNAPSHOT = Snapshot(
    in_flight=[
        {"channel": 1, "peer": {"address": PEER}, "count": 2, "oldest_start_time_unix_nano": TIME - SECOND}
    ],
    deferred=[
        {"reason": 2, "peer": {"address": PEER}, "count": 1, "oldest_start_time_unix_nano": TIME - SECOND}
    ],
    leases={"count": 3, "blocks": 12},
    queue={
        "running": 2,
        "waiting": [
            {"reason": QUEUE_REASON_CAPACITY, "count": 5, "oldest_start_time_unix_nano": TIME - SECOND}
        ],
        "total_blocks": 999,
        "free_blocks": 4,
        "last_step_time_unix_nano": TIME - SECOND,
    },
    held=[
        {
            "holder": 2,
            "peer": {"address": PEER},
            "requests": 1,
            "blocks": 26,
            "oldest_start_time_unix_nano": TIME - SECOND,
        }
    ],
    peers=[
        {
            "peer": {"address": PEER, "engine_id": "e-1"},
            "clock_offset_nano": 1_500_000,
            "quarantine": events.QUARANTINE_STATE_OPEN,
        }
    ],
    engine={
        "model": "llama",
        "role": common.ROLE_DECODE,
        "vllm_version": "0.32.0",
        "kv_connector": "NixlConnector",
        "kv_role": "kv_consumer",
        "kv_engine_id": "c0ffee",
        "tensor_parallel_size": 2,
        "data_parallel_size": 1,
        "num_gpu_blocks": 1000,
        "start_time_unix_nano": TIME - MINUTE,
        "weights": {"digest": "3ad", "revision": "e7b"},
        "compatibility_hash": "9f2",
        "compatibility_factors": {"block_size": "16"},
    },
    policy={
        "hash": "5e1",
        "kv_action": "recompute",
        "changed_time_unix_nano": TIME - MINUTE,
        "expires_time_unix_nano": TIME + MINUTE,
    },
    emitter={"pending_entries": 12, "produced_entries": 90, "unacknowledged_bytes": 4096},
    hooks=[
        {
            "name": "scheduler",
            "component": common.COMPONENT_SCHEDULER,
            "installed": True,
            "missing_parts": [
                {"name": "handshake_queue", "lost": "time in the queue", "reason": "no _executor"}
            ],
        },
        {"name": "ec", "component": common.COMPONENT_SCHEDULER, "reason": 'no "ec" connector'},
    ],
)


class FixedProcess(Collector):
    """Stands for prometheus_client's collector of the process."""

    def collect(self) -> Iterator[CoreMetric]:
        """Return fixed numbers."""
        yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory size in bytes.", 90 << 20)
        yield GaugeMetricFamily("process_start_time_seconds", "Start time.", TIME / SECOND - 30)
        yield CounterMetricFamily("process_cpu_seconds_total", "Processor time.", 1.5)
        yield GaugeMetricFamily("process_open_fds", "Number of open file descriptors.", 40)


def golden_exposition() -> Gatherer:
    """Build what the golden files show."""
    aggregator, exemplars = Aggregator(), Exemplars()
    for origin, batch in LOG:
        aggregator.apply(origin, BatchColumns(batch))
        entries: list[events.Event | TransferSample] = [*batch.events, *transfer_rows(batch)]
        for entry in entries:
            exemplars.note(origin, entry, TRACE, SPAN)
    files = FileStatus(error="a.yaml:1: no", applied=2, refused=1, last_success=TIME / SECOND - 60)
    agent = AgentMetrics(
        TIME - 60 * MINUTE,
        2,
        commit_queue=lambda: 3,
        export_backlog=lambda: 17,
        policy_files=lambda: files,
        policy_sources=lambda: [
            SourceState("file:/etc/penstock", "file", CONNECTED, accepted=2, changes=1),
            SourceState("nats://n:4222/policies", "nats", AWAY, accepted=3, refused={"a": "no"}, changes=4),
        ],
        rollouts=lambda: Rollouts(
            {"strict": RolloutState(RolloutPlan(), "me", TIME / 1e9, "c", percent=5)}, 1
        ),
        exporting=lambda: ExportStatus("http://collector:4317", "", 1, 2, 3, TIME - MINUTE, 70, 1, 5),
        build=dict.fromkeys(BUILD, "1.2.3"),
        runtime=lambda registry: registry.register(FixedProcess()),
    )
    agent.count_refused("invalid")
    agent.commit.observe(0.0008)
    agent.ack.observe(0.004)
    agent.export.observe(12)
    return Gatherer(
        aggregator,
        lambda: [
            replace(live(DECODE, SNAPSHOT), unaccounted=-2),
            live(WORKER, Snapshot(leases={"count": 4, "blocks": 8})),
            live(FRONT),
        ],
        exemplars,
        agent,
        wanted={EngineKey("decode", "0"): "5e1"}.__getitem__,
        clock=lambda: TIME,
    )


@pytest.mark.parametrize(
    ("file", "accept", "content_type"),
    [
        ("metrics.txt", "text/plain", PLAIN),
        ("metrics.openmetrics.txt", "application/openmetrics-text", OPENMETRICS),
    ],
)
def test_the_text_of_a_scrape(file: str, accept: str, content_type: str) -> None:
    """A fixed log and fixed snapshots give exactly this."""
    body, kind = golden_exposition().render(accept)
    assert kind == content_type
    assert body.decode() == (GOLDEN / file).read_text()


def test_the_golden_scrape_has_nearly_all_metrics() -> None:
    """What is missing from it is absent with a reason."""
    shown = {
        sample.name
        for family in parse_plain(golden_exposition().render("")[0].decode())
        for sample in family.samples
    }
    missing = {metric.name for metric in METRICS if not set(metric.samples) <= shown}
    assert missing == {
        # nobody has judged
        "penstock_condition",
        "penstock_late_reads_harmless",
        "penstock_condition_judged_timestamp_seconds",
        # nothing was folded, evicted, resumed or hidden
        "penstock_label_sets_folded_total",
        "penstock_label_sets_evicted_total",
        "penstock_label_sets_resumed_total",
        "penstock_agent_label_sets_hidden",
        # too few transfers, of one peer
        "penstock_transfer_throughput_usual_ratio",
        "penstock_transfer_throughput_peers_ratio",
        # nothing is stalled
        "penstock_stalls",
        "penstock_stall_start_timestamp_seconds",
        # no answer is suspect
        # no front end has reported
        "penstock_server_out_of_rotation",
        # nothing is paused
        "penstock_engine_pause_expiry_timestamp_seconds",
        # there is no state directory here
        "penstock_agent_degraded",
        "penstock_agent_databases_restored_total",
        "penstock_agent_databases_set_aside",
        "penstock_agent_lost_batches_total",
        "penstock_agent_pruned_batches_total",
        "penstock_agent_state_bytes",
        "penstock_agent_state_limit_bytes",
        "penstock_agent_log_oldest_timestamp_seconds",
    }


def test_both_formats_parse_and_say_the_same() -> None:
    """prometheus_client's parsers read both; exemplars are in OpenMetrics only, and no _created anywhere."""
    plain, opened = (
        golden_exposition().render("")[0].decode(),
        golden_exposition().render(OPENMETRICS)[0].decode(),
    )
    first = {
        (s.name, tuple(sorted(s.labels.items()))): s.value for f in parse_plain(plain) for s in f.samples
    }
    second = {
        (s.name, tuple(sorted(s.labels.items()))): s for f in parse_openmetrics(opened) for s in f.samples
    }
    assert first == {key: sample.value for key, sample in second.items()}
    assert not [name for name, _ in first if name.endswith("_created")]
    marked = {name for (name, _), sample in second.items() if sample.exemplar}
    assert {"penstock_transfer_failures_total", "penstock_transfer_duration_seconds_bucket"} <= marked
    assert "trace_id" not in plain


def stopped_and_connected(*sources: LiveSource) -> dict[str, str]:
    """Return the values of the gauges about who is here."""
    text = exposition(Aggregator(), list(sources)).render("")[0].decode()
    names = ("penstock_engine_connected", "penstock_engine_stopped", "penstock_engines_expected")
    rows = (line.rpartition(" ") for line in text.splitlines() if line.startswith(names))
    return {name.partition("{")[0]: value for name, _, value in rows}


def test_an_engine_that_said_goodbye_is_stopped_and_not_expected() -> None:
    """One that vanished is neither; one that came back under its name is connected."""
    here, vanished = live(source()), live(source(), connected=False, seen=1)
    stopped = replace(vanished, said_goodbye=True)
    assert list(stopped_and_connected(here).values()) == ["1.0", "0.0", "1.0"]
    assert list(stopped_and_connected(vanished).values()) == ["0.0", "0.0", "1.0"]
    assert list(stopped_and_connected(stopped).values()) == ["0.0", "1.0", "0.0"]
    again = live(source(epoch=99))
    assert list(stopped_and_connected(stopped, again).values()) == ["1.0", "0.0", "1.0"]
    configured = exposition(Aggregator(), [stopped], engines_expected=2).render("")[0].decode()
    assert "penstock_engines_expected 1.0" in configured
    # Of two that are away, the one seen last tells.
    later = live(source(epoch=99), connected=False, seen=2)
    assert list(stopped_and_connected(stopped, later).values()) == ["0.0", "0.0", "1.0"]


def one_failure() -> Aggregator:
    """Fold one failure of engine 0."""
    aggregator = Aggregator()
    aggregator.apply(source(), BatchColumns(Batch(events=[transfer_failure("r")])))
    return aggregator


def test_gauges_go_at_once_and_the_rest_when_an_engine_is_forgotten() -> None:
    """While it is away its counters stay, and engine_connected is 0; then there is nothing of it."""
    aggregator, sources = one_failure(), [live(source(), Snapshot(leases={"count": 1}))]
    rendered = exposition(aggregator, sources)
    here = rendered.render("")[0].decode()
    assert 'penstock_engine_connected{engine="0",server=""} 1.0' in here
    assert "penstock_send_leases{" in here
    assert "penstock_transfer_failures_total{" in here
    sources[0] = live(source(), connected=False)
    away = rendered.render("")[0].decode()
    assert "penstock_send_leases{" not in away
    assert "penstock_transfer_failures_total{" in away
    assert 'penstock_engine_connected{engine="0",server=""} 0.0' in away
    assert "penstock_engines_connected 0.0" in away
    assert "penstock_engines_expected 1.0" in away
    sources.clear()
    aggregator.apply(source(process=AGENT_PROCESS), BatchColumns(Batch(events=[event("forgotten")])))
    gone = rendered.render("")[0].decode()
    assert 'engine="0"' not in gone
    assert "penstock_engines_expected 0.0" in gone


def test_after_a_restart_the_counters_are_there_before_their_engine() -> None:
    """The log knows it, the registry does not yet: the counters are shown, the engine as not connected."""
    body = exposition(one_failure()).render("")[0].decode()
    assert "penstock_transfer_failures_total{" in body
    assert 'penstock_engine_connected{engine="0",server=""} 0.0' in body


def test_an_engine_is_connected_by_its_engine_core() -> None:
    """Workers that outlive their EngineCore are no engine."""
    sources = [live(source(), connected=False), live(source(process="worker", epoch=2))]
    body = exposition(Aggregator(), sources).render("")[0].decode()
    assert 'penstock_engine_connected{engine="0",server=""} 0.0' in body


def test_a_part_that_fails_does_not_take_the_others_along() -> None:
    """A bug in one collector shows as its success 0; the rest of the scrape is there."""

    def broken(_: EngineKey) -> str:
        raise RuntimeError("boom")

    sources = [live(source(), Snapshot(policy={"hash": "x"}))]
    body = exposition(one_failure(), sources, wanted=broken).render("")[0].decode()
    assert 'penstock_agent_collector_success{collector="snapshots"} 0.0' in body
    assert 'penstock_agent_collector_success{collector="log"} 1.0' in body
    assert "penstock_transfer_failures_total{" in body
    assert "penstock_policy_info{" not in body


def test_the_process_and_the_interpreter() -> None:
    """prometheus_client's collectors are there by their standard names, and by no other."""
    for accept in ("", OPENMETRICS):
        body = exposition(Aggregator()).render(accept)[0].decode()
        for name in ("python_gc_collections_total{", "python_info{"):
            assert f"\n{name}" in body
        for name in ("resident_memory_bytes", "open_fds", "cpu_seconds_total", "start_time_seconds"):
            assert f"\nprocess_{name} " in body
            assert f"penstock_agent_{name}" not in body
        assert body.count("# EOF") == (accept == OPENMETRICS)


def test_the_agents_own_metrics_fail_alone() -> None:
    """The counters of the engines are there without them, and the text ends as it must."""
    agent = AgentMetrics(0, commit_queue=lambda: 1 // 0)
    gatherer = Gatherer(one_failure(), list, Exemplars(), agent)
    body = gatherer.render(OPENMETRICS)[0].decode()
    assert 'penstock_agent_collector_success{collector="agent"} 0.0' in body
    assert "penstock_transfer_failures_total{" in body
    assert body.endswith("# EOF\n")


def test_an_engine_expected_by_configuration() -> None:
    """The configuration wins over what has been seen."""
    assert (
        "penstock_engines_expected 4.0" in exposition(Aggregator(), engines_expected=4).render("")[0].decode()
    )
