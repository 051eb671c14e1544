"""KV connectors without a hook of their own, on real engines: what is reported, and that vLLM behaves as without us."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1.common_pb2 import FAILURE_MODE_EXCEPTION

from demo.common.client import complete
from tests.support.kv.connector_trial import NAMES, PROMPTS, SETUPS, TOKENS, trial, without_penstock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.kv.connector_trial import Trial

pytestmark = pytest.mark.engine

# Of the child that saves and loads in each setup.
CONNECTORS = {"example": "ExampleConnector", "offloading": "OffloadingConnector", "multi": "ExampleConnector"}
# Of the three, one is compared with a server of its own in each run. The order is that of the fixture's, so that pytest
# starts no engine twice.
_AS_IT_WAS = [pytest.param(name, marks=() if name == "offloading" else pytest.mark.long) for name in SETUPS]
PEERS = {"example": "unknown", "offloading": "host", "multi": "unknown"}


@pytest.fixture(scope="module", params=list(SETUPS))
def tried(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """Run the traffic on a server with Penstock."""
    with trial(request.param, directory=tmp_path_factory.mktemp(request.param)) as found:
        yield found


@pytest.mark.parametrize("tried", _AS_IT_WAS, indirect=True)
def test_vllm_is_as_it_was(tried: Trial, tmp_path: Path) -> None:
    """A server without Penstock has the same series and counters; both answer the same, loaded or computed."""
    plain = without_penstock(tried.server, directory=tmp_path)
    assert tried.ran.texts == plain.texts
    assert tried.ran.texts[: len(PROMPTS)] == tried.ran.texts[len(PROMPTS) :]
    assert tried.ran.label_sets == plain.label_sets
    assert tried.ran.counters == plain.counters
    assert tried.ran.metrics.value("vllm:external_prefix_cache_hits_total") > 0


def test_each_request_saves_and_then_loads(tried: Trial) -> None:
    """One transfer for each request and direction, by the name of the connector that moved it, and none else."""
    connector, peer = CONNECTORS[tried.server], PEERS[tried.server]
    for direction in ("send", "receive"):
        labels = {"connector": connector, "direction": direction, "result": "ok", "peer": peer}
        tried.wait_value(len(PROMPTS), "penstock_transfers_total", **labels)
    assert tried.value("penstock_transfers_total") == 2 * len(PROMPTS)
    assert tried.value("penstock_transfer_failures_total") == 0


def test_spans(tried: Trial) -> None:
    """A request that loads has one kv.load with its connector; bytes are there where the connector counts them."""
    spans = tried.trace(NAMES[-1])
    (load,) = [
        span
        for span in spans
        if span.name == "kv.load" and span.attributes["penstock.direction"] == "receive"
    ]
    assert load.attributes["penstock.connector"] == CONNECTORS[tried.server]
    assert load.attributes["penstock.peer"] == PEERS[tried.server]
    assert load.end_time_unix_nano > load.start_time_unix_nano
    assert ("penstock.bytes" in load.attributes) == (tried.server == "offloading")


def test_agentctl(tried: Trial) -> None:
    """The peers, the requests and the sentence about one request name what was moved and where it was."""
    assert PEERS[tried.server] in tried.ctl("get", "peers")
    assert NAMES[-1] in tried.ctl("get", "requests")
    sentence = tried.ctl("explain", NAMES[-1])
    assert "loaded KV state" in sentence
    assert "0 B" not in sentence


def test_a_file_that_is_cut_short(tried: Trial) -> None:
    """The exception ends the engine; the agent knows which request it was, and why."""
    for file in tried.store.rglob("*"):
        if file.suffix in {".safetensors", ""} and file.is_file() and file.stat().st_size:
            os.truncate(file, file.stat().st_size // 2 if file.suffix else 0)
    answer = complete(
        tried.engine.url, PROMPTS[-1], max_tokens=TOKENS, headers={"X-Request-Id": "cut"}, timeout=120.0
    )
    assert answer.status == 500
    event = tried.event("transfer_failure")
    failure = event.transfer_failure
    assert failure.connector == CONNECTORS[tried.server]
    assert event.request_id.startswith("cmpl-cut")
    # vLLM asserts that the jobs of an OffloadingConnector succeed.
    expected = "AssertionError" if tried.server == "offloading" else "SafetensorError"
    assert (failure.mode, failure.error_class) == (FAILURE_MODE_EXCEPTION, expected)
