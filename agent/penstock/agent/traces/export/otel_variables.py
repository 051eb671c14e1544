"""``OTEL_*`` variables: what the agent does with each (honours it, refuses it, has no use for it), and their values, each checked once.

The error of a value is a sentence that names variable, value and expectation.
"""

from __future__ import annotations

import re
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PREFIX = "OTEL_"
DEFAULT_SAMPLER = "parentbased_always_on"
_WITH_RATIO = ("traceidratio", "parentbased_traceidratio")
_SAMPLERS = ("always_on", DEFAULT_SAMPLER, *_WITH_RATIO)
# Both would drop failed and recomputed requests, which are always exported.
_NEVER = ("always_off", "parentbased_always_off")
_RATIO = re.compile(r"([0-9]+\.?|[0-9]*\.[0-9]+)(e-?[0-9]+)?")
# An attribute of the resource as W3C's Baggage has it: what cannot be split would be left out without a word.
_ATTRIBUTE = re.compile(r"\s*[^\s=,]+\s*=[^,]*")
_LIMITS = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
)


class Effect(Enum):
    """What setting a variable does."""

    HONOURED = "honoured"
    REFUSED = "refused"
    UNUSED = "no effect"


class Variable(NamedTuple):
    """A variable, or several by a pattern with ``*``, and why it is refused or has no effect."""

    pattern: str
    effect: Effect
    reason: str = ""


_TRACES_ONLY = "the agent exports traces only"
_NO_EVENTS = "spans of the agent have no events"

# The first pattern that fits holds.
VARIABLES: Final = (
    *(
        Variable(name, Effect.HONOURED)
        for name in (
            "OTEL_SDK_DISABLED",
            "OTEL_TRACES_EXPORTER",
            "OTEL_SERVICE_NAME",
            "OTEL_RESOURCE_ATTRIBUTES",
            *(
                f"OTEL_EXPORTER_OTLP_{signal}{setting}"
                for setting in (
                    "ENDPOINT",
                    "PROTOCOL",
                    "HEADERS",
                    "TIMEOUT",
                    "COMPRESSION",
                    "INSECURE",
                    "CERTIFICATE",
                    "CLIENT_CERTIFICATE",
                    "CLIENT_KEY",
                )
                for signal in ("", "TRACES_")
            ),
            "OTEL_TRACES_SAMPLER",
            "OTEL_TRACES_SAMPLER_ARG",
            "OTEL_BSP_SCHEDULE_DELAY",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
            "OTEL_ATTRIBUTE_COUNT_LIMIT",
            "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
            "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
            "OTEL_SPAN_LINK_COUNT_LIMIT",
        )
    ),
    Variable(
        "OTEL_BSP_EXPORT_TIMEOUT",
        Effect.REFUSED,
        "a call ends after OTEL_EXPORTER_OTLP_TIMEOUT, and spans are retried until the backend takes them",
    ),
    Variable(
        "OTEL_BSP_MAX_QUEUE_SIZE",
        Effect.REFUSED,
        "no queue in memory drops spans; the journal keeps them, bounded by --state-limit",
    ),
    Variable("OTEL_CONFIG_FILE", Effect.REFUSED, "the agent reads no OpenTelemetry configuration file"),
    Variable(
        "OTEL_EXPERIMENTAL_CONFIG_FILE", Effect.REFUSED, "the agent reads no OpenTelemetry configuration file"
    ),
    Variable(
        "OTEL_EXPORTER_JAEGER_*", Effect.REFUSED, "Jaeger takes OTLP: set OTEL_EXPORTER_OTLP_ENDPOINT instead"
    ),
    Variable(
        "OTEL_EXPORTER_ZIPKIN_*", Effect.REFUSED, "the agent exports OTLP: set OTEL_EXPORTER_OTLP_ENDPOINT"
    ),
    Variable("OTEL_EXPORTER_OTLP_METRICS_*", Effect.UNUSED, f"{_TRACES_ONLY}; metrics are scraped"),
    Variable("OTEL_EXPORTER_OTLP_LOGS_*", Effect.UNUSED, f"{_TRACES_ONLY}; its log goes to stderr"),
    Variable("OTEL_EXPORTER_PROMETHEUS_*", Effect.UNUSED, "--http is the address of /metrics"),
    Variable("OTEL_METRICS_*", Effect.UNUSED, f"{_TRACES_ONLY}; metrics are scraped"),
    Variable("OTEL_METRIC_*", Effect.UNUSED, f"{_TRACES_ONLY}; metrics are scraped"),
    Variable("OTEL_LOGS_*", Effect.UNUSED, f"{_TRACES_ONLY}; its log goes to stderr"),
    Variable("OTEL_LOGRECORD_*", Effect.UNUSED, f"{_TRACES_ONLY}; its log goes to stderr"),
    Variable("OTEL_BLRP_*", Effect.UNUSED, f"{_TRACES_ONLY}; its log goes to stderr"),
    Variable("OTEL_LOG_LEVEL", Effect.UNUSED, "--log-level sets the level of the agent's log"),
    Variable("OTEL_PROPAGATORS", Effect.UNUSED, "vLLM takes the caller's context, from traceparent only"),
    Variable("OTEL_SPAN_EVENT_COUNT_LIMIT", Effect.UNUSED, _NO_EVENTS),
    Variable("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", Effect.UNUSED, _NO_EVENTS),
    Variable("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", Effect.UNUSED, "a link has one attribute"),
    Variable(
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", Effect.UNUSED, "spans are about engines, not about the agent"
    ),
    Variable("OTEL_PYTHON_*", Effect.UNUSED, "the agent is not instrumented"),
    Variable("OTEL_SEMCONV_STABILITY_OPT_IN", Effect.UNUSED, "the names of spans have one version"),
)


def effect_of(name: str) -> Variable:
    """Return what the agent does with the variable *name*; one that is not known has no effect."""
    unknown = Variable(name, Effect.UNUSED, "the agent does not know it; check its spelling")
    return next((variable for variable in VARIABLES if fnmatchcase(name, variable.pattern)), unknown)


def check_refused(environment: Mapping[str, str]) -> None:
    """Check that no variable is set that the agent cannot honour. An empty one counts as not set.

    Raises:
        ConfigError: one sentence that names the variable and what to do.

    """
    for name, variable in _set(environment):
        if variable.effect is Effect.REFUSED:
            raise ConfigError(f"{name} is not supported: {variable.reason}; unset it")


def unused_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each variable that is set and has no effect."""
    return tuple(
        f"{name} has no effect: {variable.reason}"
        for name, variable in _set(environment)
        if variable.effect is Effect.UNUSED
    )


def _set(environment: Mapping[str, str]) -> Iterator[tuple[str, Variable]]:
    for name in sorted(environment):
        if name.startswith(PREFIX) and environment[name]:
            yield name, effect_of(name)


def wrong(variable: str, text: str, expected: str) -> ConfigError:
    """Return the error of a value."""
    return ConfigError(f"{variable} {text!r} is wrong: expected {expected}")


def one_of(variable: str, text: str, words: tuple[str, ...]) -> str:
    """Return *text* if it is one of *words*; the first of them if it is empty."""
    if text and text not in words:
        raise wrong(variable, text, f"one of {', '.join(words)}")
    return text or words[0]


def truth(variable: str, text: str) -> bool | None:
    """Return whether *text* is ``true`` or ``false``, in any case; None if it is empty."""
    word = text.strip().lower()
    if word not in ("", "true", "false"):
        raise wrong(variable, text, "true or false")
    return word == "true" if word else None


def whole(variable: str, text: str, least: int, most: int, unit: str) -> int | None:
    """Return a whole number of *unit* within the bounds; None if the text is empty."""
    if not text:
        return None
    number = int(text) if text.isascii() and text.isdigit() else -1
    if not least <= number <= most:
        raise wrong(variable, text, f"{unit}, from {least} to {most}")
    return number


def sampler(environment: Mapping[str, str]) -> tuple[str, float]:
    """Return the name of the sampler, and its ratio; 1 for one without."""
    name = environment.get("OTEL_TRACES_SAMPLER", "")
    argument = environment.get("OTEL_TRACES_SAMPLER_ARG", "")
    if name in _NEVER:
        raise ConfigError(
            f"OTEL_TRACES_SAMPLER {name!r} is not supported: failed and recomputed requests are always exported;"
            " OTEL_TRACES_EXPORTER=none exports nothing, traceidratio with OTEL_TRACES_SAMPLER_ARG=0 those only"
        )
    name = one_of("OTEL_TRACES_SAMPLER", name or DEFAULT_SAMPLER, _SAMPLERS)
    if not argument:
        return name, 1.0
    if name not in _WITH_RATIO:
        raise ConfigError(
            f"OTEL_TRACES_SAMPLER_ARG {argument!r} has no effect on {name}:"
            f" set OTEL_TRACES_SAMPLER to {' or '.join(_WITH_RATIO)}, or unset it"
        )
    ratio = float(argument) if _RATIO.fullmatch(argument) else -1.0
    if not 0 <= ratio <= 1:
        raise wrong("OTEL_TRACES_SAMPLER_ARG", argument, "a number from 0 to 1")
    return name, ratio


def check_resource(environment: Mapping[str, str]) -> None:
    """Check ``OTEL_RESOURCE_ATTRIBUTES``, which OpenTelemetry's SDK reads when the export starts."""
    variable = "OTEL_RESOURCE_ATTRIBUTES"
    for part in environment.get(variable, "").split(","):
        if part.strip() and _ATTRIBUTE.fullmatch(part) is None:
            raise wrong(variable, part, "name=value,name=value with URL-encoded values")


def check_limits(environment: Mapping[str, str]) -> None:
    """Check the limits of spans, which OpenTelemetry's SDK reads when the export starts."""
    for variable in _LIMITS:
        whole(variable, environment.get(variable, "").strip(), 0, (1 << 31) - 1, "a whole number")
