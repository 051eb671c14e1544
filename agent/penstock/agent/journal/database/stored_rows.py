"""The bytes in the rows of the journal and what they mean: batches, of which a damaged one is left out and counted, and sources.

A batch is compressed if that saves space (four fifths of a usual batch), and has a checksum either way.
"""

from __future__ import annotations

import sys
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from google.protobuf.message import DecodeError
from penstock.agent.journal.database.connection import unsigned
from penstock.agent.model import LoggedBatch, Source
from penstock.agent.state import DamagedError
from penstock.proto.names import number
from penstock.proto.v1.common_pb2 import EngineKey, Role
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.ingest_pb2 import Batch, Hello

if TYPE_CHECKING:
    from collections.abc import Sequence

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

CHECKED: Final = 0
"""Stored as it came; its CRC-32 is in the bits above the lowest."""
ZSTD: Final = 1

# Below it the ids, which nothing shortens, are most of it.
_WORTH_IT = 512
# More is not unpacked: a bad disk's bytes may swell. An engine's message has half of it at most, what the agent itself
# writes about a lost engine can have more.
_MAX_BODY = 2 << 20
_FAST: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.checksum_flag: 1,
}
# Its memory, whatever the bytes ask for: that of the largest body.
_NO_LARGER: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 21}


def pack(body: bytes) -> tuple[bytes, int]:
    """Return the bytes to store and the value of ``batches.packed``."""
    if _WORTH_IT <= len(body) <= _MAX_BODY:
        packed = zstd.compress(body, options=_FAST)
        if len(packed) < len(body):
            return packed, ZSTD
    return body, _checked(body)


def unpack(stored: bytes, packed: int) -> bytes:
    """Undo :func:`pack`; damaged bytes return empty, which no batch is."""
    if packed == ZSTD:
        try:
            return zstd.ZstdDecompressor(options=_NO_LARGER).decompress(stored, _MAX_BODY)
        except zstd.ZstdError:
            return b""
    return stored if packed == _checked(stored) else b""


def _checked(body: bytes) -> int:
    return zlib.crc32(body) << 1 | CHECKED


_log = structlog.get_logger(__name__)

BATCH_COLUMNS: Final = "id, epoch, seq, received_unix_nano, body, packed"

# Numbers of unreadable batches that are kept: a reader may live as long as the agent.
_MAX_NOTED = 100_000


def logged_of(row: Sequence[Any]) -> LoggedBatch:
    """Return a row of :data:`BATCH_COLUMNS`; without a body if the row is damaged."""
    number, epoch, seq, received, body, packed = row
    try:
        return LoggedBatch(number, unsigned(epoch), int(seq), int(received), unpack(body, packed))
    except (TypeError, ValueError, OverflowError):
        # SQLite keeps any type in any column.
        return LoggedBatch(number, unsigned(epoch) if isinstance(epoch, int) else 0, 0, 0, b"")


def event_of(body: bytes) -> Event | None:
    """Return an event that is stored on its own; None if it is damaged."""
    try:
        return Event.FromString(body)
    except (DecodeError, TypeError):
        return None


def parse_batch(logged: LoggedBatch) -> Batch:
    """Return the batch.

    Raises:
        DamagedError: it is none, or not the one that stands there.

    """
    try:
        batch = Batch.FromString(logged.body)
    except DecodeError as error:
        raise DamagedError(f"batch {logged.id} of the log is damaged: {error}") from error
    # No batch is empty: that is what is left of one that is spoilt.
    if not logged.body or (batch.epoch, batch.seq) != (logged.epoch, logged.seq):
        raise DamagedError(
            f"batch {logged.id} of the log is damaged: its bytes are not those that were stored"
        )
    return batch


class BatchParser:
    """Parses for one reader.

    Attributes:
        unreadable: numbers of the batches that could not be read.

    """

    def __init__(self) -> None:
        self.unreadable: set[int] = set()

    def parse(self, logged: LoggedBatch) -> Batch:
        """Return the batch; an empty one instead of a damaged one."""
        try:
            return parse_batch(logged)
        except DamagedError as error:
            if not self.unreadable:
                _log.warning("damaged batch of the log left out", batch=logged.id, error=str(error))
            if len(self.unreadable) < _MAX_NOTED:
                self.unreadable.add(logged.id)
            return Batch()


def encode_source(source: Source) -> bytes:
    """Return the Hello that describes *source*."""
    return Hello(
        schema_version=source.schema_version,
        key=EngineKey(server=source.key.server, engine=source.key.engine),
        process=source.process,
        rank=source.rank,
        pid=source.pid,
        start_time_unix_nano=source.start_time_unix_nano,
        penstock_version=source.penstock_version,
        vllm_version=source.vllm_version,
        model=source.model,
        labels=source.labels,
        role=_role(source.role),
        role_guessed=source.role_guessed,
        # Only the digest: the secret itself is on no disk.
        secret=source.credential,
    ).SerializeToString(deterministic=True)


def _role(word: str) -> Role:
    # "unspecified", and "unknown" for a role of a newer engine.
    try:
        return cast("Role", number(Role, word))
    except ValueError:
        return Role.ROLE_UNSPECIFIED


def decode_source(epoch: int, blob: bytes) -> Source:
    """Undo :func:`encode_source`."""
    hello = Hello.FromString(blob)
    return replace(Source.from_hello(epoch, hello), credential=hello.secret)
