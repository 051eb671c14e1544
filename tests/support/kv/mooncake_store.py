"""A Mooncake store: its master, and the process that owns the memory of the pool."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from demo.common.processes import Child, free_port
from demo.servers import LOOPBACK, Server
from tests.support.kv import extra_connectors
from tests.support.ports import listens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Store:
    """The running processes of a store.

    Attributes:
        owner: has the objects; the master knows which.

    """

    master: Child
    owner: Child
    config: Path

    def engine(
        self, name: str, *, logs: Path, endpoint: str = "", args: Sequence[str] = (), **extra: Any
    ) -> Server:
        """Start an engine that saves to the store and loads from it; objects of engines of other names are not its own.

        *extra* is further configuration of the connector.
        """
        transfer = {
            "kv_connector": "MooncakeStoreConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "fail",
            # Else two engines of one machine ask the same socket what the store has, with whichever's prefix.
            "kv_connector_extra_config": {"cache_prefix": name, "lookup_rpc_port": name, **extra},
        }
        return extra_connectors.start(
            name,
            transfer,
            logs=logs,
            endpoint=endpoint,
            module=extra_connectors.STANDIN,
            env={"MOONCAKE_CONFIG_PATH": str(self.config), "VLLM_SERVER_DEV_MODE": "1"},
            args=args,
        )


@contextmanager
def running_store(directory: Path) -> Iterator[Store]:
    """Start a store whose files are in *directory*, and wait until it serves."""
    programs = extra_connectors.HOME / "mooncake"
    env = {**os.environ, **extra_connectors.environment()}
    master_port, owner_port = free_port(), free_port()
    address = f"{LOOPBACK}:{master_port}"
    config = directory / "mooncake.json"
    config.write_text(
        json.dumps(
            {
                "mode": "standalone-store",
                "metadata_server": "P2PHANDSHAKE",
                "master_server_address": address,
                "global_segment_size": 0,
                "local_buffer_size": "64MB",
                "protocol": "tcp",
            }
        )
    )
    started: list[Child] = []

    def start(name: str, port: int, *arguments: str) -> Child:
        child = Child(
            name, [str(programs / name), *arguments], env=env, cwd=directory, log=directory / f"{name}.log"
        )
        started.append(child)
        child.wait_until(lambda: listens(port), seconds=_START_SECONDS, what="listening")
        return child

    try:
        master = start(
            "mooncake_master",
            master_port,
            f"--rpc_address={LOOPBACK}",
            f"--rpc_port={master_port}",
            f"--metrics_host={LOOPBACK}",
            f"--metrics_port={free_port()}",
        )
        owner = start(
            "mooncake_client",
            owner_port,
            f"--host={LOOPBACK}",
            f"--port={owner_port}",
            f"--master_server_address={address}",
            "--metadata_server=P2PHANDSHAKE",
            "--protocol=tcp",
            "--global_segment_size=64 MB",
        )
        yield Store(master, owner, config)
    finally:
        for child in started:
            child.stop()
