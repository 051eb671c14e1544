"""``penstock-agent backup``: asks the running agent, or does it itself where none runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from penstock.agent.admin.calls import write_backup
from penstock.agent.errors import ImpossibleError, StateError
from penstock.agent.server import UnixAddress
from penstock.agent.state import LOCK, Lock
from penstock.proto.v1.admin_pb2 import BackupRequest
from penstock.proto.v1.admin_pb2_grpc import AdminStub

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.agent.server import Address

# A gigabyte on a slow disk.
_DEADLINE = 600.0


def request_backup(listen: Sequence[Address], state_dir: Path, target: Path) -> int:
    """Back up the state of the agent that listens at the unix socket among *listen*, or *state_dir* if no agent runs on it; returns the bytes.

    Raises:
        PenstockError: it was not possible; one sentence.

    """
    admin = next((each for each in listen if isinstance(each, UnixAddress)), None)
    if admin is None:
        raise ImpossibleError(
            "a backup goes over the agent's unix socket; give one of its --admin-listen as unix:///path"
        )
    try:
        with grpc.insecure_channel(str(admin)) as channel:
            stub = AdminStub(channel)  # type: ignore[no-untyped-call]
            response = stub.Backup(BackupRequest(path=str(target)), timeout=_DEADLINE)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise ImpossibleError(error.details() or error.code().name) from error
        return _alone(admin, state_dir, target)
    return int(response.bytes)


def _alone(admin: Address, state_dir: Path, target: Path) -> int:
    if not (state_dir / LOCK).exists():
        raise StateError(
            f"no agent answers at {admin}, and {state_dir} is no state directory; give --admin-listen or --state-dir"
        )
    lock = Lock(state_dir / LOCK, f"--state-dir {state_dir}, but does not answer at {admin}")
    try:
        return write_backup(state_dir, target)
    finally:
        lock.release()
