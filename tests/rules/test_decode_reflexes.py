"""What a push may say about reflexes: the engine's own bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.protobuf import json_format
from penstock.proto.v1.policy_pb2 import PolicyBody as PolicyBodyMessage
from penstock.proto.v1.policy_pb2 import ScheduledPolicy
from penstock.rules import (
    RecomputeStormReflex,
    ReflexAction,
    Reflexes,
    SlowPeerReflex,
    StartWaitReflex,
)
from penstock.rules.decode import RefusedError, decode_policy

_ALL = tuple(field.name for field in PolicyBodyMessage.DESCRIPTOR.fields)


def _entry(**reflexes: Any) -> ScheduledPolicy:
    return json_format.ParseDict({"hash": "h", "body": {"reflexes": reflexes}}, ScheduledPolicy())


def _refused(entry: ScheduledPolicy, fields: tuple[str, ...] = _ALL) -> tuple[str, str]:
    with pytest.raises(RefusedError) as refused:
        decode_policy(entry, fields)
    return refused.value.field, str(refused.value)


def test_every_field_is_read() -> None:
    """And what is not set is left to the defaults."""
    entry = _entry(
        perMinute=30,
        startWait={"action": "REFLEX_ACTION_ENFORCE", "factor": 1.5, "minWait": "0.25s"},
        slowPeer={"action": "REFLEX_ACTION_OBSERVE", "factor": 3},
        recomputeStorm={"action": "REFLEX_ACTION_OBSERVE", "queueWait": "2s"},
    )
    assert decode_policy(entry, _ALL).reflexes == Reflexes(
        30,
        StartWaitReflex(ReflexAction.ENFORCE, 1.5, 0.25),
        SlowPeerReflex(ReflexAction.OBSERVE, 3.0),
        RecomputeStormReflex(ReflexAction.OBSERVE, 2.0),
    )
    assert decode_policy(_entry(startWait={"factor": 2}), _ALL).reflexes == Reflexes(
        start_wait=StartWaitReflex(factor=2.0)
    )


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        (section, "factor", value)
        for section in ("startWait", "slowPeer")
        for value in (-1.0, 0.0, 1.0, 1.099, 100.1, math.inf, math.nan)
    ],
)
def test_a_factor_is_within_bounds(section: str, field: str, value: float) -> None:
    """One that is no number is in no bounds."""
    entry = ScheduledPolicy(hash="h")
    name = "start_wait" if section == "startWait" else "slow_peer"
    setattr(getattr(entry.body.reflexes, name), field, value)
    path, said = _refused(entry)
    assert path == f"reflexes.{section}.factor"
    assert said == f"reflexes.{section}.factor is {value:g}; use a number from 1.1 to 100"


@pytest.mark.parametrize(
    ("reflexes", "path"),
    [
        ({"perMinute": 0}, "reflexes.perMinute"),
        ({"perMinute": 6001}, "reflexes.perMinute"),
        ({"startWait": {"minWait": "0s"}}, "reflexes.startWait.minWait"),
        ({"startWait": {"minWait": "-1s"}}, "reflexes.startWait.minWait"),
        ({"recomputeStorm": {"queueWait": "3601s"}}, "reflexes.recomputeStorm.queueWait"),
    ],
)
def test_numbers_and_times_are_within_bounds(reflexes: dict[str, Any], path: str) -> None:
    """The path is the manifest's."""
    assert _refused(_entry(**reflexes))[0] == path


@pytest.mark.parametrize("section", ["start_wait", "slow_peer", "recompute_storm"])
def test_an_action_of_a_newer_agent_is_refused(section: str) -> None:
    """It is not taken for one that is known."""
    entry = ScheduledPolicy(hash="h")
    getattr(entry.body.reflexes, section).action = 3
    path, said = _refused(entry)
    assert path.endswith(".action")
    assert said == f"{path} has the value 3, which this engine does not know; use observe or enforce"


def test_a_storm_that_is_to_act_is_refused() -> None:
    """It is not taken for one that observes."""
    path, said = _refused(_entry(recomputeStorm={"action": "REFLEX_ACTION_ENFORCE"}))
    assert path == "reflexes.recomputeStorm.action"
    assert said == f"{path} is enforce; it can only observe"


def test_an_engine_without_the_section_refuses_it_by_its_field() -> None:
    """Not silently: a reflex that is not there reports nothing."""
    path, said = _refused(_entry(slowPeer={"factor": 2}), ("kv_load_failure",))
    assert path == "reflexes.slowPeer.factor"
    assert "this engine does not act upon reflexes.slowPeer.factor" in said
