"""Limits of a snapshot: text is cut, lists are shortened. Imports protobuf.

Providers copy text that clients choose (``kv_transfer_params`` name peers). One long text must not cost the source its
gauges, so the whole message is bounded here, whatever its providers put into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import Message
from penstock.instrumentation.telemetry.encoder import BATCH_BYTES, TEXT_MAX, cut_text

if TYPE_CHECKING:
    from penstock.proto.v1.snapshot_pb2 import Snapshot

ROWS_MAX: Final = 1024
"""Rows of one list; the agent counts the rows that it parses."""


def enforce_limits(snapshot: Snapshot) -> int:
    """Cut *snapshot* to the size of a message; return how many rows were dropped, the last of each list.

    Maps are unchanged: the settings bound them.
    """
    lists = [
        value
        for _, value in snapshot.ListFields()
        if not isinstance(value, (Message, bool, int, str, Mapping))
    ]
    lost = _shorten(lists, ROWS_MAX)
    _cut(snapshot)
    limit = ROWS_MAX
    while limit > 1 and snapshot.ByteSize() > BATCH_BYTES:
        limit //= 2
        lost += _shorten(lists, limit)
    return lost


def _shorten(lists: list[Any], limit: int) -> int:
    lost = 0
    for rows in lists:
        if len(rows) > limit:
            lost += len(rows) - limit
            del rows[limit:]
    return lost


def _cut(message: Any) -> None:
    # A message of at most this size holds no longer text.
    if message.ByteSize() <= TEXT_MAX:
        return
    for descriptor, value in message.ListFields():
        if isinstance(value, str):
            setattr(message, descriptor.name, cut_text(value))
        elif isinstance(value, Message):
            _cut(value)
        elif descriptor.message_type is not None and not isinstance(value, Mapping):
            for row in value:
                _cut(row)
