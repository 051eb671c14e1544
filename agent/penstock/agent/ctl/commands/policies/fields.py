"""The flags of ``agentctl set-policy`` that set a field of the policy's spec.

The agent's manifest checks validate the values, so a flag and a file get the same error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from penstock.agent.views.field_diff import flat_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

F = TypeVar("F", bound="Callable[..., Any]")

_ACTIONS = click.Choice(["recompute", "fail", "auto"])
_CHOICES = click.Choice(["recompute", "fail"])
_MODES = click.Choice(["observe", "enforce"])


class Field(NamedTuple):
    """A flag and the field it sets, as a path below ``spec``."""

    flag: str
    path: str
    type: click.ParamType[Any]
    help: str
    metavar: str | None = None

    @property
    def argument(self) -> str:
        """The name of click's argument."""
        return self.flag.removeprefix("--").replace("-", "_")


FIELDS = (
    Field(
        "--kv-load-failure",
        "kvLoadFailure.action",
        _ACTIONS,
        "Action for a request whose KV blocks cannot be loaded; auto applies the limits below.",
    ),
    Field(
        "--kv-max-recompute-tokens",
        "kvLoadFailure.maxRecomputeTokens",
        click.INT,
        "With auto: fail a request that lost more tokens.",
        "TOKENS",
    ),
    Field(
        "--kv-recompute-budget",
        "kvLoadFailure.recomputeBudget.tokensPerSecond",
        click.INT,
        "With auto: recomputed tokens per second over all requests.",
        "TOKENS/S",
    ),
    Field(
        "--kv-over-budget",
        "kvLoadFailure.overBudget",
        _CHOICES,
        "With auto: action when the budget is used up.",
    ),
    Field(
        "--ec-load-failure",
        "ecLoadFailure.action",
        _ACTIONS,
        "Action for a request whose encoder outputs cannot be loaded; auto applies the limit below.",
    ),
    Field(
        "--ec-max-recompute-items",
        "ecLoadFailure.maxRecomputeItems",
        click.INT,
        "With auto: fail a request that lost more items.",
        "ITEMS",
    ),
    Field(
        "--deferral-max-start-wait",
        "deferral.maxStartWait",
        click.STRING,
        "Maximum wait for a transfer to start, such as 30s.",
        "DURATION",
    ),
    Field(
        "--deferral-max-transfer-wait",
        "deferral.maxTransferWait",
        click.STRING,
        "Maximum duration of a transfer, such as 5s.",
        "DURATION",
    ),
    Field(
        "--deferral-on-timeout",
        "deferral.onTimeout",
        _CHOICES,
        "Action after a timeout; a KV transfer that has started can only fail.",
    ),
    Field(
        "--quarantine-failures",
        "peerQuarantine.failures",
        click.INT,
        "Failures within the window before quarantine.",
        "COUNT",
    ),
    Field(
        "--quarantine-window",
        "peerQuarantine.window",
        click.STRING,
        "Window in which failures of a peer are counted, such as 30s.",
        "DURATION",
    ),
    Field(
        "--quarantine-duration",
        "peerQuarantine.duration",
        click.STRING,
        "Quarantine time before one request probes the peer, such as 60s.",
        "DURATION",
    ),
    Field(
        "--quarantine-max-peers-percent",
        "peerQuarantine.maxPeersPercent",
        click.INT,
        "Maximum share of known peers in quarantine.",
        "PERCENT",
    ),
    Field(
        "--trace-sample-ratio",
        "telemetry.traceSampleRatio",
        click.FLOAT,
        "Share of successful traces to export, from 0 to 1; failed ones are always exported.",
        "RATIO",
    ),
    Field(
        "--failure-log-interval",
        "telemetry.failureLogInterval",
        click.STRING,
        "Minimum interval between engine log lines of one failure mode, such as 5s.",
        "DURATION",
    ),
    Field(
        "--integrity-sample-ratio",
        "integrity.sampleRatio",
        click.FLOAT,
        "Share of requests whose transferred state is compared with the sender's digest, from 0 to 1.",
        "RATIO",
    ),
    Field(
        "--integrity-action",
        "integrity.action",
        _MODES,
        "enforce: a mismatch is a failed load; observe: report it and use what arrived.",
    ),
    Field(
        "--reflexes-per-minute",
        "reflexes.perMinute",
        click.INT,
        "Maximum actions of all reflexes per minute.",
        "COUNT",
    ),
    Field(
        "--reflex-start-wait",
        "reflexes.startWait.action",
        _MODES,
        "A load that has not begun when computing would have been cheaper: give it up, or report it.",
    ),
    Field(
        "--reflex-start-wait-factor",
        "reflexes.startWait.factor",
        click.FLOAT,
        "Wait for this many times the time of computing.",
        "FACTOR",
    ),
    Field(
        "--reflex-start-wait-min",
        "reflexes.startWait.minWait",
        click.STRING,
        "Never give a load up earlier, such as 500ms.",
        "DURATION",
    ),
    Field(
        "--reflex-slow-peer",
        "reflexes.slowPeer.action",
        _MODES,
        "A peer whose loads take longer than computing: do not load from it, or report it.",
    ),
    Field(
        "--reflex-slow-peer-factor",
        "reflexes.slowPeer.factor",
        click.FLOAT,
        "A peer is slow if its loads take this many times the time of computing.",
        "FACTOR",
    ),
    Field(
        "--reflex-recompute-storm",
        "reflexes.recomputeStorm.action",
        click.Choice(["observe"]),
        "Report losses that are too large to be recomputed while requests queue.",
    ),
    Field(
        "--reflex-recompute-storm-queue-wait",
        "reflexes.recomputeStorm.queueWait",
        click.STRING,
        "Half of the requests may queue for this time, such as 2s.",
        "DURATION",
    ),
)


def with_fields(function: F) -> F:
    """Add all flags of the table."""
    for field in reversed(FIELDS):
        function = click.option(field.flag, type=field.type, metavar=field.metavar, help=field.help)(function)
    return function


def set_fields(spec: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Set the given flags in *spec*; other fields are unchanged."""
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
    """Remove fields or sections from *spec*, and sections that become empty.

    Raises:
        ValueError: a field is not set; lists those that are.

    """
    for path in paths:
        *sections, last = path.removeprefix("spec.").split(".")
        places: list[tuple[dict[str, Any], str]] = []
        place: Any = spec
        for name in (*sections, last):
            if not isinstance(place, dict) or name not in place:
                raise ValueError(
                    f"{path} is not set; set fields: {', '.join(name for name, _ in flat_values(spec))}"
                )
            places.append((place, name))
            place = place[name]
        holder, name = places.pop()
        del holder[name]
        while places and not holder:
            holder, name = places.pop()
            del holder[name]
