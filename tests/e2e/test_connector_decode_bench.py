"""vLLM's DecodeBenchConnector, which fills KV blocks with constants in the place of a transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.common.steps import PROMPT
from tests.support.engine.bench import new_name
from tests.support.kv import extra_connectors
from tests.support.kv.extra_connectors import vllm_counters
from tests.support.kv.shared_cache import CacheBench, ask, running_bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.servers import Server

pytestmark = pytest.mark.engine

CONNECTOR = "DecodeBenchConnector"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CacheBench]:
    """Run the agent and both engines."""
    logs = tmp_path_factory.mktemp("decode-bench")

    def start(name: str, endpoint: str) -> Server:
        transfer = {"kv_connector": CONNECTOR, "kv_role": "kv_both"}
        return extra_connectors.start(name, transfer, logs=logs, endpoint=endpoint)

    with running_bench(start) as bench:
        yield bench
        assert not bench.guard_errors()


def test_everything_is_the_same_without_penstock(served: CacheBench) -> None:
    """Texts and vLLM's own counters."""
    texts, counted = [], []
    for server in (served.observed, served.plain):
        texts.append([ask(server, f"{number} {PROMPT * 6}").completion for number in range(3)])
        counted.append(vllm_counters(server))

    assert texts[0] == texts[1]
    assert counted[0] == counted[1]
    assert any("external_kv_transfer" in name for name in counted[0])


def test_filled_blocks_are_reported_as_a_load(served: CacheBench) -> None:
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
