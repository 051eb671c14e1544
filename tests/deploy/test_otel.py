"""deploy/otel: keys that the components have, and policies that keep what they promise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from penstock.agent.traces.spans import Span, semconv
from penstock.proto.names import words
from penstock.proto.v1 import common_pb2
from penstock.proto.v1.common_pb2 import Outcome

from tests.support.agent.assembled import spans_of
from tests.support.agent.every_span import every_span
from tests.support.agent.stories import decode_story, failed_story, prefill_story

OTEL = Path(__file__).parents[2] / "deploy" / "otel"
COLLECTOR: dict[str, Any] = yaml.safe_load((OTEL / "collector.yaml").read_text())
JAEGER: dict[str, Any] = yaml.safe_load((OTEL / "jaeger.yaml").read_text())
POLICIES: list[dict[str, Any]] = COLLECTOR["processors"]["tail_sampling"]["policies"]

# Keys as the components document them (Collector 0.155, Jaeger 2.20); a value that is a dict is checked below it.
_PROTOCOLS = {"grpc": {"endpoint": str, "max_recv_msg_size_mib": int}, "http": {"endpoint": str}}
_TELEMETRY = {
    "resource": {"service.name": str},
    "metrics": {"level": str, "readers": list},
}
_SERVICE = {
    "extensions": list,
    "pipelines": {"traces": {"receivers": list, "processors": list, "exporters": list}},
    "telemetry": _TELEMETRY,
}
_MEMORY_LIMITER = {"check_interval": str, "limit_percentage": int, "spike_limit_percentage": int}
_KEYS: dict[str, Any] = {
    "collector": {
        "extensions": {
            "health_check": {"endpoint": str},
            "file_storage/queue": {"directory": str, "create_directory": bool},
        },
        "receivers": {"otlp": {"protocols": _PROTOCOLS}},
        "processors": {
            "memory_limiter": _MEMORY_LIMITER,
            "tail_sampling": {
                "decision_wait": str,
                "num_traces": int,
                "decision_cache": {"sampled_cache_size": int, "non_sampled_cache_size": int},
                "policies": list,
            },
        },
        "exporters": {
            "otlp/backend": {
                "endpoint": str,
                "tls": {"insecure": bool, "ca_file": str},
                "timeout": str,
                "retry_on_failure": {
                    "enabled": bool,
                    "initial_interval": str,
                    "max_interval": str,
                    "max_elapsed_time": str,
                },
                "sending_queue": {"enabled": bool, "storage": str, "queue_size": int, "num_consumers": int},
            }
        },
        "service": _SERVICE,
    },
    "jaeger": {
        "extensions": {
            "healthcheckv2": {"use_v2": bool, "http": {"endpoint": str}},
            "jaeger_query": {"storage": {"traces": str}},
            "jaeger_storage": {
                "backends": {
                    "traces": {
                        "badger": {
                            "directories": {"keys": str, "values": str},
                            "ephemeral": bool,
                            "ttl": {"spans": str},
                        }
                    }
                }
            },
        },
        "receivers": {"otlp": {"protocols": _PROTOCOLS}},
        "processors": {"memory_limiter": _MEMORY_LIMITER, "batch": type(None)},
        "exporters": {"jaeger_storage_exporter": {"trace_storage": str}},
        "service": _SERVICE,
    },
}
_POLICY_KEYS = {
    "status_code": {"status_codes": list},
    "string_attribute": {"key": str, "values": list},
    "boolean_attribute": {"key": str, "value": bool},
    "ottl_condition": {"error_mode": str, "span": list},
    "probabilistic": {"sampling_percentage": int},
}
_COMPARISON = re.compile(r'(?:attributes\["(?P<tag>[\w.]+)"\]|name) (?P<sign>>=|>|==) (?P<value>.+)')


def _check(value: Any, wanted: Any, where: str) -> None:
    if isinstance(wanted, dict):
        assert isinstance(value, dict), where
        for key, below in value.items():
            assert key in wanted, f"{where} has no key {key}"
            _check(below, wanted[key], f"{where}.{key}")
    else:
        assert type(value) is wanted, where


@pytest.mark.parametrize(("name", "config"), [("collector", COLLECTOR), ("jaeger", JAEGER)])
def test_every_key_is_a_components_own(name: str, config: dict[str, Any]) -> None:
    """A misspelt key would end the start; what a pipeline names is configured, and the reverse."""
    _check(config, _KEYS[name], name)
    pipeline = config["service"]["pipelines"]["traces"]
    for part in ("receivers", "processors", "exporters"):
        assert set(pipeline[part]) == set(config[part])
    assert set(config["service"]["extensions"]) == set(config["extensions"])
    assert pipeline["processors"][0] == "memory_limiter"


def test_what_refers_to_another_part() -> None:
    """The queue is in a storage that is there; so is Jaeger's."""
    queue = COLLECTOR["exporters"]["otlp/backend"]["sending_queue"]
    assert queue["storage"] in COLLECTOR["service"]["extensions"]
    (backend,) = JAEGER["extensions"]["jaeger_storage"]["backends"]
    assert JAEGER["extensions"]["jaeger_query"]["storage"]["traces"] == backend
    assert JAEGER["exporters"]["jaeger_storage_exporter"]["trace_storage"] == backend


def test_the_policies_name_what_spans_have() -> None:
    """Each attribute is on a span, with that value; each name is a span's."""
    emitted = {
        (name, value)
        for span in every_span()
        for name, value in span.attributes.items()
        if not isinstance(value, tuple | list)
    }
    names = {name for name, _ in emitted} | {semconv.SAMPLING}
    assert len({policy["name"] for policy in POLICIES}) == len(POLICIES)
    for policy in POLICIES:
        kind = policy["type"]
        assert policy.keys() == {"name", "type", kind}
        _check(policy[kind], _POLICY_KEYS[kind], policy["name"])
        for condition in policy[kind].get("span", ()):
            comparison = _COMPARISON.fullmatch(condition)
            assert comparison is not None, condition
            if comparison["tag"] is None:
                assert comparison["value"].strip('"') in {span.name for span in every_span()}
            else:
                assert comparison["tag"] in names
        if "key" in policy[kind]:
            assert policy[kind]["key"] in names
    outcomes = next(policy for policy in POLICIES if policy["name"] == "failed-or-recomputed")
    assert set(outcomes["string_attribute"]["values"]) == set(words(Outcome))


@pytest.mark.parametrize("kind", Outcome.values()[1:])
def test_failed_and_recomputed_requests_are_kept(kind: int) -> None:
    """With every outcome a trace is kept whatever the share of the rest is; without one it is not."""
    assert _kept(_spans(prefill_story(), failed_story(kind)))
    assert not _kept(_spans(prefill_story(), decode_story()))


def test_what_the_agent_keeps_against_its_sampling_is_kept() -> None:
    """All that is left at a ratio of 0 passes the Collector, too."""
    for story in (failed_story(common_pb2.OUTCOME_FAILED), failed_story(common_pb2.OUTCOME_RECOMPUTED)):
        assert _kept(_spans(story, sample_ratio=0.0))


def _spans(*stories: Any, **options: Any) -> list[Span]:
    return [span for spans in spans_of(*stories, **options).values() for span in spans]


def _kept(spans: list[Span]) -> bool:
    """Whether a policy other than the share of the rest keeps these spans of one trace."""
    return any(_wants(policy, span) for policy in POLICIES for span in spans)


def _wants(policy: dict[str, Any], span: Span) -> bool:
    body = policy[policy["type"]]
    value = span.attributes.get(body.get("key", ""))
    match policy["type"]:
        case "status_code":
            return span.error is not None
        case "string_attribute":
            return value in body["values"]
        case "boolean_attribute":
            return value is body["value"]
        case "ottl_condition":
            return any(_true(condition, span) for condition in body["span"])
    return False


def _true(condition: str, span: Span) -> bool:
    comparison = _COMPARISON.fullmatch(condition)
    assert comparison is not None
    if comparison["tag"] is None:
        return span.name == comparison["value"].strip('"')
    value = span.attributes.get(comparison["tag"])
    if not isinstance(value, int | float):
        return False
    limit = float(comparison["value"])
    return value > limit or (comparison["sign"] == ">=" and value == limit)
