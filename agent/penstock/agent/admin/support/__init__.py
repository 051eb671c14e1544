"""What the calls stand on: the context, the messages, and look-ups that several share."""

from __future__ import annotations

from penstock.agent.admin.support import messages
from penstock.agent.admin.support.bounded_scan import Found, Scan
from penstock.agent.admin.support.context import AgentContext
from penstock.agent.admin.support.deferrals import deferred_requests
from penstock.agent.admin.support.engine_counters import METRICS, engine_counters
from penstock.agent.admin.support.messages import MOST_32, counted, key_message, rollout_message, timestamp
from penstock.agent.admin.support.order_fields import (
    author_and_reason,
    checked_peer,
    checked_ttl,
    new_order_id,
    timedelta_of,
)
from penstock.agent.admin.support.peers import COUNTED, PeerKey, last_failures, peer_summaries
from penstock.agent.admin.support.policy_impact import Merges, confirm, engine_changes, warnings
from penstock.agent.admin.support.retirement import Retirement
from penstock.agent.admin.support.targets import (
    EngineCounts,
    check_names,
    find_target,
    key_of,
    known,
    selected_targets,
    selected_views,
    selection_of,
    source_target,
    standing,
    subscribed_engines,
    targets,
)

__all__ = [
    "COUNTED",
    "METRICS",
    "MOST_32",
    "AgentContext",
    "EngineCounts",
    "Found",
    "Merges",
    "PeerKey",
    "Retirement",
    "Scan",
    "author_and_reason",
    "check_names",
    "checked_peer",
    "checked_ttl",
    "confirm",
    "counted",
    "deferred_requests",
    "engine_changes",
    "engine_counters",
    "find_target",
    "key_message",
    "key_of",
    "known",
    "last_failures",
    "messages",
    "new_order_id",
    "peer_summaries",
    "rollout_message",
    "selected_targets",
    "selected_views",
    "selection_of",
    "source_target",
    "standing",
    "subscribed_engines",
    "targets",
    "timedelta_of",
    "timestamp",
    "warnings",
]
