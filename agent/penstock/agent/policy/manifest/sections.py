"""The parts of a manifest's spec: the selector and the sections.

Each field's description completes its error text: ``<path> is <value>; use <description>``.
"""

from __future__ import annotations

import re
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from penstock.agent.errors import ManifestError
from penstock.agent.parsing import DURATION_PATTERN, format_duration, label_selector, parse_duration
from penstock.rules import (
    FAILURE_BOUNDS,
    ITEM_BOUNDS,
    PERCENT_BOUNDS,
    QUARANTINE_TIME_BOUNDS,
    RATIO_BOUNDS,
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
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

# By path below ``spec``; a duration is its canonical text.
Leaf = str | int | float
Leaves = dict[str, Leaf]


def flatten(document: dict[str, Any], prefix: str = "") -> Leaves:
    """Return the scalars of nested objects by their dotted path."""
    leaves: Leaves = {}
    for name, value in document.items():
        if isinstance(value, dict):
            leaves |= flatten(value, f"{prefix}{name}.")
        else:
            leaves[prefix + name] = value
    return leaves


def unflatten(leaves: Leaves) -> dict[str, Any]:
    """Return nested objects, ordered by name; the inverse of :func:`flatten`."""
    document: dict[str, Any] = {}
    for path, value in sorted(leaves.items()):
        *parents, last = path.split(".")
        place = document
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return document


# Type of errors with a complete text of their own.
RULE = "rule"
_MAX_SHOWN = 80
_PLAIN_NAME = re.compile(r"[\w./-]{1,80}")


def manifest_error(error: ValidationError, model: type[BaseModel]) -> ManifestError:
    """Return the first error in *model* with its path and location."""
    first = error.errors(include_url=False, include_context=True)[0]
    location = [part for part in first["loc"] if part != "[key]"]
    path = _path(location)
    return ManifestError(_sentence(first, location, path, model), path, tuple(location))


def _sentence(first: ErrorDetails, location: list[int | str], path: str, model: type[BaseModel]) -> str:
    if first["type"] == RULE:
        text = first["msg"]
        return text if text.startswith("spec") else f"{path}.{text}"
    parent, field = _resolve(model, location)
    if first["type"] == "extra_forbidden":
        return _unknown(path, str(location[-1]), parent)
    way_out = field.description if field is not None and field.description else "another value"
    if first["type"] == "missing":
        return f"{path} is missing; use {way_out}"
    return f"{path} is {_shown(first['input'])}; use {way_out}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "empty"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def _path(location: list[int | str]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{_name(part)}" if path else _name(part)
    return path


def _name(part: str) -> str:
    """Return a name, quoted and cut if it is not a plain one."""
    return part if _PLAIN_NAME.fullmatch(part) else _shown(part)


def _unknown(path: str, name: str, parent: type[BaseModel]) -> str:
    known = [field.alias or key for key, field in parent.model_fields.items()]
    near = get_close_matches(name, known, n=1)
    place = path.removesuffix(_name(name)).removesuffix(".") or "a manifest"
    hint = f"did you mean {near[0]}?" if near else f"{place} has {', '.join(known)}"
    return f"{path} is not a field; {hint}"


def _resolve(model: type[BaseModel], location: list[int | str]) -> tuple[type[BaseModel], FieldInfo | None]:
    """Return the innermost model of *location* and its field, if there is one."""
    field: FieldInfo | None = None
    for part in location:
        inner = _model_of(field.annotation) if field is not None else model
        if inner is not None:
            model = inner
        elif field is not None:
            # Inside a list or a map of scalars: its description applies.
            continue
        if isinstance(part, int):
            continue
        field = next((item for key, item in model.model_fields.items() if part in (item.alias, key)), None)
    return model, field


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_of(arg)) is not None), None)


def _duration(bounds: Bounds) -> Callable[[timedelta], timedelta]:
    least, most = timedelta(seconds=bounds.least), timedelta(seconds=bounds.most)

    def check(value: timedelta) -> timedelta:
        if not least <= value <= most:
            raise ValueError
        return value

    return check


def _between(bounds: Bounds) -> Any:
    return Field(ge=bounds.least, le=bounds.most)


def _whole(bounds: Bounds) -> str:
    return f"a whole number from {bounds.least:.0f} to {bounds.most:.0f}"


def _ratio(bounds: Bounds) -> str:
    return f"a number from {bounds.least:g} to {bounds.most:g}"


def _span(bounds: Bounds, example: str) -> str:
    least, most = (format_duration(timedelta(seconds=each)) for each in bounds)
    return f"a duration from {least} to {most} such as {example}"


def _read_duration(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError  # noqa: TRY004  (pydantic turns only ValueError into one of its own)
    return parse_duration(value)


_SERIALIZE = PlainSerializer(format_duration, return_type=str)
_SCHEMA = WithJsonSchema({"type": "string", "pattern": f"^{DURATION_PATTERN}$"})
_Wait = Annotated[
    timedelta,
    BeforeValidator(_read_duration),
    AfterValidator(_duration(WAIT_BOUNDS)),
    _SERIALIZE,
    _SCHEMA,
]
_QuarantineTime = Annotated[
    timedelta,
    BeforeValidator(_read_duration),
    AfterValidator(_duration(QUARANTINE_TIME_BOUNDS)),
    _SERIALIZE,
    _SCHEMA,
]
# Of what the leading relay does, not engines: no bounds of theirs.
_EJECTION_TIME_BOUNDS = Bounds(10, 3600)
_EjectionTime = Annotated[
    timedelta, BeforeValidator(_read_duration), AfterValidator(_duration(_EJECTION_TIME_BOUNDS)), _SERIALIZE, _SCHEMA
]  # fmt: skip
LabelKey = Annotated[str, StringConstraints(pattern=rf"^{label_selector.KEY_PATTERN}$")]
LabelValue = Annotated[str, StringConstraints(pattern=rf"^{label_selector.VALUE_PATTERN}$")]
_Tokens = Annotated[int, _between(TOKEN_BOUNDS)]
_ACTIONS = "one of recompute, fail, auto"
_CHOICES = "one of recompute, fail"
_WAIT = _span(WAIT_BOUNDS, "30s")
_QUARANTINE_TIME = _span(QUARANTINE_TIME_BOUNDS, "60s")
_EJECTION_TIME = _span(_EJECTION_TIME_BOUNDS, "1m")
_READER_BOUNDS, _HOURLY_BOUNDS = Bounds(2, 64), Bounds(1, 60)
_TOKENS = _whole(TOKEN_BOUNDS)


class Model(BaseModel):
    """camelCase names, no unknown fields, no conversions, frozen."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel, allow_inf_nan=False
    )


class MatchExpression(Model):
    """One requirement on a label."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"operator": {"enum": ["In", "NotIn"]}}},
            "then": {"required": ["values"], "properties": {"values": {"minItems": 1}}},
            "else": {"properties": {"values": {"maxItems": 0}}},
        }
    )

    key: LabelKey = Field(description="a label's name such as role")
    operator: label_selector.Operator = Field(description="one of In, NotIn, Exists, DoesNotExist")
    values: list[LabelValue] = Field(
        default=[], max_length=64, description="a list of label values, as quoted text"
    )

    @model_validator(mode="after")
    def _values_fit(self) -> MatchExpression:
        if bool(self.values) != (self.operator in {"In", "NotIn"}):
            raise PydanticCustomError(
                RULE,
                "values must be {needed} with operator {operator}",
                {
                    "needed": "omitted" if self.values else "given",
                    "operator": self.operator,
                },
            )
        return self


class Selector(Model):
    """Selects engines; empty selects all."""

    match_labels: dict[LabelKey, LabelValue] = Field(
        default={}, max_length=64, description="labels and their values, as quoted text"
    )
    match_expressions: list[MatchExpression] = Field(
        default=[], max_length=64, description="a list of {key, operator, values}"
    )
    models: list[Annotated[str, StringConstraints(min_length=1, max_length=label_selector.MAX_GLOB)]] = Field(
        default=[], max_length=label_selector.MAX_GLOBS, description="a list of globs such as llama-*"
    )

    @cached_property
    def selection(self) -> label_selector.Selection:
        """The selector in its evaluated form."""
        return label_selector.Selection(
            requirements=(
                *(
                    label_selector.Requirement(key, "In", (value,))
                    for key, value in self.match_labels.items()
                ),
                *(
                    label_selector.Requirement(item.key, item.operator, tuple(item.values))
                    for item in self.match_expressions
                ),
            ),
            models=tuple(self.models),
        )


class RecomputeBudget(Model):
    """Limit of recomputation."""

    tokens_per_second: _Tokens | None = Field(default=None, description=_TOKENS)


class KvLoadFailure(Model):
    """Action for KV blocks that cannot be loaded."""

    action: Literal["recompute", "fail", "auto"] | None = Field(default=None, description=_ACTIONS)
    max_recompute_tokens: _Tokens | None = Field(default=None, description=_TOKENS)
    recompute_budget: RecomputeBudget | None = Field(default=None, description="{tokensPerSecond: 20000}")
    over_budget: Literal["recompute", "fail"] | None = Field(default=None, description=_CHOICES)


class EcLoadFailure(Model):
    """Action for encoder outputs that cannot be loaded."""

    action: Literal["recompute", "fail", "auto"] | None = Field(default=None, description=_ACTIONS)
    max_recompute_items: Annotated[int, _between(ITEM_BOUNDS)] | None = Field(
        default=None, description=_whole(ITEM_BOUNDS)
    )


class Deferral(Model):
    """Time limits of deferred requests."""

    max_start_wait: _Wait | None = Field(default=None, description=_WAIT)
    max_transfer_wait: _Wait | None = Field(default=None, description=_WAIT)
    on_timeout: Literal["recompute", "fail"] | None = Field(default=None, description=_CHOICES)


class PeerQuarantine(Model):
    """When a failing peer is quarantined."""

    failures: Annotated[int, _between(FAILURE_BOUNDS)] | None = Field(
        default=None, description=_whole(FAILURE_BOUNDS)
    )
    window: _QuarantineTime | None = Field(default=None, description=_QUARANTINE_TIME)
    duration: _QuarantineTime | None = Field(default=None, description=_QUARANTINE_TIME)
    max_peers_percent: Annotated[int, _between(PERCENT_BOUNDS)] | None = Field(
        default=None, description=_whole(PERCENT_BOUNDS)
    )


class Telemetry(Model):
    """Sampling and log limits."""

    trace_sample_ratio: Annotated[float, _between(RATIO_BOUNDS)] | None = Field(
        default=None, description=_ratio(RATIO_BOUNDS)
    )
    failure_log_interval: _Wait | None = Field(default=None, description=_WAIT)


class Integrity(Model):
    """Which transfers are compared with the sender's digest, and what a mismatch leads to."""

    sample_ratio: Annotated[float, _between(RATIO_BOUNDS)] | None = Field(
        default=None, description=_ratio(RATIO_BOUNDS)
    )
    action: Literal["observe", "enforce"] | None = Field(default=None, description="one of observe, enforce")


class EjectionSection(Model):
    """When the leading relay takes a server out of rotation, by what its readers see of it."""

    action: Literal["observe", "enforce"] | None = Field(default=None, description="one of observe, enforce")
    min_readers: Annotated[int, _between(_READER_BOUNDS)] | None = Field(
        default=None, description=_whole(_READER_BOUNDS)
    )
    min_failures: Annotated[int, _between(FAILURE_BOUNDS)] | None = Field(
        default=None, description=_whole(FAILURE_BOUNDS)
    )
    after: _EjectionTime | None = Field(default=None, description=_EJECTION_TIME)
    duration: _EjectionTime | None = Field(default=None, description=_EJECTION_TIME)
    max_pods_percent: Annotated[int, _between(PERCENT_BOUNDS)] | None = Field(
        default=None, description=_whole(PERCENT_BOUNDS)
    )
    per_hour: Annotated[int, _between(_HOURLY_BOUNDS)] | None = Field(
        default=None, description=_whole(_HOURLY_BOUNDS)
    )


class Candidate(Model):
    """What a policy becomes: the sections that take the place of all its own."""

    mode: Literal["enforce", "observe"] = Field(default="enforce", description="one of enforce, observe")
    kv_load_failure: KvLoadFailure | None = Field(default=None, description="{action: recompute}")
    ec_load_failure: EcLoadFailure | None = Field(default=None, description="{action: recompute}")
    deferral: Deferral | None = Field(default=None, description="{maxTransferWait: 5s}")
    peer_quarantine: PeerQuarantine | None = Field(default=None, description="{failures: 5}")
    telemetry: Telemetry | None = Field(default=None, description="{traceSampleRatio: 1.0}")
    integrity: Integrity | None = Field(default=None, description="{sampleRatio: 0.01}")


class Share(Model):
    """A part of the engines that the selector matches, by a hash of engine and policy.

    It has the policy, and the other engines do not; or it has the candidate, and the others the policy.
    """

    percent: Annotated[int, _between(PERCENT_BOUNDS)] = Field(description=_whole(PERCENT_BOUNDS))
    candidate: Candidate | None = Field(default=None, description="{kvLoadFailure: {action: fail}}")
