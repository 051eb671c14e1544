"""Answers of the admin service in which every field says too much, too little, or nothing that can be."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from tests.support.fleet.hostile_agent import METHODS

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST: Final = json.dumps(
    {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "TransferPolicy",
        "metadata": {"name": "p"},
        "spec": {"kvLoadFailure": {"action": "recompute"}},
    }
)
# Lone controls, an end of a line that forges one, and characters that change the direction of text.
CONTROLS: Final = "a\x1b[2J\x07\r\nforged\x00\x9b\u202eb\u2066c\u2028"
_NAMES: Final = {
    "engine": "0",
    "server": "",
    "name": "p",
    "address": "10.0.0.1:5600",
    "peer": "10.0.0.1:5600",
    "request_id": "r",
    "state": "connected",
    "part": "",
}
_DEEPEST: Final = 4
_SECONDS: Final = 1_790_000_000


@dataclass(frozen=True)
class Words:
    """What the fields of an answer are filled with; the defaults are what an agent could say.

    Attributes:
        text: of strings that have no name below; None for a usual one.
        texts: of strings by the names of their fields.
        document: of fields that are JSON.
        integer: of integers, cut to what their type holds.
        number: of floating-point numbers.
        seconds: of moments.
        length: of durations, in seconds.
        choice: of enumerations.
        times: how many entries a list of the answer itself has.
        deepest: how many levels of messages there are.

    """

    text: str | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    document: str = MANIFEST
    integer: int = 1
    number: float = 1.0
    seconds: int = _SECONDS
    length: int = 1
    choice: int = 1
    times: int = 1
    deepest: int = _DEEPEST


def answer(method: str, words: Words) -> bytes:
    """Return the answer to *method* with *words* in every field."""
    return filled(METHODS[method].output_type, words).SerializeToString()


def filled(descriptor: Any, words: Words, depth: int = 0) -> Any:
    """Return a message of *descriptor* with *words* in every field, of a oneof in the last."""
    message: Any = GetMessageClass(descriptor)()
    if descriptor.full_name in {Timestamp.DESCRIPTOR.full_name, Duration.DESCRIPTOR.full_name}:
        moment = descriptor.full_name == Timestamp.DESCRIPTOR.full_name
        message.seconds = words.seconds if moment else words.length
        return message
    for each in descriptor.fields:
        _fill(message, each, words, depth)
    return message


def _fill(message: Any, each: Any, words: Words, depth: int) -> None:
    if each.message_type is not None:
        if depth >= words.deepest:
            return
        if each.message_type.GetOptions().map_entry:
            if each.message_type.fields_by_name["value"].message_type is None:
                key, value = (_scalar(part, words) for part in each.message_type.fields)
                getattr(message, each.name)[key] = value
            return
        inner = filled(each.message_type, words, depth + 1)
        if each.is_repeated:
            getattr(message, each.name).extend([inner] * (1 if depth else words.times))
        else:
            getattr(message, each.name).CopyFrom(inner)
    elif each.is_repeated:
        getattr(message, each.name).extend([_scalar(each, words)] * (1 if depth else words.times))
    else:
        setattr(message, each.name, _scalar(each, words))


def _scalar(each: Any, words: Words) -> Any:
    if each.type == each.TYPE_STRING:
        return _text(each.name, words)
    if each.type == each.TYPE_BYTES:
        return b"\xff" * 40
    if each.type == each.TYPE_BOOL:
        return True
    if each.type == each.TYPE_ENUM:
        return words.choice
    if each.type in {each.TYPE_DOUBLE, each.TYPE_FLOAT}:
        return words.number
    signed = each.cpp_type in {each.CPPTYPE_INT32, each.CPPTYPE_INT64}
    bits = 32 if each.cpp_type in {each.CPPTYPE_INT32, each.CPPTYPE_UINT32} else 64
    least = -(1 << (bits - 1)) if signed else 0
    return min(max(words.integer, least), (1 << (bits - signed)) - 1)


def _text(name: str, words: Words) -> str:
    if name == "agent":
        # An entry of an agent that the status does not tell of is one that has not been seen.
        return _text("other", words) + "'s"
    if name in words.texts:
        return words.texts[name]
    if name.endswith("_json"):
        if name == "manifests_json" and words.document == MANIFEST:
            return json.dumps({"kind": "List", "items": [json.loads(MANIFEST)]})
        return words.document
    return _NAMES.get(name, "x") if words.text is None else words.text


DOCUMENTS: Final = {
    "empty": "",
    "no_json": "{",
    "a_list": "[]",
    "null": "null",
    "a_text": '"x"',
    "an_empty_object": "{}",
    "deep": "[" * 100_000,
    "deep_object": '{"a":' * 5_000 + "1" + "}" * 5_000,
    "spec_is_a_list": '{"metadata":{},"spec":[]}',
    "metadata_is_a_text": '{"metadata":"x","spec":{}}',
    "annotations_are_a_list": '{"metadata":{"annotations":[1]},"spec":{}}',
    "selector_is_a_text": '{"metadata":{},"spec":{"selector":"x"}}',
    "labels_are_a_list": '{"metadata":{},"spec":{"selector":{"matchLabels":[1]}}}',
    "expressions": '{"metadata":{},"spec":{"selector":{"matchExpressions":[{}]}}}',
    "models_are_a_number": '{"metadata":{},"spec":{"selector":{"models":7}}}',
    "rollout_is_a_list": '{"metadata":{},"spec":{"rollout":[]}}',
    "percent_is_a_text": '{"metadata":{},"spec":{"rollout":{"percent":"x"}}}',
    "no_time": '{"metadata":{},"spec":{"expiresAt":"when"}}',
    "priority_is_a_text": '{"metadata":{},"spec":{"priority":"x","mode":7}}',
    "numbers": '{"metadata":{},"spec":{"priority":1e999,"a":NaN,"b":' + "9" * 5_000 + "}}",
    "lone_surrogate": '{"metadata":{"annotations":{"penstock.dev/reason":"\\ud831x"}},"spec":{"mode":"\\ud831"}}',
}
"""Texts that are no manifest, by what is wrong."""

WORDS: Final = {
    "usual": Words(),
    "largest": Words(integer=1 << 64),
    "smallest": Words(integer=-(1 << 64), length=-1),
    "nan": Words(number=math.nan),
    "infinite": Words(number=math.inf),
    "negative_infinite": Words(number=-math.inf),
    "huge": Words(number=1e308),
    "year_0": Words(seconds=-62_135_596_800),
    "year_9999": Words(seconds=253_402_300_799),
    "year_1678": Words(seconds=-9_223_372_036),
    "year_2554": Words(seconds=18_446_744_073, length=18_446_744_073),
    "long_waits": Words(length=315_576_000_000),
    "controls": Words(text=CONTROLS, texts={"engine": "0", "name": "p", "server": ""}),
    "only_controls": Words(text=CONTROLS),
    "no_text": Words(text=""),
    "long_texts": Words(text="y" * 20_000, texts={"engine": "0", "name": "p", "server": ""}),
    "one_long_text": Words(texts={"sentence": "z" * (1 << 20), "address": "z" * (1 << 20)}),
    "unknown_choices": Words(choice=999),
    "negative_choices": Words(choice=-1),
}
"""What answers are filled with, by what is wrong."""
