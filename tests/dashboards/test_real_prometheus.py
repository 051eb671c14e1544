"""Every expression of the dashboard runs in a real Prometheus that scrapes two pods, and finds something."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.agent.agent import wait_until
from tests.support.prometheus.http import serving
from tests.support.prometheus.server import running_prometheus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SCRAPE = Path(__file__).parents[1] / "agent" / "metrics" / "golden" / "metrics.txt"
# What a calm agent has none of.
_CONDITION = (
    'penstock_condition{kind="peer_refuses",server="",engine="0",peer="p-0:5600",confidence="certain"} 1'
)
# The scrape has no rehearsals, encoder outputs, transfers of experts, failed rebalances or differing factors; and no state
# directory.
_EMPTY = {
    "Rehearsed failures",
    "Rehearsed outcomes",
    "Tokens recomputed in rehearsals",
    "Encoder outputs computed again",
    "Encoder outputs that failed to load",
    "Outcomes of failed encoder outputs",
    "Requests that wait for an encoder output",
    "Transfer of experts by rank, mean",
    "Oldest wait for an encoder output",
    "Rebalances that failed",
    "Compatibility factors that differ",
    "State on disk",
    "The log reaches back",
    "Degraded, set aside, given up",
    "Stalls",
    "Speed against usual",
    "Speed against other peers",
}


def test_every_expression_runs(
    queries: Sequence[tuple[str, str, str]], prometheus_directory: Path, tmp_path: Path
) -> None:
    """Without an error of matching, such as many-to-many, which shows only on data; a panel has at least one series."""
    rules = [prometheus_directory / name for name in ("rules.yml", "alerts.yml")]
    with (
        serving(_growing()) as one,
        serving(_growing()) as other,
        running_prometheus(tmp_path, [one, other], rules) as prometheus,
    ):
        prometheus.until("query", _has(2), query="rate(penstock_transfers_total[5m]) > 0")
        prometheus.until(
            "query", _has(1), query="cluster_namespace_job_channel:penstock_transfer_failures:ratio5m"
        )
        # Rules are evaluated one after the other: those behind that one may have seen one scrape only.
        prometheus.wait_for_rules()

        def empty() -> set[str]:
            found: dict[str, int] = {}
            for where, expression, _ in queries:
                result = prometheus.get("query", query=expression)["result"]
                found[where] = found.get(where, 0) + len(result)
            return {where for where, series in found.items() if not series}

        # On a busy machine two scrapes may be further apart than a rate looks back.
        wait_until(lambda: empty() == _EMPTY, "all but these panels have a series")


def _growing() -> Callable[[str], tuple[bytes, str]]:
    """Return a scrape whose counters grow each time by what they are."""
    lines = [*_SCRAPE.read_text().splitlines(), _CONDITION]
    times = count(1)

    def scrape(_: str) -> tuple[bytes, str]:
        factor = next(times)
        return "".join(f"{_times(line, factor)}\n" for line in lines).encode(), "text/plain; version=0.0.4"

    return scrape


def _times(line: str, factor: int) -> str:
    series, _, value = line.rpartition(" ")
    if line.startswith("#") or not series.partition("{")[0].endswith(("_total", "_sum", "_count", "_bucket")):
        return line
    return f"{series} {float(value) * factor}"


def _has(series: int) -> Any:
    return lambda data: len(data["result"]) >= series
