"""Our writer against prometheus_client's, and the negotiation of the format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.metrics.catalogue import METRICS
from penstock.agent.metrics.catalogue.metric import MetricKind
from penstock.agent.metrics.exposition.text_formats import (
    OPENMETRICS,
    PLAIN,
    Distribution,
    ExemplarPoint,
    Family,
    Sample,
    negotiate,
    write,
)

from tests.support.agent.metric_logs import UNTIMED
from tests.support.prometheus.exposition import reference

if TYPE_CHECKING:
    from penstock.agent.metrics.catalogue.metric import Metric

TEXT = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(['a"b', "a\\b", "a\nb", "", "%s"])
NUMBERS = st.integers(0, 1 << 60) | st.floats(allow_nan=False)
MARKS = st.builds(
    ExemplarPoint,
    st.just("0af7651916cd43dd8448eb211c80319c"),
    st.just("b7ad6b7169203331"),
    NUMBERS,
    st.floats(1e9, 2e9),
)


@st.composite
def families(draw: st.DrawFn) -> Family:
    """Draw a family of any metric of the catalogue."""
    metric: Metric = draw(st.sampled_from(METRICS))
    labels = st.tuples(*(TEXT for _ in metric.all_labels))
    if metric.kind is MetricKind.HISTOGRAM:
        size = len(metric.buckets) + 1
        counts = st.lists(st.integers(0, 1 << 40), min_size=size, max_size=size).map(tuple)
        marks = st.dictionaries(st.integers(0, size - 1), MARKS, max_size=2)
        rows = st.lists(st.builds(Distribution, labels, NUMBERS, counts, marks), max_size=3)
        return Family(metric, distributions=draw(rows))
    mark = MARKS | st.none() if metric.kind is MetricKind.COUNTER else st.none()
    return Family(metric, draw(st.lists(st.builds(Sample, labels, NUMBERS, mark), max_size=3)))


@UNTIMED
@given(st.lists(families(), max_size=3))
def test_byte_for_byte_what_prometheus_client_writes(drawn: list[Family]) -> None:
    """Any label text, any number, exemplars or none, in both formats."""
    assert write(drawn, OPENMETRICS) == reference(drawn, in_openmetrics=True)
    assert write(drawn, PLAIN) == reference(drawn, in_openmetrics=False)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", PLAIN),
        ("*/*", PLAIN),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", PLAIN),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", OPENMETRICS),
        # Prometheus 2.42
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75",
            OPENMETRICS,
        ),
        # Prometheus 3
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;q=0.3",
            OPENMETRICS,
        ),
        ("application/openmetrics-text;version=0.0.1", PLAIN),
        ("application/openmetrics-text;q=0, text/plain", PLAIN),
        ("application/json", PLAIN),
    ],
)
def test_negotiation(accept: str, content_type: str) -> None:
    """OpenMetrics only for those who ask for the version that we write."""
    assert negotiate(accept) == content_type
