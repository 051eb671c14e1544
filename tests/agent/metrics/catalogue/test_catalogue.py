"""The catalogue is a contract: names, types, labels, buckets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from penstock.agent.metrics.catalogue import BY_NAME, METRICS
from penstock.agent.metrics.catalogue.metric import Metric, MetricKind

GOLDEN = Path(__file__).parent.parent / "golden" / "catalogue.txt"


def describe(metric: Metric) -> str:
    """Return a metric as a paragraph of the golden file."""
    lines = [f"{metric.name} {metric.kind.value}", f"  {metric.help}"]
    if metric.all_labels:
        lines.append(f"  labels: {', '.join(metric.all_labels)}")
    if metric.buckets:
        lines.append(f"  buckets: {' '.join(f'{bound / metric.scale:.12g}' for bound in metric.buckets)}")
    if metric.exemplars:
        lines.append("  exemplars")
    return "\n".join(lines) + "\n"


def test_the_catalogue_is_as_agreed() -> None:
    """Dashboards and alerts of others build on it; a change shows as a diff of the golden file."""
    assert "\n".join(describe(metric) for metric in METRICS) == GOLDEN.read_text()


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_naming_rules(metric: Metric) -> None:
    """Names follow Prometheus' conventions and the types' suffixes."""
    assert re.fullmatch(r"penstock_[a-z][a-z0-9_]*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert metric.name.endswith("_info") == (metric.kind is MetricKind.INFO)
    assert (metric.kind is MetricKind.HISTOGRAM) == bool(metric.buckets)
    assert metric.name.endswith(("_seconds", "_bytes", "_ratio")) or not metric.buckets
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.help.endswith(".")


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_labels(metric: Metric) -> None:
    """No label is the scraper's, and none names a rank or a request."""
    names = set(metric.all_labels)
    assert not names & {"pod", "instance", "job", "namespace", "le", "rank", "request_id"}
    assert metric.free <= set(metric.labels)
    assert len(names) == len(metric.all_labels)
    assert not metric.exemplars or metric.kind in {MetricKind.COUNTER, MetricKind.HISTOGRAM}


def test_names_do_not_clash() -> None:
    """No sample of one metric can be taken for a sample of another."""
    samples = [name for metric in METRICS for name in metric.samples]
    assert len(samples) == len(set(samples))
    families = [metric.family for metric in METRICS]
    assert len(families) == len(set(families))


def test_every_metric_is_listed() -> None:
    """What the module defines is what it lists."""
    assert set(BY_NAME) == {metric.name for metric in METRICS}


def test_one_word_for_drills() -> None:
    """HELP texts say drill and nothing else; a metric with the label ``rehearsal`` says what it means."""
    for metric in METRICS:
        said = metric.help.replace("rehearsal is true if a drill", "")
        assert not re.search(
            r"rehears|inject|fault|\bdrill", said.replace("a drill or quarantine order", ""), re.IGNORECASE
        ), metric.name
        assert ("rehearsal is true if a drill" in metric.help) == ("rehearsal" in metric.labels)
