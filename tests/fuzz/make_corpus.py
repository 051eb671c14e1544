"""Writes the corpus: what real engine-side code puts on the wire, one message a file.

``python -m tests.fuzz.make_corpus``; the same files each time. Entries of every kind are encoded by the engine's own
encoder, with its accounts, beside a Hello and a snapshot.
"""

from __future__ import annotations

import sqlite3
import sys
import zlib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.message_factory import GetMessageClass
from penstock.agent.bundle import JOURNAL, MANIFEST, STATE
from penstock.agent.ingest.message_limits import AGENT_KINDS
from penstock.agent.journal.database.stored_rows import unpack
from penstock.instrumentation.core.guard import DropCounter
from penstock.instrumentation.core.session import Identity
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.telemetry.encoder import frame, seal
from penstock.instrumentation.telemetry.outbox import Sealed
from penstock.instrumentation.transport.hello import build_hello
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.ingest_pb2 import Batch, Goodbye
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.fuzz.bundle_target import RECORDED, recorded
from tests.fuzz.relay_target import METHODS

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor

CORPUS = Path(__file__).parent / "corpus"
BUNDLE_CORPUS = Path(__file__).parent / "bundle_corpus"
RELAY_CORPUS = Path(__file__).parent / "relay_corpus"
TIME = 1_750_000_000_000_000_000
EPOCH = 0x5EED
# In its canonical form.
_POLICY = (
    '{"apiVersion":"penstock.dev/v1alpha1","kind":"TransferPolicy","metadata":{"name":"p"},'
    '"spec":{"kvLoadFailure":{"action":"fail"}}}'
)
_ADMIN = admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods_by_name
_KINDS = [each for each in Event.DESCRIPTOR.oneofs_by_name["body"].fields if each.name not in AGENT_KINDS]


def filled(descriptor: Any, depth: int = 0) -> dict[str, Any]:
    """Return a value for every field of a message, nested ones included."""
    return {each.name: _value(each, depth) for each in descriptor.fields if depth < 4}


def _value(field: FieldDescriptor, depth: int) -> object:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {"role": "decode"}
    if field.message_type is not None:
        single: object = filled(field.message_type, depth + 1)
    elif field.enum_type is not None:
        single = 1
    elif field.name.endswith("_json"):
        single = _POLICY
    elif field.cpp_type == field.CPPTYPE_STRING:
        single = "10.0.0.7:5600" if field.type == field.TYPE_STRING else bytes(range(16))
    elif field.cpp_type == field.CPPTYPE_BOOL:
        single = True
    elif field.cpp_type in {field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT}:
        single = 0.5
    else:
        single = TIME if field.type == field.TYPE_FIXED64 else 7
    return [single] if field.is_repeated else single


def corpus() -> dict[str, bytes]:
    """Return all messages by the name of their file."""
    identity = Identity(process="engine-core", engine="0", role="decode", model="tiny", vllm_version="0.32.0")
    settings = Settings(endpoint="127.0.0.1:4320", labels={"role": "decode"})
    greeting = build_hello(identity, settings, TIME, bytes(range(16)))
    greeting.pid = 1
    messages = {
        "hello": Batch(epoch=EPOCH, hello=greeting).SerializeToString(deterministic=True),
        "snapshot": Batch(epoch=EPOCH, snapshot=Snapshot(**filled(Snapshot.DESCRIPTOR))).SerializeToString(
            deterministic=True
        ),
        "goodbye": Batch(epoch=EPOCH, seq=9, goodbye=Goodbye(reason="exit")).SerializeToString(),
        "accounts": frame(
            EPOCH,
            2,
            Sealed(
                lost={("outbox_full", "handshake"): 4},
                drops={("queue_full", "probe_sample"): 2},
                guard_errors={("nixl.poll", "KeyError"): 1},
            ),
        ),
    }
    transfers = [
        (TIME + n, 10_000 * n, 1 << n, 6, 40, 9 * n, 1, 1, 1, 2, n % 2, "NixlConnector", f"10.0.0.{n}:5600", "e", f"r-{n}")
        for n in range(20)
    ]  # fmt: skip
    probes = [(TIME + n, 900, 1 + n % 3, "ZmqECConnector", "10.0.0.7:5600", f"r-{n}") for n in range(20)]
    for kind in _KINDS:
        event = (TIME, kind.name, filled(kind.message_type), 1, 0, "r-1", False)
        (sealed,) = seal([event], [], [], DropCounter())
        messages[kind.name] = frame(EPOCH, 1, sealed)
    (sealed,) = seal([], transfers, probes, DropCounter())
    messages["samples"] = frame(EPOCH, 3, sealed)
    return messages


def relay_corpus() -> dict[str, bytes]:
    """Return an agent's answer to each method that a relay merges, by its name; the first byte is the method."""
    found = {}
    for index, method in enumerate(METHODS):
        response: Any = _ADMIN[method].output_type
        answer = GetMessageClass(response)(**filled(response))
        found[method] = bytes([index]) + answer.SerializeToString(deterministic=True)
    return found


def bundle_corpus() -> dict[str, bytes]:
    """Return the parts of a recorded bundle that the target puts into another, and its file."""
    files = recorded()
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(files[JOURNAL])
        batch = unpack(*database.execute("SELECT body, packed FROM batches").fetchone())
        metrics = zlib.decompress(database.execute("SELECT body FROM folds").fetchone()[0])
    parts = {
        "state": files[STATE],
        "manifest": files[MANIFEST],
        "batch": batch,
        "metrics": metrics,
        "policy": _POLICY.encode(),
        "whole": RECORDED.read_bytes(),
    }
    return {name: bytes([kind]) + body for kind, (name, body) in enumerate(parts.items())}


def main() -> int:
    """Write the files."""
    every = ((CORPUS, corpus()), (RELAY_CORPUS, relay_corpus()), (BUNDLE_CORPUS, bundle_corpus()))
    for directory, files in every:
        directory.mkdir(exist_ok=True)
        for name, body in files.items():
            (directory / name).write_bytes(body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
