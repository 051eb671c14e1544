"""Values of ``OTEL_*`` variables, each checked once; an error is a sentence that names variable, value and expectation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.agent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
