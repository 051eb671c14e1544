"""The limits of a message of an engine, checked before anything of it is used; and the count of those that were refused.

A message that fails is refused with INVALID_ARGUMENT and must not be sent again; nothing is ever cut silently.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from penstock.agent.errors import ContractError
from penstock.agent.model import AGENT_PROCESS
from penstock.agent.prescan import count_entries
from penstock.proto import SCHEMA_VERSION
from penstock.proto.v1.common_pb2 import DEFERRAL_ENDING_ENGINE_LOST
from penstock.proto.v1.ingest_pb2 import Batch

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from penstock.agent.batch import BatchColumns, SampleColumns, Samples
    from penstock.proto.v1.ingest_pb2 import Hello
    from penstock.proto.v1.snapshot_pb2 import Snapshot

_EVENTS: Final = Batch.DESCRIPTOR.fields_by_name["events"].number


def _make_outline() -> type[Message]:
    """Return the class of ``message Outline { repeated bytes events = <that of Batch>; }``."""
    file = FileDescriptorProto(name="outline.proto", package="penstock.agent", syntax="proto3")
    file.message_type.add(name="Outline").field.add(
        name="events",
        number=_EVENTS,
        label=FieldDescriptorProto.LABEL_REPEATED,
        type=FieldDescriptorProto.TYPE_BYTES,
    )
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("penstock.agent.Outline"))


_Outline: Any = _make_outline()


def event_sizes(body: bytes) -> list[int]:
    """Return the size of each event of a message that is a Batch, in its order."""
    return list(map(len, _Outline.FromString(body).events[:]))


MAX_MESSAGE_BYTES = 1 << 20
# Strings and submessages of one message, at all depths.
MAX_ENTRIES = 32_768
MAX_EVENTS = 4_096
MAX_SAMPLES = 16_384
MAX_STRINGS = 32_768
# Drops, guard errors, lost entries of a tombstone: one for each kind and reason.
MAX_COUNTS = 512
# Of each list of a snapshot.
MAX_SNAPSHOT_ROWS = 8_192
# Requests that one scheduler names: its sender names 64 that wait and 64 that run.
MAX_QUEUED_REQUESTS = 1_024
MAX_LABELS = 64
# The log keeps one for each source, longer than its batches: with 16 times as much for each of those that may come at
# once, the smallest of all state directories would be full of them.
MAX_HELLO_BYTES = 8 << 10
MAX_SECRET_BYTES = 64
# In characters: ids, peers, connectors, labels ...
MAX_NAME = 1_024
# ... and texts inside events and snapshots (the sender cuts an exception's at 1 KiB).
MAX_TEXT = 4_096
# Below this size the worst that a body can hold is 35 MiB, for a moment. To count the entries of a full batch (80 to 160
# KiB) would take as long as all else that is done with it.
_SCAN_ABOVE_BYTES = 256 << 10

# Events that the agent writes itself.
AGENT_KINDS = frozenset({"source_lost", "source_stopped", "forgotten"})

_SCALARS = str | bytes | int | float
# Columns that engines before them do not fill.
_ABSENT_IN_OLDER = frozenset({"end_uncertainty_nano"})
_INDICES = frozenset({"connector", "peer", "peer_engine_id", "request_id"})


def parse_message(body: bytes) -> Batch:
    """Parse a message after checking its size and its number of entries.

    Raises:
        ContractError: too large, too many entries, or no Batch.

    """
    if len(body) > MAX_MESSAGE_BYTES:
        raise ContractError(
            f"the message has {len(body)} bytes, at most {MAX_MESSAGE_BYTES} are taken; send smaller batches"
        )
    if len(body) > _SCAN_ABOVE_BYTES:
        count_entries(body, cast("Descriptor", Batch.DESCRIPTOR), MAX_ENTRIES)
    try:
        return Batch.FromString(body)
    except DecodeError as error:
        raise ContractError("the message is not a penstock.v1.Batch") from error


def check_batch(contents: BatchColumns, body: bytes) -> None:
    """Check all but the Hello of what :func:`parse_message` returned for *body*.

    Raises:
        ContractError: it names the field, its value and the limit.

    """
    batch = contents.batch
    if batch.epoch == 0:
        raise ContractError("epoch is 0; draw a random one at the start of the process")
    if batch.seq == 0:
        _check_unsequenced(batch)
    else:
        _check_sequenced(contents, body)


def _check_unsequenced(batch: Batch) -> None:
    for field, _ in batch.ListFields():
        if field.name not in {"epoch", "hello", "snapshot"}:
            raise ContractError(f"{field.name} came without a sequence number; only hello and snapshot may")
    if batch.HasField("snapshot"):
        _check_snapshot(batch.snapshot)


def _check_sequenced(contents: BatchColumns, body: bytes) -> None:
    batch = contents.batch
    if batch.HasField("hello") or batch.HasField("snapshot"):
        raise ContractError(f"batch {batch.seq} holds a hello or a snapshot; those are sent with seq 0")
    _at_most("events", len(batch.events), MAX_EVENTS)
    _at_most("strings", len(batch.strings), MAX_STRINGS)
    _at_most("drops", len(batch.drops), MAX_COUNTS)
    _at_most("guard_errors", len(batch.guard_errors), MAX_COUNTS)
    _at_most("tombstone.lost", len(batch.tombstone.lost), MAX_COUNTS)
    for kind in AGENT_KINDS & contents.groups.keys():
        raise ContractError(f"events.{kind} is the agent's own; an engine must not send it")
    waits = contents.groups.get("deferral_end")
    if waits is not None and DEFERRAL_ENDING_ENGINE_LOST in waits.column("ending"):
        raise ContractError("events.deferral_end.ending engine_lost is the agent's own word")
    if batch.HasField("transfers"):
        _check_samples("transfers", batch.transfers, contents.transfers, contents)
    if batch.HasField("probes"):
        _check_samples("probes", batch.probes, contents.probes, contents)
    # No text is longer than what holds it: a small batch needs no look at each.
    if len(body) > MAX_NAME:
        _check_all_texts(contents, body)


def _check_all_texts(contents: BatchColumns, body: bytes) -> None:
    batch = contents.batch
    if max(map(len, contents.strings), default=0) > MAX_NAME:
        _check_texts("strings", contents.strings, MAX_NAME)
    if batch.events:
        sizes = event_sizes(body)
        if max(sizes) > MAX_NAME:
            for event, size in zip(batch.events, sizes, strict=True):
                if size > MAX_NAME:
                    _check_texts("events", event)
    for count in (*batch.drops, *batch.guard_errors, *batch.tombstone.lost):
        _check_texts("counts", count)


def _check_samples(name: str, samples: Samples, columns: SampleColumns, contents: BatchColumns) -> None:
    rows = len(columns)
    _at_most(name, rows, MAX_SAMPLES)
    known = len(contents.strings)
    for field in samples.DESCRIPTOR.fields:
        column = field.name
        length = len(getattr(samples, column))
        if length != rows and (length or column not in _ABSENT_IN_OLDER):
            raise ContractError(
                f"{name}.{column} has {length} entries, {name}.end_time_unix_nano {rows}; all columns are equally long"
            )
        if rows and column in _INDICES and (highest := max(columns[column])) >= known:
            raise ContractError(f"{name}.{column} has index {highest}, the string table has {known} entries")
    if rows and contents.strings[0]:
        raise ContractError(f"strings[0] is {contents.strings[0][:40]!r}; it is always empty")


def _check_snapshot(snapshot: Snapshot) -> None:
    for field, value in snapshot.ListFields():
        if not isinstance(value, _SCALARS | Message):
            _at_most(f"snapshot.{field.name}", len(value), MAX_SNAPSHOT_ROWS)
    _at_most("snapshot.queue.requests", len(snapshot.queue.requests), MAX_QUEUED_REQUESTS)
    _at_most("snapshot.queue.waiting", len(snapshot.queue.waiting), MAX_COUNTS)
    _at_most("snapshot.engine.labels", len(snapshot.engine.labels), MAX_LABELS)
    if snapshot.ByteSize() > MAX_NAME:
        _check_texts("snapshot", snapshot)


def check_hello(hello: Hello) -> None:
    """Check the Hello.

    Raises:
        ContractError: it names the field, its value and the limit.

    """
    if not 0 < hello.schema_version <= SCHEMA_VERSION:
        raise ContractError(
            f"hello.schema_version is {hello.schema_version}, this agent knows 1 to {SCHEMA_VERSION}; "
            "upgrade the agent before the engines"
        )
    if not hello.process:
        raise ContractError("hello.process is empty; it is one of api, engine-core, worker")
    if hello.process == AGENT_PROCESS:
        raise ContractError(
            f"hello.process is {AGENT_PROCESS}: that is this agent; it is one of api, engine-core, worker"
        )
    if len(hello.secret) > MAX_SECRET_BYTES:
        raise ContractError(
            f"hello.secret has {len(hello.secret)} bytes, at most {MAX_SECRET_BYTES} are taken; draw 16 random ones"
        )
    _at_most("hello.labels", len(hello.labels), MAX_LABELS)
    _check_texts("hello", hello)
    if hello.ByteSize() > MAX_HELLO_BYTES:
        raise ContractError(
            f"hello has {hello.ByteSize()} bytes, at most {MAX_HELLO_BYTES} are taken; give the engine fewer or shorter labels"
        )


def _check_texts(path: str, value: Any, limit: int = MAX_TEXT) -> None:
    """Check the length of every string in *value*: a message, a map, a list or a scalar."""
    if isinstance(value, str):
        if len(value) > limit:
            raise ContractError(f"{path} has a text of {len(value)} characters, at most {limit} are taken")
    elif isinstance(value, Message):
        for field, child in value.ListFields():
            _check_texts(f"{path}.{field.name}", child)
    elif isinstance(value, Mapping):
        for key, child in value.items():
            _check_texts(path, key, MAX_NAME)
            _check_texts(path, child, MAX_NAME)
    elif not isinstance(value, _SCALARS):
        for child in value:
            _check_texts(path, child, limit)


def _at_most(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise ContractError(f"{name} has {count} entries, at most {limit} are taken; send smaller batches")


@dataclass(slots=True)
class ContractViolations:
    """Messages that violate the contract and streams refused because another process holds the engine, since the start."""

    count: int = 0
    last: str = ""
    last_unix_nano: int = 0

    def note(self, error: str) -> None:
        """Count one refusal."""
        self.count, self.last, self.last_unix_nano = self.count + 1, error, time.time_ns()
