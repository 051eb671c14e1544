"""The same traffic with one connector on a server with Penstock, and on one without."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from demo.common.agent import Agent
from demo.common.client import complete, fetch, post
from demo.common.metrics import Metrics
from demo.common.model import tiny_model
from demo.common.steps import PROMPT
from demo.servers import ROOT, Server, ServerSpec
from tests.support.agent.agent import short_directory
from tests.support.engine.bench import AgentBench
from tests.support.engine.pairs import penstock_env

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from penstock.proto.v1 import admin_pb2 as admin

TOKENS = 12
PROMPTS = tuple(f"{number} {PROMPT * (4 + 2 * number)}" for number in range(3))
NAMES = tuple(f"{turn}-{number}" for turn in ("saved", "loaded") for number in range(len(PROMPTS)))

# Two servers differ in these whatever is installed: in when they started, and in how long things take.
_OF_THE_RUN = re.compile(r"seconds|time|_created|^process_|^python_|perc$|throughput")
_COUNTERS = re.compile(r"_total$")


def example(directory: Path) -> dict[str, Any]:
    """Return the KVTransferConfig of an ExampleConnector on *directory*."""
    return {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(directory)},
    }


def offloading(directory: Path) -> dict[str, Any]:
    """Return the KVTransferConfig of an OffloadingConnector that offloads to a file in *directory*."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "FileSpec",
            "spec_module_path": "tests.support.kv.cpu_offload",
            "cpu_bytes_to_use": 64 << 20,
            "path": str(directory / "offloaded"),
            # Loads wait while this file is there.
            "gate": str(directory / "gate"),
        },
    }


def with_nixl(directory: Path) -> dict[str, Any]:
    """Return the KVTransferConfig of a MultiConnector of NIXL and an ExampleConnector on *directory*."""
    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [nixl, example(directory)]},
    }


SETUPS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "example": example,
    "offloading": offloading,
    "multi": with_nixl,
}
"""By name: a connector that stores below a directory."""


@dataclass(frozen=True)
class Ran:
    """What a server answered, and what vLLM's own metrics say afterwards."""

    texts: tuple[str, ...]
    metrics: Metrics

    @property
    def label_sets(self) -> set[str]:
        """The series, by name and labels."""
        return {_series(sample) for sample in self.metrics.samples if not _OF_THE_RUN.search(sample.name)}

    @property
    def counters(self) -> dict[str, float]:
        """The counters that the traffic determines."""
        return {
            _series(sample): sample.value
            for sample in self.metrics.samples
            if _COUNTERS.search(sample.name) and not _OF_THE_RUN.search(sample.name)
        }


def _series(sample: Any) -> str:
    labels = {name: value for name, value in sample.labels.items() if "engine_id" not in name}
    return f"{sample.name}{sorted(labels.items())}"


class Trial(AgentBench):
    """A server with Penstock, its store, and what the traffic did on it."""

    def __init__(self, agent: Agent, server: Server, store: Path) -> None:
        name = server.spec.name
        super().__init__(agent, name, labels={"tier": name}, policy=f"connectors-{name}")
        self.engine, self.store = server, store
        self.ran = traffic(server)

    def trace(self, name: str) -> list[admin.Span]:
        """Wait until the request that the client named so is closed, and return the spans of its trace."""
        self.event("request_closed", name)
        return self.spans_of(name)


def traffic(server: Server) -> Ran:
    """Send each prompt, empty the prefix cache, and send each again: what is found then was saved."""
    texts = []
    for name in NAMES:
        prompt = PROMPTS[int(name[-1])]
        answer = complete(
            server.url, prompt, max_tokens=TOKENS, headers={"X-Request-Id": name}, timeout=120.0
        )
        texts.append(answer.completion)
        forgotten = post(f"{server.url}/reset_prefix_cache")
        assert forgotten.status == 200, forgotten.text
    return Ran(tuple(texts), Metrics.parse(fetch(f"{server.url}/metrics").text))


@contextmanager
def trial(name: str, *, directory: Path) -> Iterator[Trial]:
    """Run the traffic on a server with Penstock, which stays for a closer look."""
    with short_directory() as state:
        agent = Agent(state, engines=1)
        agent.start()
        try:
            with _server(name, directory / "with", endpoint=agent.endpoint) as server:
                found = Trial(agent, server, directory / "with")
                yield found
                assert not found.guard_errors()
                found.close()
        finally:
            agent.stop()


def without_penstock(name: str, *, directory: Path) -> Ran:
    """Run the traffic on a server without Penstock."""
    with _server(name, directory / "without", endpoint="") as server:
        return traffic(server)


@contextmanager
def _server(name: str, store: Path, *, endpoint: str) -> Iterator[Server]:
    store.mkdir()
    env = penstock_env({"PENSTOCK_ENDPOINT": endpoint, "VLLM_SERVER_DEV_MODE": "1"}, name)
    spec = ServerSpec(
        name,
        args=("--block-size", "32", "--kv-transfer-config", json.dumps(SETUPS[name](store))),
        env={**env, "PENSTOCK_LABELS": f"tier={name}"},
    )
    server = Server(spec, model=tiny_model(ROOT / ".cache" / "models"), logs=store)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
