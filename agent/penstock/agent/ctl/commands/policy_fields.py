"""The flags of ``agentctl set-policy`` that set a field of the policy's spec: the one table of them.

The manifest's own checks judge the values, so that a flag and a file are refused with the same words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from penstock.agent.ctl.render.field_diff import flat_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

F = TypeVar("F", bound="Callable[..., Any]")

_ACTIONS = click.Choice(["recompute", "fail", "auto"])
_CHOICES = click.Choice(["recompute", "fail"])


class Field(NamedTuple):
    """A flag and the field that it sets, as a path below ``spec``."""

    flag: str
    path: str
    type: click.ParamType[Any]
    help: str
    metavar: str | None = None

    @property
    def argument(self) -> str:
        """Return the name that click hands the value over by."""
        return self.flag.removeprefix("--").replace("-", "_")


FIELDS = (
    Field(
        "--kv-load-failure",
        "kvLoadFailure.action",
        _ACTIONS,
        "What happens to a request whose KV blocks cannot be loaded; auto decides by what follows.",
    ),
    Field(
        "--kv-max-recompute-tokens",
        "kvLoadFailure.maxRecomputeTokens",
        click.INT,
        "With auto: a request that lost more tokens fails.",
        "TOKENS",
    ),
    Field(
        "--kv-recompute-budget",
        "kvLoadFailure.recomputeBudget.tokensPerSecond",
        click.INT,
        "With auto: so many tokens a second are recomputed, over all requests.",
        "TOKENS/S",
    ),
    Field(
        "--kv-over-budget",
        "kvLoadFailure.overBudget",
        _CHOICES,
        "With auto: what happens when the budget is used up.",
    ),
    Field(
        "--ec-load-failure",
        "ecLoadFailure.action",
        _ACTIONS,
        "What happens to a request whose encoder outputs cannot be loaded; auto decides by what follows.",
    ),
    Field(
        "--ec-max-recompute-items",
        "ecLoadFailure.maxRecomputeItems",
        click.INT,
        "With auto: a request that lost more items fails.",
        "ITEMS",
    ),
    Field(
        "--deferral-max-start-wait",
        "deferral.maxStartWait",
        click.STRING,
        "How long a request may wait for its transfer to start, such as 30s.",
        "DURATION",
    ),
    Field(
        "--deferral-max-transfer-wait",
        "deferral.maxTransferWait",
        click.STRING,
        "How long the transfer itself may take, such as 5s.",
        "DURATION",
    ),
    Field(
        "--deferral-on-timeout",
        "deferral.onTimeout",
        _CHOICES,
        "What happens to a request that has waited too long; KV whose transfer has begun can only fail.",
    ),
    Field(
        "--quarantine-failures",
        "peerQuarantine.failures",
        click.INT,
        "So many failures within the window cut a peer off.",
        "COUNT",
    ),
    Field(
        "--quarantine-window",
        "peerQuarantine.window",
        click.STRING,
        "The time in which failures of a peer are counted, such as 30s.",
        "DURATION",
    ),
    Field(
        "--quarantine-duration",
        "peerQuarantine.duration",
        click.STRING,
        "How long a peer is cut off before one request probes it, such as 60s.",
        "DURATION",
    ),
    Field(
        "--quarantine-max-peers-percent",
        "peerQuarantine.maxPeersPercent",
        click.INT,
        "At most this share of the known peers is cut off.",
        "PERCENT",
    ),
    Field(
        "--trace-sample-ratio",
        "telemetry.traceSampleRatio",
        click.FLOAT,
        "This share of the good traces is exported, from 0 to 1; failed ones always are.",
        "RATIO",
    ),
    Field(
        "--failure-log-interval",
        "telemetry.failureLogInterval",
        click.STRING,
        "Each way to fail is logged by the engine at most once in this time, such as 5s.",
        "DURATION",
    ),
)


def with_fields(function: F) -> F:
    """Add all flags of the table."""
    for field in reversed(FIELDS):
        function = click.option(field.flag, type=field.type, metavar=field.metavar, help=field.help)(function)
    return function


def set_fields(spec: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Put the values of the flags that were given into *spec*; the rest of it stays."""
    for field in FIELDS:
        value = given.get(field.argument)
        if value is None:
            continue
        *sections, last = field.path.split(".")
        place = spec
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value


def unset_fields(spec: dict[str, Any], paths: Iterable[str]) -> None:
    """Take fields, or whole sections, out of *spec*; a section that has nothing left goes too.

    Raises:
        ValueError: one is not there; says what is.

    """
    for path in paths:
        *sections, last = path.removeprefix("spec.").split(".")
        places: list[tuple[dict[str, Any], str]] = []
        place: Any = spec
        for name in (*sections, last):
            if not isinstance(place, dict) or name not in place:
                raise ValueError(
                    f"{path} is not set; set are {', '.join(name for name, _ in flat_values(spec))}"
                )
            places.append((place, name))
            place = place[name]
        holder, name = places.pop()
        del holder[name]
        while places and not holder:
            holder, name = places.pop()
            del holder[name]
