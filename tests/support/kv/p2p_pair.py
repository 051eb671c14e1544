"""Two servers whose ``OffloadingConnector`` has a P2P tier: one that has KV, and one that loads it from there."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from demo.common.client import Answer, complete
from demo.common.model import tiny_model
from demo.common.processes import free_port
from demo.servers import LOOPBACK, ROOT, Server, ServerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

TOKENS = 12
BLOCK = 32
TOKEN_BYTES = 2 * 2 * 64 * 4
"""Keys and values of two layers."""


def p2p(port: int, engine_id: str, **tier: Any) -> dict[str, Any]:
    """Return the KVTransferConfig of an engine whose P2P tier listens on a *port* of the loopback."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "engine_id": engine_id,
        "kv_connector_extra_config": {
            "spec_name": "TieringOnCpuSpec",
            "spec_module_path": "tests.support.kv.tiering",
            "cpu_bytes_to_use": 4 << 20,
            "secondary_tiers": [{"type": "p2p", "host": LOOPBACK, "port": port, **tier}],
        },
    }


@dataclass(frozen=True, slots=True)
class Pair:
    """The two servers; *port* is that of the source's tier."""

    source: Server
    reader: Server
    port: int

    @property
    def peer(self) -> str:
        """The source as the reader names it."""
        return f"{LOOPBACK}:{self.port}"

    def computed(self, prompt: str, server: Server | None = None) -> str:
        """Compute a prompt, on the source if no other *server* is named, which keeps it in its tier; return the answer."""
        done = complete((server or self.source).url, prompt, max_tokens=TOKENS, timeout=120.0)
        assert done.status == 200, done.text
        return done.completion

    def prefilled(self, prompt: str) -> dict[str, Any]:
        """Compute a prompt on the source for the reader; return what the reader is to be told."""
        key = uuid.uuid4().hex
        params = {"remote_decoder": {"kv_request_id": key}}
        done = complete(self.source.url, prompt, max_tokens=1, kv_transfer_params=params, timeout=120.0)
        assert done.status == 200, done.text
        return {"remote_prefiller": self._named(key)}

    def asked(self) -> dict[str, Any]:
        """Return what makes the reader ask the source what it has."""
        return {"remote_kv_source": self._named(uuid.uuid4().hex)}

    def load(self, name: str, prompt: str, params: Mapping[str, Any]) -> Answer:
        """Send a prompt to the reader; *name* is the client's for the request."""
        return complete(
            self.reader.url,
            prompt,
            max_tokens=TOKENS,
            kv_transfer_params=params,
            headers={"X-Request-Id": name},
            timeout=120.0,
        )

    def _named(self, key: str) -> dict[str, Any]:
        return {"kv_request_id": key, "remote_host": LOOPBACK, "remote_port": self.port}


@contextmanager
def running_pair(logs: Path, endpoint: str) -> Iterator[Pair]:
    """Start both with Penstock, and stop them at the end."""
    ports = {name: free_port() for name in ("source", "reader")}
    servers: list[Server] = []
    try:
        servers.extend(_server(name, logs, endpoint, ports[name]) for name in ports)
        for server in servers:
            server.wait_ready()
        source, reader = servers
        yield Pair(source, reader, ports["source"])
    finally:
        for server in servers:
            server.stop()


def _server(name: str, logs: Path, endpoint: str, port: int) -> Server:
    transfer = json.dumps(p2p(port, f"{name}-{uuid.uuid4().hex}"))
    args = ("--block-size", str(BLOCK), "--kv-transfer-config", transfer)
    # Engines whose hashes have another seed refuse each other.
    env = {
        "PENSTOCK_ENDPOINT": endpoint,
        "PENSTOCK_SERVER": name,
        "PENSTOCK_LABELS": f"tier={name}",
        "PYTHONHASHSEED": "0",
    }
    return Server(
        ServerSpec(name, args=args, env=env), model=tiny_model(ROOT / ".cache" / "models"), logs=logs
    )
