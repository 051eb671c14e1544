"""A real Prometheus scrapes a real exposition, then a real agent: rate, quantile, exemplar, alert."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.batch.rows import transfer_rows
from penstock.agent.metrics.agent_metrics import AgentMetrics
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.metrics.exposition.text_formats import OPENMETRICS
from penstock.agent.metrics.gatherer import Exemplars, Gatherer
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import HASTY_AGENT, running_agent
from tests.support.agent.batches import PEER, TIME, transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.metric_logs import live, source, transfers
from tests.support.agent.stories import closed_decode, outcome
from tests.support.otlp.backend import otlp_backend
from tests.support.prometheus.http import serving
from tests.support.prometheus.server import running_prometheus

if TYPE_CHECKING:
    from penstock.agent.batch.rows import TransferSample
    from penstock.proto.v1.events_pb2 import Event

    from tests.support.agent.agent import AgentProcess
    from tests.support.otlp.backend import OtlpBackend
    from tests.support.prometheus.server import Prometheus

RULES = [
    Path(__file__).parents[3] / "dashboards" / "prometheus" / name for name in ("rules.yml", "alerts.yml")
]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Busy:
    """An exposition of an engine on which something happens before every scrape.

    Attributes:
        content_types: of the answers so far.

    """

    def __init__(self) -> None:
        self._aggregator, self._exemplars = Aggregator(), Exemplars()
        self._exposition = Gatherer(
            self._aggregator,
            lambda: [live(source(), Snapshot(leases={"count": 2}), seen=time.time_ns())],
            self._exemplars,
            AgentMetrics(time.time_ns()),
        )
        self.content_types: set[str] = set()

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """Complete ten transfers of 20 ms each, have one late read, and render."""
        now = time.time_ns()
        batch = transfers([(20_000_000, 1 << 20, PEER, common.TRANSFER_RESULT_OK)] * 10, time_ns=now)
        failure = transfer_failure("r", mode=common.FAILURE_MODE_LATE_READ, time_ns=now)
        self._aggregator.apply(source(), BatchColumns(batch))
        self._aggregator.apply(source(), BatchColumns(Batch(events=[failure])))
        entries: tuple[Event | TransferSample, ...] = (failure, *transfer_rows(batch))
        for entry in entries:
            self._exemplars.note(source(), entry, TRACE, SPAN)
        body, content_type = self._exposition.render(accept)
        self.content_types.add(content_type)
        return body, content_type


@pytest.mark.long
def test_prometheus_understands_the_exposition(tmp_path: Path) -> None:
    """Rates from our counters, quantiles from our buckets, exemplars with their trace, an alert that fires."""
    busy = Busy()
    with serving(busy.scrape) as address, running_prometheus(tmp_path, [address], RULES) as prometheus:
        labels, _ = prometheus.value("rate(penstock_transfers_total[30s])")
        assert labels == {
            "job": "penstock",
            "instance": address,
            "engine": "0",
            "channel": "kv",
            "connector": "NixlConnector",
            "direction": "receive",
            "peer": PEER,
            "result": "ok",
        }
        _, quantile = prometheus.value(
            "histogram_quantile(0.5, sum by (le) (rate(penstock_transfer_duration_seconds_bucket[30s])))"
        )
        assert 0.01 < quantile <= 0.025
        _, median = prometheus.value(
            "namespace_job_channel:penstock_transfer_duration_seconds:median_of_peers5m"
        )
        assert round(median, 9) == 0.02

        span: dict[str, Any] = {"start": str(time.time() - 60), "end": str(time.time() + 60)}
        for query in ("penstock_late_reads_total", "penstock_transfer_duration_seconds_bucket"):
            series, *_ = prometheus.until("query_exemplars", list, query=query, **span)
            assert series["seriesLabels"]["__name__"] == query
            assert series["exemplars"][0]["labels"] == {"trace_id": TRACE, "span_id": SPAN}

        alert = prometheus.alert("PenstockLateReads")
        assert alert["annotations"]["run"] == "agentctl get events --kind transfer_failure --mode late_read"
    assert busy.content_types == {OPENMETRICS}


def test_prometheus_scrapes_an_agent(tmp_path: Path) -> None:
    """Rates, exemplars and alerts follow an agent: idle, stopped and failing engines, and the agent's own end."""
    with otlp_backend() as backend:
        environment = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": backend.endpoint}
        with (
            running_agent(env=environment, module=HASTY_AGENT) as agent,
            running_prometheus(tmp_path, [agent.http], RULES) as prometheus,
        ):
            _check_no_alert(agent, prometheus)
            _check_failures(agent, prometheus, backend)
            agent.kill()
            alert = prometheus.alert("PenstockAgentDown")
            assert alert["labels"]["instance"] == agent.http


def _check_no_alert(agent: AgentProcess, prometheus: Prometheus) -> None:
    """Check that no alert is pending while an engine is idle, and after its goodbye."""
    with FakeEngine(agent.listen, engine="1") as engine:
        engine.snapshot(Snapshot(time_unix_nano=TIME, policy={"hash": ""}, held=[{"holder": 2, "blocks": 0}]))
        prometheus.value("penstock_engine_connected")
        prometheus.wait_for_rules()
        # On a busy machine a scrape may be too late; the alert about that goes with the next one.
        prometheus.until("alerts", lambda data: not data["alerts"])
        engine.goodbye()
    prometheus.value("penstock_engine_stopped")
    prometheus.wait_for_rules()
    prometheus.until("alerts", lambda data: not data["alerts"])


def _check_failures(agent: AgentProcess, prometheus: Prometheus, backend: OtlpBackend) -> None:
    """Check rate, alert and exemplar of an engine's failures, which pass journal, aggregator and trace export."""
    with FakeEngine(agent.listen) as engine:
        engine.snapshot(Snapshot(time_unix_nano=TIME, policy={"hash": ""}))
        published = 0

        def more(data: Any) -> Any:
            """Let another request fail and be computed again until Prometheus has a rate."""
            nonlocal published
            published += 1
            name = f"cmpl-{published}"
            failure = transfer_failure(
                name, attempt=1, error_type=common.ERROR_TYPE_INCOMPATIBLE, start_time_unix_nano=TIME
            )
            engine.publish(failure, outcome(name), closed_decode(name))
            return [row for row in data["result"] if float(row["value"][1]) > 0]

        query = 'rate(penstock_load_outcomes_total{outcome="recomputed"}[30s])'
        (rate,) = prometheus.until("query", more, query=query)
        assert rate["metric"]["engine"] == "0"
        assert rate["metric"]["peer"] == PEER

        alert = prometheus.alert("PenstockIncompatiblePeers")
        assert alert["labels"]["peer"] == PEER

        span: dict[str, Any] = {"start": str(TIME / 1e9 - 60), "end": str(TIME / 1e9 + 60)}
        series, *_ = prometheus.until(
            "query_exemplars", list, query="penstock_transfer_failures_total", **span
        )
        labels = series["exemplars"][-1]["labels"]
        known = {(each.trace_id, each.span_id) for each in backend.spans}
        assert (labels["trace_id"], labels["span_id"]) in known
