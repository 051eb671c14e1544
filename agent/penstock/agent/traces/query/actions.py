"""Describes the action on a failed load: what was done, who decided it and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.model import policy_names
from penstock.agent.traces.query.words import counted, words
from penstock.agent.traces.spans import attributes, deciding_policies
from penstock.proto.v1 import common_pb2
from penstock.rules import RECOMPUTE_STORM, SLOW_PEER, Trigger, trigger_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.model import PolicySource
    from penstock.proto.v1.events_pb2 import LoadOutcome

HASH_LENGTH = 12
"""Characters of a hash that are shown."""
_DECIDERS: dict[int, str] = {
    common_pb2.DECIDED_BY_QUARANTINE: "the peer's quarantine",
    common_pb2.DECIDED_BY_BUDGET: "the recompute budget",
    common_pb2.DECIDED_BY_DEADLINE: "the deadline",
    common_pb2.DECIDED_BY_REFLEX: "a reflex of the engine",
}


def describe_action(outcome: LoadOutcome, policies: Sequence[PolicySource] = ()) -> str:
    """Return what was done, by whom and why: ``400 tokens were computed again, 12 were kept, decided by policy …``.

    *policies*: those behind the outcome's hash; the hash is shown where they are not known.
    """
    match outcome.outcome:
        case common_pb2.OUTCOME_RECOMPUTED:
            done = _recomputed(outcome)
        case common_pb2.OUTCOME_FAILED:
            done = f"the request was failed, {_saved(outcome)}"
        case common_pb2.OUTCOME_ABORTED:
            done = "the request was aborted"
        case common_pb2.OUTCOME_RETRIED:
            done = "the load was tried again"
        case other:
            done = f"the outcome was {attributes.enum_word(common_pb2.Outcome, other) or 'not reported'}"
    reason = f" ({outcome.reason.rstrip('.')})" if outcome.reason else ""
    return f"{done}, {_decided(outcome, policies)}{reason}{_observed(outcome)}"


def _recomputed(outcome: LoadOutcome) -> str:
    tokens = (
        f"{counted(outcome.tokens_recomputed, 'token')} {'was' if outcome.tokens_recomputed == 1 else 'were'} computed again, "
        f"{outcome.tokens_kept:,} {'was' if outcome.tokens_kept == 1 else 'were'} kept"
    )
    if outcome.channel != common_pb2.CHANNEL_EC:
        return tokens
    items = f"{_items(outcome)} encoded here"
    # A load that failed before anything was computed costs the encoding only.
    return f"{items}, {tokens}" if outcome.tokens_recomputed else items


def _saved(outcome: LoadOutcome) -> str:
    tokens = f"{counted(outcome.tokens_recomputed, 'token')} not recomputed"
    if outcome.channel != common_pb2.CHANNEL_EC or not outcome.items_recomputed:
        return tokens
    items = f"{counted(outcome.items_recomputed, 'item')} not encoded"
    return f"{items} and {tokens}" if outcome.tokens_recomputed else items


def _items(outcome: LoadOutcome) -> str:
    count = outcome.items_recomputed
    return f"{counted(count, 'item')} {'was' if count == 1 else 'were'}"


def _observed(outcome: LoadOutcome) -> str:
    """Return what a policy in mode observe would have done; empty without one."""
    if not outcome.observed_outcome:
        return ""
    reason = f" ({outcome.observed_reason.rstrip('.')})" if outcome.observed_reason else ""
    who = (
        "by a reflex that only observes"
        if outcome.observed_reason.startswith(RECOMPUTE_STORM)
        else "under the observed policy"
    )
    return f"; {who} it would be {attributes.enum_word(common_pb2.Outcome, outcome.observed_outcome)}{reason}"


def observed_wait(reason: str) -> str:
    """Return what would have become of a load that a request waited for, by what only observes."""
    if reason.startswith(SLOW_PEER):
        return f"loaded all the same; what only observes would have computed instead ({reason.rstrip('.')})"
    return f"waited on; what only observes would have given its load up ({reason.rstrip('.')})"


def why_without(outcome: LoadOutcome) -> str:
    """Return why a request did without a load that no failure is recorded of."""
    known = words(outcome.mode, outcome.error_type)
    if outcome.decided_by == common_pb2.DECIDED_BY_REFLEX:
        slow = trigger_of(outcome.reason) is Trigger.SLOW_PEER
        return "its peer is slow" if slow else "it did not begin"
    if outcome.decided_by != common_pb2.DECIDED_BY_QUARANTINE:
        return known
    # Mode and error type are of the failure that brought it there; an operator's word has none.
    return f"the peer is in quarantine{f' since {known}' if outcome.mode else ''}"


def _decided(outcome: LoadOutcome, policies: Sequence[PolicySource]) -> str:
    names = policy_names(deciding_policies(outcome, policies), outcome.policy_hash)
    policy = f"policy {names}" if names else "no policy"
    match outcome.decided_by:
        case common_pb2.DECIDED_BY_VLLM:
            whose = "the connector's" if outcome.channel == common_pb2.CHANNEL_EC else "vLLM's"
            return f"decided by {whose} own configuration under {policy}"
        case common_pb2.DECIDED_BY_POLICY:
            return f"decided by {policy}"
        case other:
            who = (
                _DECIDERS.get(other)
                or attributes.enum_word(common_pb2.DecidedBy, other)
                or "an unknown party"
            )
            return f"decided by {who} under {policy}"
