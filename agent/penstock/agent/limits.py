"""From which number on something counts as wrong: one table for the judge, the lists, the pairs and the stalls.

An alert that says the same has the same number; ``tests/dashboards/test_limits.py`` compares them.
"""

from __future__ import annotations

from typing import Final

# How much must be known before anything is compared.

MEDIAN_COUNT: Final = 5
"""Durations, transfers or requests: the median of fewer is chance."""

TAIL_COUNT: Final = 20
"""Durations: of fewer the 99th percentile is the longest one."""

USUAL_COUNT: Final = 20
"""Durations or transfers of the past that the agent keeps: fewer do not say what is usual."""

USUAL_LOGGED_COUNT: Final = 5
"""Waits or requests of the log's time before: fewer than above, because a full log holds little of it."""

OTHER_PEERS: Final = 2
"""Other peers of an engine: with fewer it is not decided which of them is slow."""

# Slow is three times as long as usual, everywhere.

SLOW_TIMES: Final = 3.0
"""Times the usual duration, or that of the other peers; PenstockPeerSlow has the same."""

SLOW_SECONDS: Final = 0.02
"""Seconds by which a median must be longer, too: shorter ones hold up nobody; PenstockPeerSlow has the same."""

SLOW_WAIT_SECONDS: Final = 0.05
"""Likewise of one wait, which ends with a step of the scheduler: single ones scatter by a step, medians do not."""


def is_slower(now: float, usual: float, least: float = SLOW_SECONDS) -> bool:
    """Return whether a duration is slow beside the *usual*; seconds. *least*: by which it must be longer, too."""
    return now > SLOW_TIMES * usual and now - usual > least


SLOW_ANYWAY_SECONDS: Final = 1.0
"""Seconds of a wait that is slow where nothing is known of the past."""

LONG_WAIT_SECONDS: Final = 1.0
"""Likewise of a wait whose trace is kept whatever the sample ratio is, and to which an explanation gives a sentence."""

SLOW_SPEED_RATIO: Final = 0.25
"""Bytes/s over the usual, or over the other peers': their medians are of buckets 41 % wide, so that a quarter is a third.

PenstockTransferSlowerThanUsual and PenstockTransferSlowerThanPeers have the same.
"""

LOOK_TIMES: Final = 1.5
"""Times between two looks by which a duration may be too long: looks vary, and durations are of buckets 26 % wide."""


def is_loose(least: float, most: float) -> bool:
    """Return whether a number between two bounds is little known: the engine looked seldom at what it measured."""
    return most > LOOSE_TIMES * least


LOOSE_TIMES: Final = 1.5
"""Times by which an end that may have been earlier changes a speed or a duration: from here on it is told as "at least" or "at most"."""

SLOW_WAITS_COUNT: Final = 2
"""Slow waits for a peer: one is chance, ..."""

SLOW_WAITS_SHARE: Final = 0.01
"""... and so is this share of all waits for it, ..."""

SLOW_WAITS_SECONDS: Final = 10.0
"""... but not seconds beyond the usual, of all slow waits together."""

SLOW_WAITS_LEAST_SECONDS: Final = 1.0
"""Of all slow waits together: three of a tenth of a second are no cause to look at a peer."""

SLOW_WAITS_TIMES: Final = 2.0
"""Times the share of slow waits of the time before: where waits scatter, some are always slow."""

SLOW_WAITS_UNKNOWN_SECONDS: Final = 30.0
"""Seconds of all slow waits together where that share is not known: long waits may be usual."""

FIRST_TOKENS_TIMES: Final = 1.8
"""Times the usual time to first token: a noisy value that doubles is above it; PenstockFirstTokensLate has the same."""

FIRST_TOKENS_SECONDS: Final = 0.2
"""Seconds by which it must be longer, too: what a user notices; PenstockFirstTokensLate has the same."""

# What hangs, and what is held.

HANGS_TIMES: Final = 2.0
"""Times the longest usual wait after which a request or a transfer that goes on hangs, ..."""

HANGS_SECONDS: Final = 1.0
"""... and seconds below which none does: a long prompt takes as long."""

HELD_SECONDS: Final = 30.0
"""Age of blocks without a request that computes with them: younger ones are on their way out."""

LEASE_SECONDS: Final = 60.0
"""Age of a lease whose reader is not to come: twice vLLM's own lease of 30 seconds."""

EXPIRED_COUNT: Final = 3
"""Leases that ended unread: clients that disconnect leave as many, ..."""

EXPIRED_SHARE: Final = 0.05
"""... and this share of those that were released."""

UNTRIED_SECONDS: Final = 900.0
"""Without an attempt to load from a peer: it is idle, and whether it answers is not known."""

# What fails, and what is lost.

LIMITED_COUNT: Final = 3
"""Requests that a budget or a deadline let fail: fewer are what a limit is for."""

BLAMED_PEERS: Final = 2
"""Peers whose loads fail under a policy of old: with fewer the peer is to blame and not the policy."""

RECOMPUTED_SHARE: Final = 0.2
"""Prompt tokens that were recomputed, of all: below it, recomputation costs little; PenstockRecomputeStorm has the same."""

RECOMPUTED_COUNT: Final = 10
"""Requests that were recomputed: of fewer the share is chance."""

BARE_COUNT: Final = 5
"""Requests without transfer parameters: fewer are clients that go past the router."""

BARE_SHARE: Final = 0.9
"""Share of requests without parameters from which the router sends none."""

BARE_SHARE_KEPT: Final = 0.75
"""Likewise once it has been above that, so that a request more or less does not end it."""

BARE_PART: Final = 0.1
"""A smaller share that is new: below it, routers let decode compute short prompts itself ..."""

BARE_PART_TIMES: Final = 3.0
"""... and so much of the share of the time before."""

BARE_ARRIVALS: Final = 20
"""Requests of five minutes, by the engine's counts of arrivals: of fewer the share is chance."""

UNLOADED_COUNT: Final = 3
"""Requests that should have loaded KV and loaded none: fewer are aborted in time."""

CLOCK_SECONDS: Final = 1.0
"""Difference to the agent's clock: above it, spans and ages of the two do not compare."""

STALE_ADDRESSES: Final = 3
"""Peers that refuse connections and from which nothing was ever loaded: so many are no pods, but what a router still names."""

# When it has ended.

QUIET_SECONDS: Final = 60.0
"""Without a sign of it: shorter pauses are part of a trouble, ..."""

QUIET_PAUSES: Final = 3.0
"""... and so are so many times its usual pause, ..."""

QUIET_COUNT: Final = 3
"""... in which so many loads or requests went well; ..."""

ROUTED_AWAY_SECONDS: Final = 60.0
"""A peer that nobody has tried for so long, while its readers read well from others, is one of which the router has let go."""

QUIET_TIMES: Final = 2.0
"""... or after so many times as long a quiet time, in which one did: little may be loaded from a peer."""

# Experts.

EPLB_SHARE: Final = 0.01
"""Share of the time in which rebalances stop the forward pass: below it, they cost less than they gain."""

EPLB_SECONDS: Final = 0.5
"""One pause that every running request notices; PenstockEplbStalls asks for a mean of twice that, for 15 minutes."""

EPLB_EXPECTED: Final = 3.0
"""Rebalances that were due by the pace of the time before: with fewer, none is no surprise."""

EPLB_INTERVALS: Final = 2
"""Step intervals without a rebalance: the ranks begin one together, so one interval may be late."""

EPLB_REBALANCE_SECONDS: Final = 300.0
"""One rebalance while steps go on: an asynchronous one of large experts takes minutes."""

# What stands still, seconds.

START_SECONDS: Final = 30.0
"""Wait of a request before its transfer or handshake begins: a queue of handshakes takes as long."""

PUSH_START_SECONDS: Final = 120.0
"""Likewise where the peer pushes: its prefill is part of the wait, and no begin is reported."""

CALL_SECONDS: Final = 30.0
"""A call into a connector: a slow store answers sooner."""

STEP_SECONDS: Final = 60.0
"""A step of the engine: the first ones compile."""

CAPACITY_SECONDS: Final = 1.0
"""Without a token scheduled while nothing runs and requests wait for KV blocks: a step that ends frees some at once, ..."""

CAPACITY_LOADS_SECONDS: Final = 5.0
"""... but not where loads under way hold most of the cache: a long prompt takes as long to come, ..."""

CAPACITY_SURE_SECONDS: Final = 10.0
"""... and from which on that is sure: readers that are busy come for leased blocks within seconds."""

SCHEDULER_PAUSE_SECONDS: Final = 30.0
"""Wait of a request in a scheduler that vLLM itself has paused: an update of weights takes as long."""

TOKENLESS_SECONDS: Final = 10.0
"""Steps that schedule no token although a request could run."""

NO_STEP_SECONDS: Final = 30.0
"""Without a step while requests wait or run: a call that loads an adapter holds up steps for as long."""

THREAD_SECONDS: Final = 10.0
"""A connector's thread that is gone: an engine that ends goes sooner."""

SILENT_SECONDS: Final = 10.0
"""Without a word of a worker while its EngineCore reports and a step is under way: ten snapshots."""

SILENT_SURE_SECONDS: Final = 30.0
"""From which on that is sure: with 30 processes on two cores, healthy workers said nothing for 13 s amid their steps."""

SILENT_IDLE_SECONDS: Final = 120.0
"""The same while no step is under way: on a busy machine snapshots of healthy workers were 91 s late, and nobody waits."""

BEHIND_SECONDS: Final = 30.0
"""A worker's steps stand still while those of its siblings go on: no collective waits as long."""

IDLE_SECONDS: Final = 60.0
"""Without a step: an engine that is idle is not overdue with anything."""

COUNTS_SECONDS: Final = 300.0
"""Window over which an engine's counts of requests are compared: shorter ones hold too few."""

ENDED_STALL_LEAST_SECONDS: Final = 30.0
"""How long it must have lasted to be told when it is over: shorter ones are many on a busy machine, ..."""

ENDED_STALL_SECONDS: Final = 600.0
"""... and how long it is told: a diagnosis looks back as far."""

# The agent itself.

READ_SHARE: Final = 0.5
"""The part of a window that must have been read for "nothing is wrong", or to compare with it."""

ASKER_CLOCK_SECONDS: Final = 2.0
"""Between the agent's clock and that of who asks."""

DISK_NOTE_BYTES: Final = 1 << 30
"""Free where the agent keeps its state: less is worth a word, ..."""

DISK_WRONG_BYTES: Final = 128 << 20
"""... and so little is wrong."""

EXPORT_LAG_SECONDS: Final = 300.0
"""Of the oldest entry that a backend has not got."""

UNACKNOWLEDGED_BYTES: Final = 16 << 20
"""Of an engine's process: half of what it buffers."""
