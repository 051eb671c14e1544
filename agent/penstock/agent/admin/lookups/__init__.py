"""What the calls look up: the agent's parts, engines, peers, requests and the past; and their messages."""

from __future__ import annotations

from penstock.agent.admin.lookups import messages
from penstock.agent.admin.lookups.bounded_scan import EventScan, FoundEvent
from penstock.agent.admin.lookups.bundled_state import (
    bundled_looks,
    bundled_sources,
    bundled_stalls,
    bundled_subscriptions,
    bundled_weights,
)
from penstock.agent.admin.lookups.context import AgentContext
from penstock.agent.admin.lookups.deferrals import deferred_requests
from penstock.agent.admin.lookups.diagnosis_windows import ReadWindows, WindowQuestion, read_windows
from penstock.agent.admin.lookups.engine_counters import (
    ENGINE_METRICS,
    compared_counts,
    compared_engine,
    engine_counters,
)
from penstock.agent.admin.lookups.feed_states import FeedState, feed_states
from penstock.agent.admin.lookups.holders import engine_holders
from penstock.agent.admin.lookups.judge import Judge
from penstock.agent.admin.lookups.known_peers import PeerKey, PeerSources, clock_offsets, last_snapshots
from penstock.agent.admin.lookups.last_loads import last_loads
from penstock.agent.admin.lookups.messages import (
    MAX_UINT32,
    clamp_unsigned,
    delivery_message,
    key_message,
    pause_message,
    timestamp_message,
)
from penstock.agent.admin.lookups.order_fields import (
    author_and_reason,
    checked_peer,
    checked_ttl,
    new_order_id,
    timedelta_of,
)
from penstock.agent.admin.lookups.other_weights import DifferentWeights, OtherWeights, Place, WeightsMemory
from penstock.agent.admin.lookups.pair_sides import pair_engines
from penstock.agent.admin.lookups.past import PastEngines, past_engines
from penstock.agent.admin.lookups.past_orders import CHANGES_READ, PastOrders, past_orders
from penstock.agent.admin.lookups.peer_list import listed_peers
from penstock.agent.admin.lookups.policy_impact import (
    MergedPolicies,
    check_confirmed,
    engine_changes,
    policy_warnings,
    share_words,
    shares,
)
from penstock.agent.admin.lookups.request_durations import DEFAULT_SLOW, ORDERS, add_durations
from penstock.agent.admin.lookups.requests import RequestLog
from penstock.agent.admin.lookups.retirement import Retirement
from penstock.agent.admin.lookups.slow_requests import slowest_requests
from penstock.agent.admin.lookups.targets import (
    PolicyStates,
    check_engine_names,
    engine_key_of,
    find_target,
    known_engines,
    policy_states,
    selected_targets,
    selected_views,
    selection_of,
    source_target,
    subscribed_engines,
    targets_by_key,
    view_target,
)

__all__ = [
    "CHANGES_READ",
    "DEFAULT_SLOW",
    "ENGINE_METRICS",
    "MAX_UINT32",
    "ORDERS",
    "AgentContext",
    "DifferentWeights",
    "EventScan",
    "FeedState",
    "FoundEvent",
    "Judge",
    "MergedPolicies",
    "OtherWeights",
    "PastEngines",
    "PastOrders",
    "PeerKey",
    "PeerSources",
    "Place",
    "PolicyStates",
    "ReadWindows",
    "RequestLog",
    "Retirement",
    "WeightsMemory",
    "WindowQuestion",
    "add_durations",
    "author_and_reason",
    "bundled_looks",
    "bundled_sources",
    "bundled_stalls",
    "bundled_subscriptions",
    "bundled_weights",
    "check_confirmed",
    "check_engine_names",
    "checked_peer",
    "checked_ttl",
    "clamp_unsigned",
    "clock_offsets",
    "compared_counts",
    "compared_engine",
    "deferred_requests",
    "delivery_message",
    "engine_changes",
    "engine_counters",
    "engine_holders",
    "engine_key_of",
    "feed_states",
    "find_target",
    "key_message",
    "known_engines",
    "last_loads",
    "last_snapshots",
    "listed_peers",
    "messages",
    "new_order_id",
    "pair_engines",
    "past_engines",
    "past_orders",
    "pause_message",
    "policy_states",
    "policy_warnings",
    "read_windows",
    "selected_targets",
    "selected_views",
    "selection_of",
    "share_words",
    "shares",
    "slowest_requests",
    "source_target",
    "subscribed_engines",
    "targets_by_key",
    "timedelta_of",
    "timestamp_message",
    "view_target",
]
