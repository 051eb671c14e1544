"""Whether a policy is to blame that a request failed whose load had failed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.diagnosis.facts.words import key_of
from penstock.proto.names import NANOS, label
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from penstock.agent.diagnosis.facts.records import LoadEnd
    from penstock.agent.diagnosis.facts.windows import Facts
    from penstock.proto.v1 import admin_pb2 as admin

_FAIL: Final = "fail"
# A policy is to blame that was changed since the beginning of the time that is compared with; an older one is how
# things are, and what makes the loads fail is to blame. So is the policy under which several peers' loads fail.
_SEVERAL = 2


class PolicyBlame(NamedTuple):
    """A generation of a policy that says ``fail``.

    Attributes:
        changed: nanoseconds; 0 if it is not known.
        field: that says it: ``kvLoadFailure.action``.

    """

    name: str
    generation: int
    author: str
    changed: int
    field: str


def blamed_policy(facts: Facts, end: LoadEnd) -> PolicyBlame | None:
    """Return the policy that is to blame for *end*, a failed request; None if none is."""
    if end.decided_by != common.DECIDED_BY_POLICY:
        return None
    blame = failing_policy(facts, end)
    if blame is None:
        return None
    start = facts.now - int((facts.present.seconds + facts.before.seconds) * NANOS)
    if blame.changed >= start:
        return blame
    peers = {
        each.peer
        for each in facts.present.load_ends
        if each.policy_hash == end.policy_hash and each.channel == end.channel and each.outcome == end.outcome
    }
    return blame if len(peers) >= _SEVERAL else None


def failing_policy(facts: Facts, end: LoadEnd) -> PolicyBlame | None:
    """Return the policy that says ``fail`` for the channel of *end*; None if none does, or it is not known."""
    field = f"{label(common.Channel, end.channel)}LoadFailure.action"
    engine = next((each for each in facts.engines if key_of(each.key) == end.key), None)
    present = engine is not None and engine.policy.hash == end.policy_hash
    if engine is not None and present and _action(engine, end.channel) != _FAIL:
        return None
    sources = facts.policies.get((end.key, end.policy_hash), ())
    if not sources and engine is not None and present:
        sources = engine.policies
    for source in sources:
        if field in source.fields:
            return PolicyBlame(
                source.name, source.generation, source.author, source.changed_time_unix_nano, field
            )
    return None


def _action(engine: admin.Engine, channel: int) -> str:
    return engine.policy.kv_action if channel == common.CHANNEL_KV else engine.policy.ec_action
