"""Whether a policy is to blame that a request failed whose load had failed. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent import limits
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


class PolicyBlames:
    """Which policies are to blame; what is asked for each load is found once for all that are alike."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._start = facts.now - int((facts.present.seconds + facts.before.seconds) * NANOS)
        self._found: dict[tuple[object, ...], PolicyBlame | None] = {}
        self._peers: defaultdict[tuple[object, ...], set[str]] = defaultdict(set)
        for each in facts.present.load_ends:
            self._peers[each.policy_hash, each.channel, each.outcome].add(each.peer)

    def of(self, end: LoadEnd) -> PolicyBlame | None:
        """Return the policy that is to blame for *end*; None if none is, or its request did not fail."""
        if end.outcome != common.OUTCOME_FAILED or end.decided_by != common.DECIDED_BY_POLICY:
            return None
        place = (end.key, end.channel, end.policy_hash)
        if place not in self._found:
            self._found[place] = self._blame(end)
        return self._found[place]

    def _blame(self, end: LoadEnd) -> PolicyBlame | None:
        blame = failing_policy(self._facts, end)
        if blame is None or blame.changed >= self._start:
            return blame
        peers = self._peers[end.policy_hash, end.channel, end.outcome]
        return blame if len(peers) >= limits.BLAMED_PEERS else None


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
