"""Prefill and decode with vLLM's MooncakeConnector over TCP, and a client that does what its router does."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from demo.common.client import Answer, complete, fetch
from demo.common.processes import free_port
from demo.servers import LOOPBACK, Server
from tests.support.kv import extra_connectors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

TOKENS = 12

READER_SECONDS = 4
"""How long decode waits for a peer that does not answer."""

# The reader of a dead peer waits for so much more than it is told; it is for the peer to give up first.
_READER_MORE_SECONDS = 60

LEASE_SECONDS = 30
"""How long prefill keeps blocks that nobody reads."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A prefill and a decode server.

    Attributes:
        bootstrap: ``host:port`` where decode asks for the addresses of prefill's workers: the peer's name.

    """

    prefill: Server
    decode: Server
    bootstrap: str
    _engine_id: list[str] = field(default_factory=list)

    @property
    def engine_id(self) -> str:
        """The connector's id of the prefill engine."""
        if not self._engine_id:
            known = json.loads(fetch(f"http://{self.bootstrap}/query").text)
            self._engine_id.append(known["0"]["engine_id"])
        return self._engine_id[0]

    def prefilled(self, prompt: str, name: str = "") -> dict[str, Any]:
        """Compute a prompt on prefill, which keeps its blocks; return what decode is to be told. *name*: as in :meth:`load`."""
        transfer_id = uuid.uuid4().hex
        params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
        headers = {"X-Request-Id": name} if name else {}
        done = complete(self.prefill.url, prompt, max_tokens=1, kv_transfer_params=params, headers=headers)
        assert done.status == 200, done.text
        return {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": transfer_id,
            "remote_engine_id": self.engine_id,
            "remote_bootstrap_addr": f"http://{self.bootstrap}",
        }

    def load(self, name: str, prompt: str, params: Mapping[str, Any]) -> Answer:
        """Send a prompt to decode, which loads its blocks as *params* say; *name* is the client's for the request."""
        return complete(
            self.decode.url,
            prompt,
            max_tokens=TOKENS,
            kv_transfer_params=params,
            headers={"X-Request-Id": name},
            timeout=120.0,
        )

    def computed(self, prompt: str) -> str:
        """Return what greedy decoding makes of a prompt where nothing is moved."""
        return complete(self.prefill.url, prompt, max_tokens=TOKENS).completion

    def stop(self) -> None:
        """End both."""
        self.prefill.stop()
        self.decode.stop()


@contextmanager
def running_pairs(
    logs: Path,
    *endpoints: str,
    reader_seconds: int = READER_SECONDS,
    lease_seconds: int = LEASE_SECONDS,
    args: Sequence[str] = (),
) -> Iterator[list[Pair]]:
    """Start a pair for each of *endpoints* (an empty one leaves Penstock off), all at the same time; *args* are the servers'."""
    pairs: list[Pair] = []
    try:
        for number, endpoint in enumerate(endpoints):
            directory = logs / str(number)
            directory.mkdir()
            pairs.append(_start(directory, endpoint, reader_seconds, lease_seconds, args))
        for pair in pairs:
            pair.prefill.wait_ready()
            pair.decode.wait_ready()
        yield pairs
    finally:
        for pair in pairs:
            pair.stop()


def _start(logs: Path, endpoint: str, reader_seconds: int, lease_seconds: int, args: Sequence[str]) -> Pair:
    port = free_port()
    told = str(reader_seconds - _READER_MORE_SECONDS)

    def server(name: str, role: str, **env: str) -> Server:
        transfer = {
            "kv_connector": "MooncakeConnector",
            "kv_role": role,
            "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
        }
        return extra_connectors.start(
            name, transfer, logs=logs, endpoint=endpoint, module=extra_connectors.STANDIN, env=env, args=args
        )

    prefill = server(
        "prefill",
        "kv_producer",
        VLLM_MOONCAKE_BOOTSTRAP_PORT=str(port),
        VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT=str(lease_seconds),
    )
    try:
        decode = server("decode", "kv_consumer", VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT=told)
    except BaseException:
        prefill.stop()
        raise
    return Pair(prefill, decode, f"{LOOPBACK}:{port}")
