"""vLLM's LMCacheMPConnector: prompts are saved to an LMCache server on the CPU, and loaded from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.steps import PROMPT, until
from tests.support.engine.bench import new_name
from tests.support.kv.extra_connectors import needs_extra_connectors, vllm_counters
from tests.support.kv.lmcache import CHUNK, CacheServer
from tests.support.kv.shared_cache import CacheBench, ask, running_bench, saved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.servers import Server

pytestmark = [pytest.mark.engine, needs_extra_connectors]

CONNECTOR = "LMCacheMPConnector"

_SENTENCES = 12


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, CacheServer]]:
    """Run an LMCache server for each engine: what one has computed, the other is not to find."""
    logs = tmp_path_factory.mktemp("lmcache")
    running: dict[str, CacheServer] = {}
    try:
        for name in ("observed", "plain"):
            running[name] = CacheServer(logs, name)
        for server in running.values():
            server.wait_ready()
        yield running
    finally:
        for server in running.values():
            server.stop()


@pytest.fixture(scope="module")
def served(caches: dict[str, CacheServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[CacheBench]:
    """Run the agent and both engines."""
    logs = tmp_path_factory.mktemp("lmcache-engines")

    def start(name: str, endpoint: str) -> Server:
        return caches[name].engine(name, logs=logs, endpoint=endpoint)

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
    earlier, name = new_name("lmcache"), new_name("lmcache")
    expected = saved(cache.observed, _prompt(name))
    labels = {"connector": CONNECTOR, "channel": "kv", "direction": "receive", "result": "ok"}
    ask(cache.observed, _prompt(earlier), earlier)
    before = cache.value_after(earlier, "penstock_transfers_total", **labels)
    answer = ask(cache.observed, _prompt(name), name)

    assert answer.completion == expected
    closed = cache.event("request_closed", name).request_closed
    assert 0 < closed.external_cached_tokens < answer.body["usage"]["prompt_tokens"]
    assert closed.external_cached_tokens % CHUNK == 0
    cache.wait_value(before + 1, "penstock_transfers_total", **labels)
    assert cache.span_of(name, "kv.load").status != "error"
    assert not cache.events("transfer_failure", name)


def test_the_server_is_killed_between_look_up_and_load(
    cache: CacheBench, caches: dict[str, CacheServer]
) -> None:
    """What it said that it had is not loaded; the request is recomputed, as the policy says.

    The worker copies by itself, and stands still until LMCache gives up: no step looks at the deadline meanwhile.
    """
    name = new_name("lmcache")
    expected = saved(cache.observed, _prompt(name))
    cache.enforce(
        kvLoadFailure={"action": "recompute"}, deferral={"maxTransferWait": "1s", "onTimeout": "fail"}
    )
    caches["observed"].kill_at_next_load()

    answer = ask(cache.observed, _prompt(name), name)

    assert answer.completion == expected
    failure = cache.failure(name)
    assert (failure.connector, failure.channel) == (CONNECTOR, c.CHANNEL_KV)
    assert failure.mode == c.FAILURE_MODE_LOAD
    assert failure.blocks > 0
    assert failure.error_type == c.ERROR_TYPE_TIMEOUT
    assert failure.error_text.startswith("LMCache's server does not answer")
    decided = cache.event("load_outcome", name).load_outcome
    assert (decided.outcome, decided.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
    assert decided.tokens_recomputed > 0


def test_a_server_that_is_gone_is_no_miss(cache: CacheBench, caches: dict[str, CacheServer]) -> None:
    """After the test above: each look-up is a failed one with the server as the peer, and the prompt is computed."""
    name = new_name("lmcache")
    expected = ask(cache.plain, _prompt(name)).completion

    answer = ask(cache.observed, _prompt(name), name)

    assert answer.completion == expected
    failure = cache.failure(name)
    assert (failure.connector, failure.channel) == (CONNECTOR, c.CHANNEL_KV)
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_PROBE, c.ERROR_TYPE_TIMEOUT)
    assert failure.peer.address == caches["observed"].address
    assert failure.error_text.startswith("LMCache's server does not answer: tcp://")
    assert not cache.events("load_outcome", name)
    told = {"channel": "kv", "connector": CONNECTOR, "mode": "probe", "peer": caches["observed"].address}
    assert cache.value("penstock_transfer_failures_total", **told) >= 1
    said = f"peer {caches['observed'].address} does not answer in time"
    until(lambda: said in cache.agent.ctl("diagnose").output, "The judge does not name the server")
