"""What an engine part and an agent of one version said to each other, and the state that the agent kept: written and read."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tests.support.agent.descriptors import contract, files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.descriptor import FileDescriptor

PUBLISH = "/penstock.v1.Ingest/Publish"
WATCH = "/penstock.v1.PolicyFeed/Watch"
_LENGTH = 4


@dataclass
class Call:
    """One stream, message by message, as bytes."""

    sent: list[bytes] = field(default_factory=list)
    answered: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class Recording:
    """The files of one version.

    Attributes:
        directory: ``publish.*`` and ``watch.*`` are streams, four bytes of length (big-endian) before each message;
            ``contract.binpb`` and ``contract.txt`` the contract; ``state.tar.xz`` the agent's state;
            ``expected.json`` what the agent said of it.

    """

    directory: Path

    def write(self, calls: dict[str, Call], expected: dict[str, Any]) -> None:
        """Write all but the state."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for method, call in calls.items():
            stem = method.rpartition("/")[2].lower()
            for direction, messages in (("sent", call.sent), ("answered", call.answered)):
                framed = b"".join(len(message).to_bytes(_LENGTH, "big") + message for message in messages)
                (self.directory / f"{stem}.{direction}").write_bytes(framed)
        (self.directory / "contract.binpb").write_bytes(
            _descriptor_set().SerializeToString(deterministic=True)
        )
        (self.directory / "contract.txt").write_text("\n".join(sorted(contract())) + "\n")
        (self.directory / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")

    def write_state(self, state: Path) -> None:
        """Pack a state directory that no agent has open."""
        with tarfile.open(self.directory / "state.tar.xz", "w:xz") as archive:
            for path in sorted(state.glob("*.db")):
                archive.add(path, path.name)

    def unpack_state(self, state: Path) -> None:
        """Unpack the state into a new directory."""
        state.mkdir(mode=0o700)
        with tarfile.open(self.directory / "state.tar.xz") as archive:
            archive.extractall(state, filter="data")

    @property
    def expected(self) -> Any:
        """What the agent of that version said: ``metrics``, ``policies``, ``events``, ``audit``."""
        return json.loads((self.directory / "expected.json").read_text())

    @property
    def contract(self) -> set[str]:
        """The lines of that version's contract."""
        return set((self.directory / "contract.txt").read_text().splitlines())

    def stream(self, name: str) -> list[bytes]:
        """Return the messages of a stream, by the name of its file: ``publish.sent`` for instance."""
        return list(_unframed(io.BytesIO((self.directory / name).read_bytes())))

    def message(self, name: str) -> Any:
        """Return that version's class of a message, ``Batch`` for instance; it knows no field added since."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"penstock.v1.{name}"))

    @property
    def _pool(self) -> Any:
        found = _pools.get(self.directory)
        if found is None:
            found = _pools[self.directory] = descriptor_pool.DescriptorPool()
            for file in FileDescriptorSet.FromString((self.directory / "contract.binpb").read_bytes()).file:
                found.AddSerializedFile(file.SerializeToString())
        return found


# A message class of one pool is not that of another.
_pools: dict[Path, Any] = {}


def _unframed(stream: io.BytesIO) -> Iterator[bytes]:
    while length := stream.read(_LENGTH):
        yield stream.read(int.from_bytes(length, "big"))


def _descriptor_set() -> FileDescriptorSet:
    """Return the files of the contract after those that they import."""
    ordered: dict[str, FileDescriptor] = {}

    def add(file: FileDescriptor) -> None:
        for dependency in file.dependencies:
            add(dependency)
        ordered.setdefault(file.name, file)

    for file in files():
        add(file)
    found = FileDescriptorSet()
    for file in ordered.values():
        file.CopyToProto(found.file.add())
    return found
