"""Messages as tables, JSON and YAML. Pure, but for :func:`show`.

The shape of JSON and YAML is described in :mod:`penstock.agent.ctl.main`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import yaml
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from penstock.agent.ctl.words import printable
from penstock.proto.names import label

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.message import Message

_GAP = "   "


def plain(message: Message) -> dict[str, Any]:
    """Return *message* as JSON values."""
    document: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        name = field.json_name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            document[name] = dict(sorted(value.items()))
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            document[name] = [_value(field, item) for item in value]
        elif name.endswith("Json"):
            if value:
                document[name.removesuffix("Json")] = json.loads(value)
        else:
            document[name] = _value(field, value)
    return document


def _value(field: Any, value: Any) -> Any:
    if isinstance(value, Timestamp):
        return value.ToJsonString()
    if isinstance(value, Duration):
        return value.ToJsonString()
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is not None:
        return label(_Enum(field.enum_type), value)
    if isinstance(value, float) and not math.isfinite(value):
        # As protobuf's own JSON has them: JSON has no such numbers.
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


class _Enum:
    """What :func:`label` needs of an enum."""

    def __init__(self, descriptor: Any) -> None:
        self.DESCRIPTOR = descriptor


def dump(document: Any, output: str) -> str:
    """Return *document* in the format ``json`` or ``yaml``, without a newline at its end."""
    if output == "json":
        return json.dumps(document, indent=2, ensure_ascii=False)
    return dump_yaml(document)


def dump_yaml(*documents: Any) -> str:
    """Return YAML documents, without a newline at the end."""
    text: str = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=100)
    return text.rstrip("\n")


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Align columns as kubectl does; colours do not count as width."""
    lines = [headers, *(tuple(map(printable, row)) for row in rows)]
    widths = [max(len(click.unstyle(line[column])) for line in lines) for column in range(len(headers))]
    return "\n".join(
        _GAP.join(
            cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def show(message: Message, output: str) -> None:
    """Print *message* as JSON or YAML."""
    click.echo(dump(plain(message), output))


def tell_unreadable(count: int) -> None:
    """Say on the error stream that *count* batches of the log are damaged, if any is."""
    if count:
        which = "1 batch of the log is" if count == 1 else f"{count} batches of the log are"
        click.echo(f"{which} damaged on disk: the rest is here, what was in them is missing", err=True)
