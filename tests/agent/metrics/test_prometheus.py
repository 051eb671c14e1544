"""A real Prometheus scrapes a real exposition and answers queries: rate, quantile, exemplar, alert."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web
from penstock.agent.metrics import AgentMetrics, Exemplars, Exposition, Fold
from penstock.agent.metrics.text import OPENMETRICS
from penstock.agent.samples import transfer_samples
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.batches import PEER, transfer_failure
from tests.support.metrics import live, source, transfers
from tests.support.prometheus import Prometheus, running_prometheus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

RULES = [
    Path(__file__).parents[3] / "dashboards" / "prometheus" / name for name in ("rules.yml", "alerts.yml")
]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
DEADLINE = 30.0


class Busy:
    """An exposition of an engine on which something happens before every scrape: nothing here waits for time."""

    def __init__(self) -> None:
        self._fold, self._exemplars = Fold(), Exemplars()
        self._exposition = Exposition(
            self._fold,
            lambda: [live(source(), Snapshot(leases={"count": 2}), seen=time.time_ns())],
            self._exemplars,
            AgentMetrics(time.time_ns()),
        )
        self.content_types: set[str] = set()

    def _happen(self) -> None:
        """Complete ten transfers of 20 ms each, and have one late read."""
        now = time.time_ns()
        batch = transfers([(20_000_000, 1 << 20, PEER, common.TRANSFER_RESULT_OK)] * 10, time_ns=now)
        failure = transfer_failure("r", mode=common.FAILURE_MODE_LATE_READ, time_ns=now)
        self._fold.apply(source(), batch)
        self._fold.apply(source(), Batch(events=[failure]))
        for entry in (failure, *transfer_samples(batch)):
            self._exemplars.note(source(), entry, TRACE, SPAN)

    async def _metrics(self, request: web.Request) -> web.Response:
        self._happen()
        body, content_type = self._exposition.render(request.headers.get("Accept", ""))
        self.content_types.add(content_type)
        return web.Response(body=body, headers={"Content-Type": content_type})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve ``/metrics``; yields host:port."""
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            yield f"{host}:{port}"
        finally:
            await runner.cleanup()


class Api:
    """Prometheus' HTTP API."""

    def __init__(self, prometheus: Prometheus, session: aiohttp.ClientSession) -> None:
        self._prometheus = prometheus
        self._session = session

    async def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer; empty while Prometheus is not ready."""
        async with self._session.get(f"{self._prometheus.url}/api/v1/{path}", params=parameters) as response:
            return (await response.json())["data"] if response.status == 200 else {}

    async def until(self, path: str, found: Callable[[Any], Any], **parameters: str) -> Any:
        """Ask until *found* returns something that is true."""
        end = time.monotonic() + DEADLINE
        while True:
            data = await self.get(path, **parameters)
            result = found(data) if data else None
            if result:
                return result
            if time.monotonic() > end:
                raise AssertionError(f"{path} {parameters}: {data}\n{self._prometheus.log()}")
            await asyncio.sleep(0.1)

    async def value(self, query: str) -> tuple[dict[str, str], float]:
        """Return labels and value of the one series of a query, once it is above 0."""

        def one(data: Any) -> Any:
            series = [(row["metric"], float(row["value"][1])) for row in data["result"]]
            assert len(series) <= 1, series
            return [row for row in series if row[1] > 0]

        return (await self.until("query", one, query=query))[0]


async def test_prometheus_scrapes_and_answers(tmp_path: Path) -> None:
    """Rates from our counters, quantiles from our buckets, exemplars with their trace, an alert that fires."""
    busy = Busy()
    async with busy.serving() as address, aiohttp.ClientSession() as session:
        with running_prometheus(tmp_path, [address], RULES) as prometheus:
            api = Api(prometheus, session)

            labels, rate = await api.value("rate(penstock_transfers_total[30s])")
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
            assert rate > 0
            _, quantile = await api.value(
                "histogram_quantile(0.5, sum by (le) (rate(penstock_transfer_duration_seconds_bucket[30s])))"
            )
            assert 0.01 < quantile <= 0.025
            _, mean = await api.value(
                "namespace_job_channel:penstock_transfer_duration_seconds:median_of_peers5m"
            )
            assert round(mean, 9) == 0.02

            span = {"start": str(time.time() - 60), "end": str(time.time() + 60)}
            for query in ("penstock_late_reads_total", "penstock_transfer_duration_seconds_bucket"):
                (series, *_) = await api.until("query_exemplars", list, query=query, **span)
                assert series["seriesLabels"]["__name__"] == query
                assert series["exemplars"][0]["labels"] == {"trace_id": TRACE, "span_id": SPAN}

            alerts = await api.until(
                "alerts", lambda data: [row for row in data["alerts"] if row["state"] == "firing"]
            )
            assert [row["labels"]["alertname"] for row in alerts] == ["PenstockLateReads"]
            assert (
                alerts[0]["annotations"]["run"]
                == "agentctl get events --kind transfer_failure --mode late_read"
            )

            await api.until(
                "targets", lambda data: [row for row in data["activeTargets"] if row["health"] == "up"]
            )
    assert busy.content_types == {OPENMETRICS}
