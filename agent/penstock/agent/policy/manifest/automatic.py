"""The sections of what acts by itself: the reflexes of one engine, and the ejection of a server from rotation."""

from __future__ import annotations

from typing import Annotated, Literal

from penstock.agent.policy.manifest.field_types import (
    EJECTION_TIME,
    HOURLY_BOUNDS,
    MODES,
    READER_BOUNDS,
    WAIT,
    EjectionTime,
    Model,
    Wait,
    between,
    ratio,
    whole,
)
from penstock.rules import FAILURE_BOUNDS, PERCENT_BOUNDS, REFLEX_FACTOR_BOUNDS, REFLEX_RATE_BOUNDS
from pydantic import Field

_Factor = Annotated[float, between(REFLEX_FACTOR_BOUNDS)]
_FACTOR = ratio(REFLEX_FACTOR_BOUNDS)


class StartWaitReflex(Model):
    """A load that does not begin: given up once waiting is dearer than computing."""

    action: Literal["observe", "enforce"] | None = Field(default=None, description=MODES)
    factor: _Factor | None = Field(default=None, description=_FACTOR)
    min_wait: Wait | None = Field(default=None, description=WAIT)


class SlowPeerReflex(Model):
    """A peer from which loading is dearer than computing: not loaded from."""

    action: Literal["observe", "enforce"] | None = Field(default=None, description=MODES)
    factor: _Factor | None = Field(default=None, description=_FACTOR)


class RecomputeStormReflex(Model):
    """Requests that queue because others are recomputed; acting would fail requests, so it only reports."""

    action: Literal["observe"] | None = Field(default=None, description="observe; it cannot act")
    queue_wait: Wait | None = Field(default=None, description=WAIT)


class Reflexes(Model):
    """What an engine does by itself about what it has measured itself."""

    per_minute: Annotated[int, between(REFLEX_RATE_BOUNDS)] | None = Field(
        default=None, description=whole(REFLEX_RATE_BOUNDS)
    )
    start_wait: StartWaitReflex | None = Field(default=None, description="{action: observe}")
    slow_peer: SlowPeerReflex | None = Field(default=None, description="{action: observe}")
    recompute_storm: RecomputeStormReflex | None = Field(default=None, description="{action: observe}")


class EjectionSection(Model):
    """When the leading relay takes a server out of rotation, by what its readers see of it."""

    action: Literal["observe", "enforce"] | None = Field(default=None, description=MODES)
    min_readers: Annotated[int, between(READER_BOUNDS)] | None = Field(
        default=None, description=whole(READER_BOUNDS)
    )
    min_failures: Annotated[int, between(FAILURE_BOUNDS)] | None = Field(
        default=None, description=whole(FAILURE_BOUNDS)
    )
    after: EjectionTime | None = Field(default=None, description=EJECTION_TIME)
    duration: EjectionTime | None = Field(default=None, description=EJECTION_TIME)
    max_pods_percent: Annotated[int, between(PERCENT_BOUNDS)] | None = Field(
        default=None, description=whole(PERCENT_BOUNDS)
    )
    per_hour: Annotated[int, between(HOURLY_BOUNDS)] | None = Field(
        default=None, description=whole(HOURLY_BOUNDS)
    )
