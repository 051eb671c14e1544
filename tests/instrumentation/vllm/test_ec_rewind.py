"""Items that the workers cannot load: every output is as if nothing had failed, on real schedulers over a memory that tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation import constants as c
from penstock.instrumentation.policy_model import Action, EcLoadFailure
from penstock.instrumentation.runtime import runtime

from tests.support.recorder import policy
from tests.support.schedulers import BLOCK, request
from tests.support.toy_ec import ToyEcEngine, expected, image_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.recorder import Recorder

    MakeScheduler = Callable[..., Any]

OUTPUTS = 6
TOKENS = 6 * BLOCK + 5
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])
CHUNKS = pytest.mark.parametrize("chunk", [1024, 64, 40], ids=["whole", "chunks", "uneven chunks"])


def act(action: str, items: int | None = None) -> None:
    """Put a policy for failed loads of items in force."""
    runtime.policy.swap(policy(ec=EcLoadFailure(Action(action), items)), 1.0)


def image(request_id: str, items: dict[int, tuple[str, int]], **arguments: Any) -> Any:
    """Return a request with images."""
    return image_request(request_id, items, **{"tokens": TOKENS, "max_tokens": OUTPUTS, **arguments})


def assert_right(engine: ToyEcEngine, *requests: Any) -> None:
    """Every output is what it would have been without a failure."""
    for each in requests:
        assert engine.outputs[each.request_id] == expected(each, OUTPUTS), each.request_id


def assert_clean(scheduler: Any, items: Iterable[str] = ()) -> None:
    """Nobody holds anything, the accounts of vLLM's encoder cache are exact, and nothing is remembered of requests."""
    manager = scheduler.encoder_cache_manager
    assert manager.num_freeable_slots == manager.cache_size
    assert manager.num_free_slots + sum(manager.freeable.values()) == manager.cache_size
    assert manager.freeable.keys() == manager.cached.keys() == manager.num_embeds_by_hash.keys()
    assert not any(manager.cached.values())
    assert not manager.request_cached_ids
    assert set(manager.cached) >= set(items)
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1  # the null block
    control = scheduler._penstock_ec
    assert not control._tracking._pending
    assert not control._failing
    assert not control._waits.now()
    assert not scheduler._penstock._records


ITEMS = {
    "one at the front": {0: ("a", 40)},
    "one in the middle": {70: ("a", 50)},
    "one at the end": {TOKENS - 21: ("a", 20)},
    "two, the first bad": {10: ("a", 30), 100: ("good", 60)},
    "two, the second bad": {10: ("good", 30), 100: ("a", 60)},
    "two, both bad": {10: ("a", 30), 100: ("b", 60)},
    "the same twice": {10: ("a", 30), 100: ("a", 30)},
}


@KINDS
@CHUNKS
@pytest.mark.parametrize("items", ITEMS.values(), ids=ITEMS)
def test_output_after_a_recompute(
    kind: str,
    chunk: int,
    items: dict[int, tuple[str, int]],
    make_ec_scheduler: MakeScheduler,
    recorder: Recorder,
) -> None:
    """The request, one that shares its prefix, one that shares an item, others, and a later one: all outputs are right."""
    scheduler = make_ec_scheduler(kind, chunk=chunk)
    act("recompute")
    scheduler.ec_connector.store |= {"a", "b", "good"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad=lambda item: item in {"a", "b"})
    first = image("first", items)
    sharer = image("sharer", items, tokens=TOKENS + BLOCK)
    length = dict(items.values())["a"]
    same_item = image("same-item", {33: ("a", length)}, first=498)
    other = image("other", {5: ("good-too", 64)}, first=499)
    text = request("text", first=497, tokens=3 * BLOCK, max_tokens=OUTPUTS)
    engine.run(other, first, sharer, same_item, text)
    later = image("later", items, tokens=TOKENS + 2 * BLOCK)
    engine.run(later)
    assert_right(engine, other, first, sharer, same_item, text, later)
    outcome = recorder.take("load_outcome", "first")[0]
    assert (outcome.channel, outcome.outcome, outcome.decided_by) == (
        c.CHANNEL_EC,
        c.OUTCOME_RECOMPUTED,
        c.DECIDED_BY_POLICY,
    )
    assert outcome.items_recomputed >= 1
    for undisturbed in (other, text, later):
        assert not recorder.take("load_outcome", undisturbed.request_id)
        assert not undisturbed.num_preemptions
    # A bad item is loaded once, and from then on encoded here.
    assert sorted(item for item in engine.loaded if item in {"a", "b"}) == sorted(
        {name for name, _ in items.values()} - {"good"}
    )
    assert_clean(scheduler, {"a"})
