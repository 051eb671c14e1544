"""Families of samples, and the two text formats of Prometheus that they are written in: 0.0.4 and OpenMetrics 1.0.

Metrics of engines have a writer of their own, because prometheus_client's takes 110 to 200 ms for 10,000 series
(docs/decisions/0062-metrics-our-own-parts.md); the text is the same byte for byte, which a test compares. The
agent's own metrics are in a registry of prometheus_client, and its writers write them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.metrics.catalogue import MetricKind
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.exposition import generate_latest as _generate_plain
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.exposition import generate_latest as _generate_openmetrics
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.metrics.catalogue import Metric
    from prometheus_client import CollectorRegistry

PLAIN: Final = CONTENT_TYPE_PLAIN_0_0_4
OPENMETRICS: Final = CONTENT_TYPE_LATEST

_VERSION = "1.0.0"
_EOF = b"# EOF\n"


def negotiate(accept: str) -> str:
    """Return the content type for an Accept header: OpenMetrics if it is asked for, else text 0.0.4."""
    for item in accept.split(","):
        media_type, *parameters = (part.strip() for part in item.split(";"))
        settings = dict(parameter.partition("=")[::2] for parameter in parameters)
        # Stripped, "0" and "0.000" are empty: not wanted at all.
        wanted = media_type.lower() == "application/openmetrics-text" and settings.get("q", "1").strip("0.")
        if wanted and settings.get("version", _VERSION) == _VERSION:
            return OPENMETRICS
    return PLAIN


def write(families: Iterable[Family], content_type: str) -> bytes:
    """Write *families* in their order; exemplars only in OpenMetrics."""
    writer = _Writer(openmetrics=content_type == OPENMETRICS)
    for family in families:
        writer.family(family)
    return writer.finish()


def write_registry(registry: CollectorRegistry, content_type: str) -> bytes:
    """Return what prometheus_client writes for *registry*."""
    if content_type == OPENMETRICS:
        return bytes(_generate_openmetrics(registry))  # type: ignore[no-untyped-call]
    return _generate_plain(registry)


def join(*texts: bytes, content_type: str) -> bytes:
    """Return expositions of different metrics as one."""
    body = b"".join(text.removesuffix(_EOF) for text in texts)
    return body + _EOF if content_type == OPENMETRICS else body


def _number(value: float) -> str:
    """Return Go's form of a number, as prometheus_client writes it."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class _Writer:
    """Collects lines."""

    def __init__(self, *, openmetrics: bool) -> None:
        self._openmetrics = openmetrics
        self._lines: list[str] = []
        self._escaped: dict[str, str] = {}

    def family(self, family: Family) -> None:
        """Add one metric."""
        metric = family.metric
        name = metric.family if self._openmetrics else metric.name
        kind = "gauge" if metric.kind is MetricKind.INFO and not self._openmetrics else metric.kind.value
        documentation = metric.help.replace("\\", r"\\").replace("\n", r"\n")
        if self._openmetrics:
            documentation = documentation.replace('"', r"\"")
        self._lines.append(f"# HELP {name} {documentation}\n# TYPE {name} {kind}\n")
        if metric.kind is MetricKind.HISTOGRAM:
            self._distributions(metric, family.distributions)
        else:
            self._samples(metric, family.samples)

    def finish(self) -> bytes:
        """Return the body."""
        if self._openmetrics:
            self._lines.append("# EOF\n")
        return "".join(self._lines).encode()

    def _samples(self, metric: Metric, samples: list[Sample]) -> None:
        order = _order(metric)
        template = _template(metric.name, [metric.all_labels[index] for index in order])
        append = self._lines.append
        for labels, value, mark in samples:
            line = template % self._values(labels, order) + _number(value)
            append(f"{line}{self._mark(mark)}\n" if mark else f"{line}\n")

    def _distributions(self, metric: Metric, distributions: list[Distribution]) -> None:
        order = _order(metric)
        names = [metric.all_labels[index] for index in order]
        bounds = [_number(bound / metric.scale) for bound in metric.buckets] + ["+Inf"]
        buckets = [_template(f"{metric.name}_bucket", names, le=bound) for bound in bounds]
        count, total = _template(f"{metric.name}_count", names), _template(f"{metric.name}_sum", names)
        append = self._lines.append
        for distribution in distributions:
            values = self._values(distribution.labels, order)
            seen = 0
            for index, (template, here) in enumerate(zip(buckets, distribution.counts, strict=True)):
                seen += here
                mark = self._mark(distribution.marks.get(index))
                append(f"{template % values}{_number(seen)}{mark}\n")
            append(f"{count % values}{_number(seen)}\n")
            append(f"{total % values}{_number(distribution.total)}\n")

    def _values(self, labels: tuple[str, ...], order: list[int]) -> tuple[str, ...]:
        escaped = self._escaped
        values = []
        for index in order:
            value = labels[index]
            text = escaped.get(value)
            if text is None:
                text = escaped[value] = _escape(value)
            values.append(text)
        return tuple(values)

    def _mark(self, mark: ExemplarPoint | None) -> str:
        if mark is None or not self._openmetrics:
            return ""
        labels = f'{{span_id="{_escape(mark.span_id)}",trace_id="{_escape(mark.trace_id)}"}}'
        return f" # {labels} {_number(mark.value)} {mark.time_seconds}"


def _order(metric: Metric) -> list[int]:
    """Return the positions of a metric's labels in the order of their names."""
    return sorted(range(len(metric.all_labels)), key=lambda index: metric.all_labels[index])


def _template(name: str, labels: list[str], le: str = "") -> str:
    """Return a %-template of a line up to its value; takes the values of *labels*, which are sorted."""
    pairs = [(label, "%s") for label in labels]
    if le:
        pairs = sorted([*pairs, ("le", le)])
    if not pairs:
        return f"{name} "
    inner = ",".join(f'{label}="{value}"' for label, value in pairs)
    return f"{name}{{{inner}}} "


class ExemplarPoint(NamedTuple):
    """An exemplar in base units; ``labels`` are its trace_id and span_id."""

    trace_id: str
    span_id: str
    value: float
    time_seconds: float


class Sample(NamedTuple):
    """One series of a counter, gauge or info.

    Attributes:
        labels: values of `Metric.all_labels`, in their order.

    """

    labels: tuple[str, ...]
    value: float
    mark: ExemplarPoint | None = None


class Distribution(NamedTuple):
    """One series of a histogram.

    Attributes:
        labels: values of `Metric.all_labels`, in their order.
        counts: by bucket, not cumulative, infinity last.
        marks: exemplars by bucket index.

    """

    labels: tuple[str, ...]
    total: float
    counts: tuple[int, ...]
    marks: dict[int, ExemplarPoint]


@dataclass(slots=True)
class Family:
    """One metric with its series: samples, or distributions if it is a histogram."""

    metric: Metric
    samples: list[Sample] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)
