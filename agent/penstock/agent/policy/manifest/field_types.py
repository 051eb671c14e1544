"""The types of a manifest's fields: bounded numbers and durations, each with the words that complete its error."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from penstock.agent.parsing import DURATION_PATTERN, format_duration, parse_duration
from penstock.rules import (
    QUARANTINE_TIME_BOUNDS,
    TOKEN_BOUNDS,
    WAIT_BOUNDS,
    Bounds,
)
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

if TYPE_CHECKING:
    from collections.abc import Callable


def _duration(bounds: Bounds) -> Callable[[timedelta], timedelta]:
    least, most = timedelta(seconds=bounds.least), timedelta(seconds=bounds.most)

    def check(value: timedelta) -> timedelta:
        if not least <= value <= most:
            raise ValueError
        return value

    return check


def between(bounds: Bounds) -> Any:
    """Return the constraint of a number."""
    return Field(ge=bounds.least, le=bounds.most)


def whole(bounds: Bounds) -> str:
    """Return the words for a whole number."""
    return f"a whole number from {bounds.least:.0f} to {bounds.most:.0f}"


def ratio(bounds: Bounds) -> str:
    """Return the words for a number."""
    return f"a number from {bounds.least:g} to {bounds.most:g}"


def span(bounds: Bounds, example: str) -> str:
    """Return the words for a duration."""
    least, most = (format_duration(timedelta(seconds=each)) for each in bounds)
    return f"a duration from {least} to {most} such as {example}"


def _read_duration(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError  # noqa: TRY004  (pydantic turns only ValueError into one of its own)
    return parse_duration(value)


_SERIALIZE = PlainSerializer(format_duration, return_type=str)
_SCHEMA = WithJsonSchema({"type": "string", "pattern": f"^{DURATION_PATTERN}$"})
Wait = Annotated[
    timedelta,
    BeforeValidator(_read_duration),
    AfterValidator(_duration(WAIT_BOUNDS)),
    _SERIALIZE,
    _SCHEMA,
]
QuarantineTime = Annotated[
    timedelta,
    BeforeValidator(_read_duration),
    AfterValidator(_duration(QUARANTINE_TIME_BOUNDS)),
    _SERIALIZE,
    _SCHEMA,
]
# Of what the leading relay does, not engines: no bounds of theirs.
_EJECTION_TIME_BOUNDS = Bounds(10, 3600)
EjectionTime = Annotated[
    timedelta, BeforeValidator(_read_duration), AfterValidator(_duration(_EJECTION_TIME_BOUNDS)), _SERIALIZE, _SCHEMA
]  # fmt: skip
Tokens = Annotated[int, between(TOKEN_BOUNDS)]
ACTIONS = "one of recompute, fail, auto"
MODES = "one of observe, enforce"
CHOICES = "one of recompute, fail"
WAIT = span(WAIT_BOUNDS, "30s")
QUARANTINE_TIME = span(QUARANTINE_TIME_BOUNDS, "60s")
EJECTION_TIME = span(_EJECTION_TIME_BOUNDS, "1m")
READER_BOUNDS, HOURLY_BOUNDS = Bounds(2, 64), Bounds(1, 60)
TOKENS = whole(TOKEN_BOUNDS)


class Model(BaseModel):
    """camelCase names, no unknown fields, no conversions, frozen."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel, allow_inf_nan=False
    )
