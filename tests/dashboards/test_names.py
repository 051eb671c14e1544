"""Dashboard, rules and alerts use only names and labels that exist."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml
from penstock.agent.metrics.catalogue import METRICS
from prometheus_client import ProcessCollector

from tests.support.prometheus.promql import groupings, metrics, selectors
from tests.support.prometheus.server import promtool

if TYPE_CHECKING:
    from pathlib import Path

SCRAPER = {"job", "instance", "namespace", "cluster"}
LABELS = {
    name: {*metric.all_labels, *SCRAPER, *({"le"} if name.endswith("_bucket") else ())}
    for metric in METRICS
    for name in metric.samples
} | {
    sample.name: SCRAPER for family in ProcessCollector(registry=None).collect() for sample in family.samples
}
LABELS |= {f"{name}:from_zero": labels for name, labels in LABELS.items()}
ALL_LABELS = set().union(*LABELS.values())
Queries = list[tuple[str, str, str]]
Rules = list[dict[str, Any]]


def expressions(queries: Queries, alerts: Rules, recordings: Rules) -> list[tuple[str, str]]:
    """Return (where, expression) of everything."""
    return [
        *((where, expression) for where, expression, _ in queries),
        *((rule["alert"], rule["expr"]) for rule in alerts),
        *((rule["record"], rule["expr"]) for rule in recordings),
    ]


def test_every_expression_of_the_dashboard_parses(queries: Queries, tmp_path: Path) -> None:
    """Promtool reads each as a rule."""
    rules = [
        {"record": f"expression:{number}", "expr": expression}
        for number, (_, expression, _) in enumerate(queries)
    ]
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    result = promtool("check", "rules", str(file))
    assert result.returncode == 0, result.stdout
    assert f"{len(queries)} rules found" in result.stdout


def test_only_names_of_the_catalogue(queries: Queries, alerts: Rules, recordings: Rules) -> None:
    """A metric that was renamed or never existed would be an empty panel or a silent alert."""
    known = {name for name in LABELS if ":" not in name} | {rule["record"] for rule in recordings}
    for where, expression in expressions(queries, alerts, recordings):
        used = metrics(expression)
        assert used, where
        assert used <= known, f"{where}: {sorted(used - known)}"


def test_only_labels_that_the_metric_has(queries: Queries, alerts: Rules, recordings: Rules) -> None:
    """A matcher on a label that is not there selects nothing."""
    for where, expression in expressions(queries, alerts, recordings):
        for metric, labels in selectors(expression):
            assert labels <= LABELS.get(metric, ALL_LABELS), f"{where}: {metric}{sorted(labels)}"
        assert groupings(expression) <= ALL_LABELS, where


def test_legends_name_labels_that_are_left(queries: Queries) -> None:
    """A legend of a label that was aggregated away would show nothing in its place."""
    for where, expression, legend in queries:
        wanted = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend))
        kept = groupings(expression, "by") or set().union(
            *(LABELS.get(name, ALL_LABELS) for name in metrics(expression))
        )
        assert wanted <= kept, f"{where}: {sorted(wanted - kept)}"


def test_variables_ask_for_names_of_the_catalogue(dashboard: dict[str, Any]) -> None:
    """The drop-down lists are fed by metrics and labels that exist."""
    asked = [item for item in dashboard["templating"]["list"] if item["type"] == "query"]
    assert {item["name"] for item in asked} == {"cluster", "namespace", "job", "instance", "engine", "peer"}
    for item in asked:
        (metric,) = metrics(item["definition"])
        label = re.search(r",\s*(\w+)\)$", item["definition"])
        assert label is not None
        assert label[1] in LABELS[metric]
        assert item["query"]["query"] == item["definition"]


def test_alert_texts_name_labels_that_exist(alerts: Rules) -> None:
    """A template on a missing label renders as nothing."""
    for rule in alerts:
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= ALL_LABELS, rule["alert"]
