"""Spans as OpenTelemetry's SDK has them.

They are built directly and not through a Tracer: their times, ids and parents are given, and each
engine has a resource of its own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.span import TraceState
from opentelemetry.trace.status import Status, StatusCode
from penstock.agent.traces.spans import semconv
from penstock.proto import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.util.types import AttributeValue
    from penstock.agent.model import Source
    from penstock.agent.traces.spans.model import Span

# Anyone can send a tracestate that breaks the recommendation. It is left out, as that says, without a line for each span.
logging.getLogger("opentelemetry.trace.span").addFilter(lambda _record: False)

_MOST_INTEGER = (1 << 63) - 1
_SCOPE = InstrumentationScope("penstock", __version__)
# Labels of the downward API, by OpenTelemetry's names.
_KUBERNETES = {
    "POD_NAME": "k8s.pod.name",
    "POD_NAMESPACE": "k8s.namespace.name",
    "POD_UID": "k8s.pod.uid",
    "NODE_NAME": "k8s.node.name",
}


def service_name(source: Source) -> str:
    """Return the default name of an engine's service: ``vllm-decode``; ``vllm`` if its role is not known."""
    return "vllm" if source.role in ("", "unspecified", "unknown") else f"vllm-{source.role}"


def resource_attributes(source: Source) -> dict[str, AttributeValue]:
    """Return what identifies a source's engine."""
    instance = source.labels.get("POD_NAME", "")
    return {
        "service.name": service_name(source),
        "service.instance.id": "/".join(filter(None, (instance, str(source.key)))) or "unknown",
        **({"service.version": source.vllm_version} if source.vllm_version else {}),
        **({semconv.MODEL: source.model} if source.model else {}),
        **({"penstock.server": source.key.server} if source.key.server else {}),
        **({"penstock.engine": source.key.engine} if source.key.engine else {}),
        **{name: source.labels[label] for label, name in _KUBERNETES.items() if source.labels.get(label)},
        **{
            f"penstock.label.{label}": text
            for label, text in sorted(source.labels.items())
            if label not in _KUBERNETES
        },
    }


class SpanConverter:
    """Turns spans into the SDK's, under the limits and the resource that ``OTEL_*`` variables set.

    ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` win over what is known of the engine.
    """

    def __init__(self) -> None:
        self._limits = SpanLimits()
        self._environment = OTELResourceDetector().detect()
        self._resources: dict[int, Resource] = {}

    def resource(self, source: Source) -> Resource:
        """Return the resource of a source's engine."""
        resource = self._resources.get(source.epoch)
        if resource is None:
            if len(self._resources) >= 1024:  # noqa: PLR2004  (epochs come and go; rebuilding is cheap)
                self._resources.clear()
            resource = Resource(resource_attributes(source)).merge(self._environment)
            self._resources[source.epoch] = resource
        return resource

    def readable(self, span: Span, *, replayed: bool) -> ReadableSpan:
        """Convert one span; *replayed* marks it as exported late."""
        attributes = {**span.attributes, semconv.REPLAYED: True} if replayed else span.attributes
        state = TraceState.from_header([span.tracestate]) if span.tracestate else None
        parent = None
        if span.parent_span_id:
            parent = _context(span.trace_id, span.parent_span_id, state, remote=span.remote_parent)
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace_id, span.span_id, state),
            parent=parent,
            resource=self.resource(span.source),
            attributes=self._bounded(attributes),
            links=[
                Link(_context(link.trace_id, link.span_id, remote=True), {semconv.LINK_TO: link.to})
                for link in span.links
            ],
            kind=SpanKind.CLIENT if span.client else SpanKind.INTERNAL,
            status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.start_unix_nano,
            end_time=span.end_unix_nano,
            instrumentation_scope=_SCOPE,
        )

    def _bounded(self, attributes: Mapping[str, AttributeValue]) -> BoundedAttributes:
        return BoundedAttributes(
            self._limits.max_span_attributes,
            {name: _attribute(value) for name, value in attributes.items()},
            immutable=True,
            max_value_len=self._limits.max_span_attribute_length,
        )


def _attribute(value: AttributeValue) -> AttributeValue:
    """Return a value as OTLP has it: our counts are unsigned, its integers are not."""
    return min(value, _MOST_INTEGER) if isinstance(value, int) else value


def _context(
    trace_id: str, span_id: str, state: TraceState | None = None, *, remote: bool = False
) -> SpanContext:
    return SpanContext(
        int(trace_id, 16), int(span_id, 16), remote, TraceFlags(TraceFlags.SAMPLED), state or TraceState()
    )
