"""A snapshot as the agent takes it: texts cut, lists shortened.

What providers copy is partly said by others: a client's ``kv_transfer_params`` name peers. One such word must not
cost the source its gauges, so the whole is bounded here, once, in whatever its providers put.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import Message
from penstock.instrumentation.telemetry.encoder import BATCH_BYTES, TEXT_MAX, text

if TYPE_CHECKING:
    from penstock.proto.v1.snapshot_pb2 import Snapshot

ROWS_MAX: Final = 1024
"""Rows of one list; more peers than that are nobody's to look at, and the agent counts what it parses."""


def bound(snapshot: Snapshot) -> int:
    """Cut *snapshot* to what a message may hold, and return how many rows were given up, the last of each list.

    Maps are left alone: the settings bound them.
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
    # No text is longer than what holds it.
    if message.ByteSize() <= TEXT_MAX:
        return
    for descriptor, value in message.ListFields():
        if isinstance(value, str):
            setattr(message, descriptor.name, text(value))
        elif isinstance(value, Message):
            _cut(value)
        elif descriptor.message_type is not None and not isinstance(value, Mapping):
            for row in value:
                _cut(row)
