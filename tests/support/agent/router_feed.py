"""The feed for routers of a running agent or relay, and what engines say so that it has rows."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import add_transfers

if TYPE_CHECKING:
    from tests.support.agent.agent import AgentProcess
    from tests.support.agent.ingest_client import FakeEngine
    from tests.support.agent.relay import RelayProcess


def feed_of(agent: AgentProcess) -> str:
    """Return the address of an agent's feed."""
    return str(json.loads((agent.state_dir / "addresses.json").read_text())["feed"])


def relay_feed_of(relay: RelayProcess) -> str:
    """Return the address of a relay's feed; its log has it."""
    records = [json.loads(line) for line in relay.log().splitlines() if line.startswith("{")]
    return next(str(each["feed"]) for each in reversed(records) if "feed" in each)


def fetch(url: str) -> dict[str, Any]:
    """Return the document; that of an error where there is none."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            found: dict[str, Any] = json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            found = json.loads(error.read())
    return found


def read_from(engine: FakeEngine, peer: str, count: int = 3) -> None:
    """Let an engine have read from *peer* just now."""
    batch = add_transfers(Batch(), [f"read-{number}" for number in range(count)], peer=peer)
    batch.transfers.end_time_unix_nano[:] = [time.time_ns()] * count
    engine.publish_batch(batch)
