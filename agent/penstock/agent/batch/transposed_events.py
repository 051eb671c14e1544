"""The events of a batch as columns: the same bytes, read as another message.

Where a message that is declared once comes several times, protobuf merges it, and merging appends what is repeated. So a message with one ``events``
whose fields are all repeated has, of each field, the values of all events of a kind in their order. That takes one call and a fifth of the time of
looking at each event.

A value that an event leaves out, because it is 0 or empty, has no place in its column: it says which event a value
belongs to only if it is as long as there are events of the kind. (Bytes that no serializer writes, with a field twice in one event and not at all in
the next, are read as they stand; they can only put into the wrong row what their sender could have put there itself.)
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from penstock.proto.v1.common_pb2 import ROLE_DECODE
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.ingest_pb2 import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.descriptor_pb2 import DescriptorProto
    from google.protobuf.message import Message
    from penstock.proto.v1.events_pb2 import RequestClosed

GATES: Final = (
    "queue",
    "handshake_queue",
    "peer",
    "transfer",
    "recompute",
    "own_prefill",
    "encoder",
)
"""The gates; each is the field ``<gate>_nano`` of the wire's ``Gates``."""

# Once for each closed request that an answer reads.
_nano: Final = attrgetter(*(f"{gate}_nano" for gate in GATES))
CLEAN_UP: Final = "clean-up"
"""What lists say of such a request in place of an outcome and a finish reason."""
_ABORTED = "abort"


@dataclass(frozen=True, slots=True)
class GateTimes:
    """The time of one request at each gate.

    Attributes:
        nano: nanoseconds, in the order of :data:`GATES`; their sum is the time to first token, or without one the time
            from arrival to the end.
        first_token: the request got its first token.

    """

    nano: tuple[int, ...]
    first_token: bool

    @property
    def total_nano(self) -> int:
        """The time at all gates, in nanoseconds."""
        return sum(self.nano)

    def largest_first(self) -> list[tuple[str, int]]:
        """Return (gate, nanoseconds) of each gate at which the request was, the longest time first."""
        found = [(gate, nano) for gate, nano in zip(GATES, self.nano, strict=True) if nano]
        return sorted(found, key=lambda item: -item[1])

    @property
    def longest(self) -> str:
        """The gate at which the request was longest; empty if it took no time."""
        return next((gate for gate, _ in self.largest_first()), "")


def gate_times(closing: RequestClosed) -> GateTimes | None:
    """Return the times of a closed request; None if its engine does not report them."""
    if not closing.HasField("gates"):
        return None
    return GateTimes(_nano(closing.gates), bool(closing.first_token_time_unix_nano))


def is_clean_up(closing: RequestClosed) -> bool:
    """Return whether a request is a clean-up: a prompt of one made-up token, aborted as it arrives.

    vLLM's API server sends it (``AsyncLLM.notify_kv_transfer_request_rejected``) with the transfer parameters of a user's
    request that got an error. No user waits for it. A user's own one-token prompt that was aborted before its first step is
    taken for one, too: it does the same.
    """
    return (
        closing.finish_reason == _ABORTED
        and closing.prompt_tokens == 1
        and closing.kv_role == ROLE_DECODE
        and not closing.scheduled_time_unix_nano
    )


# Of the event itself, and of the bodies that every request has: what checks, indexes and metrics read.
_EVENT: Final = ("time_unix_nano", "request_id")
_BODIES: Final = {
    "deferral_start": ("reason", "remote_request_id"),
    "deferral_end": ("reason", "ending", "peer.address", "start_time_unix_nano"),
    "request_closed": (
        "remote_request_id",
        "external_request_id",
        "arrival_time_unix_nano",
        "first_token_time_unix_nano",
        "finish_reason",
        *(f"gates.{gate}_nano" for gate in GATES),
    ),
}
# Of bodies that have any number of a message: whether there is one at all.
_PRESENCE: Final = {"request_closed": ("verifications.channel",)}
_PACKAGE: Final = "penstock.agent.batch.transposed_events"

TRANSPOSED: Final = frozenset((kind, name) for kind, names in _BODIES.items() for name in names)
"""The kinds, each with its fields, of which there are columns."""


def _add_columns(message: DescriptorProto, like: Any, paths: Iterable[str]) -> None:
    """Give *message* the fields of *like* that are at *paths*, repeated, each with its own number and type."""
    nested: dict[str, DescriptorProto] = {}
    for path in paths:
        name, _, inner = path.partition(".")
        field = like.fields_by_name[name]
        if inner:
            if name not in nested:
                nested[name] = message.nested_type.add(name=name.capitalize())
                _add_message(message, name, field.number, f"{message.name}.{nested[name].name}")
            _add_columns(nested[name], field.message_type, (inner,))
            continue
        # An enum is on the wire what an int32 is.
        kind = FieldDescriptorProto.TYPE_INT32 if field.enum_type is not None else field.type
        message.field.add(
            name=name, number=field.number, label=FieldDescriptorProto.LABEL_REPEATED, type=kind
        )


def _add_message(message: DescriptorProto, name: str, number: int, of: str) -> None:
    message.field.add(
        name=name,
        number=number,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=f".{_PACKAGE}.{of}",
    )


def _make_class() -> type[Message]:
    event: Any = Event.DESCRIPTOR
    file = FileDescriptorProto(name="transposed.proto", package=_PACKAGE, syntax="proto3")
    events = file.message_type.add(name="Events")
    _add_columns(events, event, _EVENT)
    for kind, names in _BODIES.items():
        field = event.fields_by_name[kind]
        body = file.message_type.add(name=field.message_type.name)
        _add_columns(body, field.message_type, (*names, *_PRESENCE.get(kind, ())))
        _add_message(events, kind, field.number, body.name)
    batch = file.message_type.add(name="Batch")
    _add_message(batch, "events", Batch.DESCRIPTOR.fields_by_name["events"].number, events.name)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Batch"))


_Transposed: Any = _make_class()


def transposed_events(body: bytes) -> Any:
    """Return the columns of the events of *body*, which is a Batch: ``.time_unix_nano``, ``.deferral_end.reason`` and so on.

    None if it cannot be read so: a field that is no list in a Batch and came as one is unknown there, and an error here.
    """
    try:
        return _Transposed.FromString(body).events
    except DecodeError:
        return None
