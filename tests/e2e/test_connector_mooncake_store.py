"""vLLM's MooncakeStoreConnector: prompts are saved to a pool that another process owns, and loaded from there."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.steps import PROMPT
from tests.support.engine.bench import new_name
from tests.support.kv.extra_connectors import needs_extra_connectors, vllm_counters
from tests.support.kv.mooncake_store import Store, running_store
from tests.support.kv.shared_cache import CacheBench, ask, running_bench, saved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.servers import Server

pytestmark = [pytest.mark.engine, needs_extra_connectors]

CONNECTOR = "MooncakeStoreConnector"

# The store has whole blocks of 128 tokens.
_SENTENCES = 12


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Run master and owner."""
    with running_store(tmp_path_factory.mktemp("mooncake-store")) as running:
        yield running


@pytest.fixture(scope="module")
def served(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CacheBench]:
    """Run the agent and both engines."""
    logs = tmp_path_factory.mktemp("mooncake-engines")

    def start(name: str, endpoint: str) -> Server:
        return store.engine(name, logs=logs, endpoint=endpoint)

    with running_bench(start) as bench:
        yield bench


@pytest.fixture
def cache(served: CacheBench) -> Iterator[CacheBench]:
    """Begin and end without a policy, and see that our code raised nothing."""
    served.forget()
    yield served
    served.forget()
    assert not served.guard_errors()


def _prompt(name: str) -> str:
    return f"{name} {PROMPT * _SENTENCES}"


def test_everything_is_the_same_without_penstock(cache: CacheBench) -> None:
    """Texts and vLLM's own counters."""
    prompts = [_prompt(f"request {number}") for number in range(3)]
    texts, counted = [], []
    for server in (cache.observed, cache.plain):
        computed = [saved(server, prompt) for prompt in prompts]
        texts.append([ask(server, prompt).completion for prompt in prompts])
        assert texts[-1] == computed
        counted.append(vllm_counters(server))

    assert texts[0] == texts[1]
    assert counted[0] == counted[1]
    assert any("external_kv_transfer" in name for name in counted[0])


def test_a_load_is_reported(cache: CacheBench) -> None:
    """Connector, tokens and request."""
    earlier, name = new_name("store"), new_name("store")
    expected = saved(cache.observed, _prompt(name))
    labels = {"connector": CONNECTOR, "channel": "kv", "direction": "receive", "result": "ok"}
    ask(cache.observed, _prompt(earlier), earlier)
    before = cache.value_after(earlier, "penstock_transfers_total", **labels)
    answer = ask(cache.observed, _prompt(name), name)

    assert answer.completion == expected
    closed = cache.event("request_closed", name).request_closed
    assert 0 < closed.external_cached_tokens < answer.body["usage"]["prompt_tokens"]
    assert closed.external_cached_tokens % 128 == 0
    cache.wait_value(before + 1, "penstock_transfers_total", **labels)
    assert cache.span_of(name, "kv.load").status != "error"
    assert not cache.events("transfer_failure", name)


def test_the_owner_of_the_pool_is_killed(cache: CacheBench, store: Store) -> None:
    """The master still says that it has the blocks: vLLM's configuration fails one request, a policy saves the other."""
    names = [new_name("store"), new_name("store")]
    expected = [saved(cache.observed, _prompt(name)) for name in names]
    store.owner.signal(signal.SIGKILL)

    failed = ask(cache.observed, _prompt(names[0]), names[0])
    cache.enforce(kvLoadFailure={"action": "recompute"})
    recomputed = ask(cache.observed, _prompt(names[1]), names[1])

    assert failed.status >= 500
    assert recomputed.completion == expected[1]
    for name, outcome in zip(names, (c.OUTCOME_FAILED, c.OUTCOME_RECOMPUTED), strict=True):
        failure = cache.failure(name)
        assert (failure.connector, failure.channel) == (CONNECTOR, c.CHANNEL_KV)
        assert failure.mode == c.FAILURE_MODE_LOAD
        assert failure.blocks > 0
        (event,) = cache.events("load_outcome", name)
        assert event.load_outcome.outcome == outcome
    assert cache.event("load_outcome", names[1]).load_outcome.tokens_recomputed > 0
