"""The entries that hooks queue for the exporter: plain tuples, because they are the cheapest to build.

The order of a sample's fields is the order of the columns of its message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

EventRecord: TypeAlias = tuple[int, str, "Mapping[str, Any]", int, int, str, bool]
"""time_ns, kind, fields, component, rank, request_id, rehearsal."""

TransferRecord: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, str, str, str, str]
"""end_ns, duration_ns, bytes, descriptors, post_ns, end_uncertainty_ns, channel, direction, result, component, rank,
connector, peer, peer_engine_id, request_id."""

ProbeRecord: TypeAlias = tuple[int, int, int, str, str, str]
"""end_ns, duration_ns, result, connector, peer, request_id."""

TRANSFER_COLUMNS: Final = (
    "end_time_unix_nano",
    "duration_nano",
    "bytes",
    "descriptors",
    "post_duration_nano",
    "end_uncertainty_nano",
    "channel",
    "direction",
    "result",
    "component",
    "rank",
    "connector",
    "peer",
    "peer_engine_id",
    "request_id",
)
TRANSFER_TEXT: Final = 11
"""From this column on a transfer's fields are text."""

PROBE_COLUMNS: Final = ("end_time_unix_nano", "duration_nano", "result", "connector", "peer", "request_id")
PROBE_TEXT: Final = 3
"""From this column on a probe's fields are text."""

KIND_TRANSFER: Final = "transfer_sample"
KIND_PROBE: Final = "probe_sample"
"""The kinds of samples in drop accounts; the kind of an event is its field in ``Event.body``."""
