"""Spans as OpenTelemetry's SDK has them.

They are built directly and not through a Tracer: their times, ids and parents are given, and each
engine has a resource of its own.
"""

from __future__ import annotations

import logging
import socket
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
    from collections.abc import Callable, Mapping

    from opentelemetry.util.types import AttributeValue
    from penstock.agent.model import Source
    from penstock.agent.traces.spans.model import Span

# Anyone can send a tracestate that breaks the recommendation. It is left out, as that says, without a line for each span.
logging.getLogger("opentelemetry.trace.span").addFilter(lambda _record: False)

_MOST_INTEGER = (1 << 63) - 1
_SCOPE = InstrumentationScope("penstock", __version__, semconv.SCHEMA_URL)
_UNKNOWN_ROLES = ("", "unspecified", "unknown")
# Labels of the downward API, by OpenTelemetry's names.
_KUBERNETES = {
    "POD_NAME": semconv.K8S_POD_NAME,
    "POD_NAMESPACE": semconv.K8S_NAMESPACE_NAME,
    "POD_UID": semconv.K8S_POD_UID,
    "NODE_NAME": semconv.K8S_NODE_NAME,
}


def service_name(source: Source) -> str:
    """Return the default name of an engine's service by its role; ``vllm`` if that is not known."""
    if source.role in _UNKNOWN_ROLES:
        return "vllm"
    return "vllm-prefill-decode" if source.role == "both" else f"vllm-{source.role}"


def resource_attributes(source: Source, host: str) -> dict[str, AttributeValue]:
    """Return what identifies a source's engine; *host* stands for the pod where its name is not known."""
    namespace = source.labels.get("POD_NAMESPACE", "")
    instance = source.labels.get("POD_NAME") or host
    return {
        semconv.SERVICE_NAME: service_name(source),
        **({semconv.SERVICE_NAMESPACE: namespace} if namespace else {}),
        semconv.SERVICE_INSTANCE_ID: "/".join(filter(None, (instance, str(source.key)))) or "unknown",
        **({semconv.SERVICE_VERSION: source.vllm_version} if source.vllm_version else {}),
        semconv.ROLE: source.role,
        semconv.ROLE_GUESSED: source.role_guessed,
        **({semconv.MODEL: source.model} if source.model else {}),
        **({semconv.SERVER: source.key.server} if source.key.server else {}),
        **({semconv.ENGINE: source.key.engine} if source.key.engine else {}),
        **{name: source.labels[label] for label, name in _KUBERNETES.items() if source.labels.get(label)},
        **{
            f"{semconv.LABEL}.{label}": text
            for label, text in sorted(source.labels.items())
            if label not in _KUBERNETES
        },
    }


class SpanConverter:
    """Turns spans into the SDK's, under the limits and the resource that ``OTEL_*`` variables set.

    ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` win over what is known of the engine.

    Args:
        described: returns a source with the role of its engine.

    """

    def __init__(self, described: Callable[[Source], Source] = lambda source: source) -> None:
        self._described = described
        self._host = socket.gethostname()
        self._limits = SpanLimits()
        self._environment = OTELResourceDetector().detect()
        self._resources: dict[tuple[int, str, bool], Resource] = {}

    def resource(self, source: Source) -> Resource:
        """Return the resource of a source's engine."""
        source = self._described(source)
        key = (source.epoch, source.role, source.role_guessed)
        resource = self._resources.get(key)
        if resource is None:
            if len(self._resources) >= 1024:  # noqa: PLR2004  (epochs come and go; rebuilding is cheap)
                self._resources.clear()
            attributes = resource_attributes(source, self._host)
            resource = Resource(attributes, semconv.SCHEMA_URL).merge(self._environment)
            self._resources[key] = resource
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
                for link in span.links[: self._limits.max_links]
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
