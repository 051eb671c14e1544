"""What each ``DeferralReason`` waits for: the one table of engine side and agent, without protobuf.

A test holds that each value of the enum has its row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.proto import constants as c

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFERRAL_CHANNELS: Final[Mapping[int, int]] = {
    c.DEFERRAL_REASON_OTHER: 0,
    c.DEFERRAL_REASON_REMOTE_KV: c.CHANNEL_KV,
    c.DEFERRAL_REASON_KV_LOOKUP: c.CHANNEL_KV,
    c.DEFERRAL_REASON_ENCODER_CACHE: c.CHANNEL_EC,
    c.DEFERRAL_REASON_GRAMMAR: 0,
    c.DEFERRAL_REASON_STREAMING_INPUT: 0,
}
"""Each reason, and the channel that is waited for; 0 for what the engine itself does."""

WAITED_CHANNELS: Final[Mapping[int, int]] = {
    reason: channel for reason, channel in DEFERRAL_CHANNELS.items() if channel
}
"""The reasons that wait for a peer or a store."""

LOAD_CHANNELS: Final[Mapping[int, int]] = {
    reason: channel for reason, channel in WAITED_CHANNELS.items() if reason != c.DEFERRAL_REASON_KV_LOOKUP
}
"""The reasons during which a load goes on: a look-up ends before its load begins, and no deadline ends it."""
