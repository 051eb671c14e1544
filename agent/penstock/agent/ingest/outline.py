"""How long a batch's events are on the wire: the same bytes, read as a message whose events are plain bytes.

No text is longer than what holds it, so of most events nothing more has to be looked at. To ask each for its size would
serialize it again, which takes six times as long as this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from penstock.proto.v1.ingest_pb2 import Batch

if TYPE_CHECKING:
    from google.protobuf.message import Message

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
