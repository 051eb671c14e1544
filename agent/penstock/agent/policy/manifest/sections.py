"""The parts of a manifest's spec: the selector and the sections."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from penstock.agent.parsing import label_selector
from penstock.agent.policy.manifest.automatic import Reflexes  # noqa: TC002  (pydantic reads it)
from penstock.agent.policy.manifest.error_texts import RULE
from penstock.agent.policy.manifest.field_types import (
    ACTIONS,
    CHOICES,
    MODES,
    QUARANTINE_TIME,
    TOKENS,
    WAIT,
    Model,
    QuarantineTime,
    Tokens,
    Wait,
    between,
    ratio,
    whole,
)
from penstock.rules import (
    FAILURE_BOUNDS,
    ITEM_BOUNDS,
    PERCENT_BOUNDS,
    RATIO_BOUNDS,
)
from pydantic import (
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

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


LabelKey = Annotated[str, StringConstraints(pattern=rf"^{label_selector.KEY_PATTERN}$")]
LabelValue = Annotated[str, StringConstraints(pattern=rf"^{label_selector.VALUE_PATTERN}$")]


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

    tokens_per_second: Tokens | None = Field(default=None, description=TOKENS)


class KvLoadFailure(Model):
    """Action for KV blocks that cannot be loaded."""

    action: Literal["recompute", "fail", "auto"] | None = Field(default=None, description=ACTIONS)
    max_recompute_tokens: Tokens | None = Field(default=None, description=TOKENS)
    recompute_budget: RecomputeBudget | None = Field(default=None, description="{tokensPerSecond: 20000}")
    over_budget: Literal["recompute", "fail"] | None = Field(default=None, description=CHOICES)


class EcLoadFailure(Model):
    """Action for encoder outputs that cannot be loaded."""

    action: Literal["recompute", "fail", "auto"] | None = Field(default=None, description=ACTIONS)
    max_recompute_items: Annotated[int, between(ITEM_BOUNDS)] | None = Field(
        default=None, description=whole(ITEM_BOUNDS)
    )


class Deferral(Model):
    """Time limits of deferred requests."""

    max_start_wait: Wait | None = Field(default=None, description=WAIT)
    max_transfer_wait: Wait | None = Field(default=None, description=WAIT)
    on_timeout: Literal["recompute", "fail"] | None = Field(default=None, description=CHOICES)


class PeerQuarantine(Model):
    """When a failing peer is quarantined."""

    failures: Annotated[int, between(FAILURE_BOUNDS)] | None = Field(
        default=None, description=whole(FAILURE_BOUNDS)
    )
    window: QuarantineTime | None = Field(default=None, description=QUARANTINE_TIME)
    duration: QuarantineTime | None = Field(default=None, description=QUARANTINE_TIME)
    max_peers_percent: Annotated[int, between(PERCENT_BOUNDS)] | None = Field(
        default=None, description=whole(PERCENT_BOUNDS)
    )


class Telemetry(Model):
    """Sampling and log limits."""

    trace_sample_ratio: Annotated[float, between(RATIO_BOUNDS)] | None = Field(
        default=None, description=ratio(RATIO_BOUNDS)
    )
    failure_log_interval: Wait | None = Field(default=None, description=WAIT)


class Integrity(Model):
    """Which transfers are compared with the sender's digest, and what a mismatch leads to."""

    sample_ratio: Annotated[float, between(RATIO_BOUNDS)] | None = Field(
        default=None, description=ratio(RATIO_BOUNDS)
    )
    action: Literal["observe", "enforce"] | None = Field(default=None, description=MODES)


class Candidate(Model):
    """What a policy becomes: the sections that take the place of all its own."""

    mode: Literal["enforce", "observe"] = Field(default="enforce", description="one of enforce, observe")
    kv_load_failure: KvLoadFailure | None = Field(default=None, description="{action: recompute}")
    ec_load_failure: EcLoadFailure | None = Field(default=None, description="{action: recompute}")
    deferral: Deferral | None = Field(default=None, description="{maxTransferWait: 5s}")
    peer_quarantine: PeerQuarantine | None = Field(default=None, description="{failures: 5}")
    telemetry: Telemetry | None = Field(default=None, description="{traceSampleRatio: 1.0}")
    integrity: Integrity | None = Field(default=None, description="{sampleRatio: 0.01}")
    reflexes: Reflexes | None = Field(default=None, description="{startWait: {action: observe}}")


class Share(Model):
    """A part of the engines that the selector matches, by a hash of engine and policy.

    It has the policy, and the other engines do not; or it has the candidate, and the others the policy.
    """

    percent: Annotated[int, between(PERCENT_BOUNDS)] = Field(description=whole(PERCENT_BOUNDS))
    candidate: Candidate | None = Field(default=None, description="{kvLoadFailure: {action: fail}}")
