"""vLLM's DecodeBenchConnector, which fills KV blocks with constants in the place of a transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.common.steps import PROMPT
from tests.support.engine.bench import new_name
from tests.support.kv import extra_connectors
from tests.support.kv.extra_connectors import vllm_counters
from tests.support.kv.shared_cache import ObservedBench, ask, observed_bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from demo.servers import Server

pytestmark = pytest.mark.engine

CONNECTOR = "DecodeBenchConnector"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Server]:
    """Give what starts an engine."""
    logs = tmp_path_factory.mktemp("decode-bench")

    def start(name: str, endpoint: str) -> Server:
        transfer = {"kv_connector": CONNECTOR, "kv_role": "kv_both"}
        return extra_connectors.start(name, transfer, logs=logs, endpoint=endpoint)

    return start


@pytest.fixture(scope="module")
def served(start: Callable[[str, str], Server]) -> Iterator[ObservedBench]:
    """Run the agent and an engine."""
    with observed_bench(start) as bench:
        yield bench
        assert not bench.guard_errors()


@pytest.fixture
def plain(start: Callable[[str, str], Server]) -> Iterator[Server]:
    """Run an engine without Penstock."""
    server = start("plain", "")
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


@pytest.mark.long
def test_everything_is_the_same_without_penstock(served: ObservedBench, plain: Server) -> None:
    """Texts and vLLM's own counters."""
    texts, counted = [], []
    for server in (served.observed, plain):
        texts.append([ask(server, f"{number} {PROMPT * 6}").completion for number in range(3)])
        counted.append(vllm_counters(server))

    assert texts[0] == texts[1]
    assert counted[0] == counted[1]
    assert any("external_kv_transfer" in name for name in counted[0])


def test_filled_blocks_are_reported_as_a_load(served: ObservedBench) -> None:
    """All tokens of the prompt but the last."""
    earlier, name = new_name("fill"), new_name("fill")
    labels = {"connector": CONNECTOR, "channel": "kv", "direction": "receive", "result": "ok"}
    ask(served.observed, PROMPT, earlier)
    before = served.value_after(earlier, "penstock_transfers_total", **labels)
    answer = ask(served.observed, f"{name} {PROMPT * 6}", name)

    closed = served.event("request_closed", name).request_closed
    assert closed.external_cached_tokens == answer.body["usage"]["prompt_tokens"] - 1
    served.wait_value(before + 1, "penstock_transfers_total", **labels)
    assert served.span_of(name, "kv.load").attributes["penstock.connector"] == CONNECTOR
