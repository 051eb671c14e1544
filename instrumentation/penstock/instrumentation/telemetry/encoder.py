"""Encodes queued records into sealed batches.

An entry that cannot be encoded is dropped and counted, and the rest of its batch is kept; text that is too long is cut;
a batch that is too large is split. Of a snapshot, whose providers copy text that clients choose (``kv_transfer_params`` name
peers), text is cut and lists are shortened, so that one long text does not cost the source its gauges. Imports protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf.message import Message
from penstock.instrumentation.core import DropCounter
from penstock.instrumentation.telemetry.outbox import Sealed
from penstock.instrumentation.telemetry.records import (
    KIND_PROBE,
    KIND_TRANSFER,
    PROBE_COLUMNS,
    PROBE_TEXT,
    TRANSFER_COLUMNS,
    TRANSFER_TEXT,
)
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.ingest_pb2 import Batch, Drop, GuardError, Tombstone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.instrumentation.telemetry.records import EventRecord, ProbeRecord, TransferRecord
    from penstock.proto.v1.common_pb2 import Component
    from penstock.proto.v1.snapshot_pb2 import Snapshot

BATCH_BYTES: Final = (1 << 20) - (256 << 10)
"""Bytes of entries in one batch; the rest of the mebibyte holds the head and the accounts."""

BATCH_PARTS: Final = 24_000
"""Strings and submessages of one batch; the agent counts them before it parses, because each takes memory."""

TEXT_MAX: Final = 1024
"""Bytes of UTF-8 of one text."""

WORD_MAX: Final = 128
"""Bytes of one word of an account, so that 256 of each fit into a message beside the entries."""

ENCODE_ERROR: Final = "encode_error"
OVERSIZE: Final = "oversize"
UNKNOWN_KIND: Final = "unknown"

# The agent writes these itself.
_KINDS: Final = {field.name for field in Event.DESCRIPTOR.oneofs_by_name["body"].fields} - {
    "source_lost",
    "source_stopped",
    "forgotten",
}


def seal(
    events: Sequence[EventRecord],
    transfers: Sequence[TransferRecord],
    probes: Sequence[ProbeRecord],
    drops: DropCounter,
) -> list[Sealed]:
    """Return the records as batches, in their order; a record that cannot be encoded is counted in *drops*."""
    sealed: list[Sealed] = []
    if events or transfers or probes:
        _seal(events, transfers, probes, drops, sealed)
    return sealed


def frame(epoch: int, seq: int, batch: Sealed) -> bytes:
    """Return *batch* as a serialized ``Batch`` with its sequence number.

    Concatenated serialized messages are one message.
    """
    head = Batch(
        epoch=epoch,
        seq=seq,
        drops=_drops(batch.drops),
        guard_errors=[
            GuardError(hook=cut_text(hook, WORD_MAX), error_class=cut_text(error, WORD_MAX), count=count)
            for (hook, error), count in batch.guard_errors.items()
        ],
    )
    if batch.lost:
        head.tombstone.CopyFrom(Tombstone(lost=_drops(batch.lost)))
    return head.SerializeToString() + batch.body


def cut_text(value: str, limit: int = TEXT_MAX) -> str:
    """Return *value* cut to *limit* bytes of UTF-8; lone surrogates are replaced."""
    if len(value) * 4 <= limit and value.isascii():
        return value
    # A character is a byte or more: the rest need not be encoded.
    return value[:limit].encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")


def _seal(
    events: Sequence[EventRecord],
    transfers: Sequence[TransferRecord],
    probes: Sequence[ProbeRecord],
    drops: DropCounter,
    sealed: list[Sealed],
) -> None:
    batch, samples = Batch(), Batch()
    held: dict[str, int] = {}
    sampled: dict[str, int] = {}
    refused = DropCounter()
    parts = _Parts()
    for record in events:
        event = _event(record, parts, refused)
        if event is not None:
            batch.events.append(event)
            kind = record[1]
            held[kind] = held.get(kind, 0) + 1
    table = {"": 0}
    rows = _columns(samples.transfers, TRANSFER_COLUMNS, TRANSFER_TEXT, transfers, table)
    _account(KIND_TRANSFER, len(transfers), rows, sampled, refused)
    rows = _columns(samples.probes, PROBE_COLUMNS, PROBE_TEXT, probes, table)
    _account(KIND_PROBE, len(probes), rows, sampled, refused)
    if sampled:
        samples.strings.extend(table)
    found = Sealed(batch.SerializeToString(), held, samples.SerializeToString() if sampled else b"", sampled)
    if found.size <= BATCH_BYTES and parts.count + len(table) <= BATCH_PARTS:
        for (reason, kind), count in refused.drain().items():
            drops.add(reason, kind, count)
        if found:
            sealed.append(found)
        return
    if len(events) + len(transfers) + len(probes) == 1:
        for kind in (*held, *sampled):
            drops.add(OVERSIZE, kind)
        return
    # Both halves account for themselves.
    halves = [(half(events), half(transfers), half(probes)) for half in (_first_half, _second_half)]
    for part_events, part_transfers, part_probes in halves:
        _seal(part_events, part_transfers, part_probes, drops, sealed)


def _first_half(entries: Sequence[Any]) -> Sequence[Any]:
    return entries[: (len(entries) + 1) // 2]


def _second_half(entries: Sequence[Any]) -> Sequence[Any]:
    return entries[(len(entries) + 1) // 2 :]


def _account(kind: str, given: int, encoded: int, held: dict[str, int], drops: DropCounter) -> None:
    if encoded:
        held[kind] = encoded
    if encoded < given:
        drops.add(ENCODE_ERROR, kind, given - encoded)


class _Parts:
    """How many strings and submessages a batch holds so far."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def _event(record: EventRecord, parts: _Parts, drops: DropCounter) -> Event | None:
    time_ns, kind, fields, component, rank, request_id, rehearsal = record
    if kind not in _KINDS:
        drops.add(ENCODE_ERROR, UNKNOWN_KIND)
        return None
    try:
        parts.count += 2
        body = {name: _clean(value, parts) for name, value in fields.items()}
        return Event(
            time_unix_nano=time_ns,
            component=cast("Component", component),
            rank=rank,
            request_id=cut_text(request_id),
            rehearsal=rehearsal,
            **{kind: body},
        )
    except Exception:  # noqa: BLE001  (whatever a hook put there: it is this entry that is wrong)
        drops.add(ENCODE_ERROR, kind)
        return None


def _clean(value: Any, parts: _Parts) -> Any:
    """Return *value* with every text in it cut."""
    if isinstance(value, str):
        parts.count += 1
        return cut_text(value)
    if isinstance(value, dict):
        parts.count += 1
        return {name: _clean(item, parts) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        # A list of numbers may be long and has no text in it.
        return value if value and isinstance(value[0], int) else [_clean(item, parts) for item in value]
    return value


def _columns(
    message: Any, names: tuple[str, ...], first_text: int, rows: Sequence[Any], table: dict[str, int]
) -> int:
    """Fill the columns of *message* and return how many rows went in; a wrong row is left out."""
    if not rows:
        return 0
    try:
        _fill(message, names, first_text, rows, table)
    except Exception:  # noqa: BLE001  (find the rows that are wrong, one by one)
        message.Clear()
        rows = [row for row in rows if _fits(type(message), names, first_text, row)]
        if not rows:
            return 0
        _fill(message, names, first_text, rows, table)
    return len(rows)


def _fits(message: Callable[[], Any], names: tuple[str, ...], first_text: int, row: Any) -> bool:
    try:
        _fill(message(), names, first_text, [row], {})
    except Exception:  # noqa: BLE001  (the question is whether it raises)
        return False
    return True


def _fill(
    message: Any, names: tuple[str, ...], first_text: int, rows: Sequence[Any], table: dict[str, int]
) -> None:
    for index, (name, column) in enumerate(zip(names, zip(*rows, strict=True), strict=True)):
        is_text = index >= first_text
        values = [table.setdefault(cut_text(value), len(table)) for value in column] if is_text else column
        getattr(message, name).extend(values)


def _drops(counts: Mapping[tuple[str, str], int]) -> list[Drop]:
    return [
        Drop(reason=cut_text(reason, WORD_MAX), kind=cut_text(kind, WORD_MAX), count=count)
        for (reason, kind), count in counts.items()
    ]


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
