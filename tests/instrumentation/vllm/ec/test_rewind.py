"""Items that the workers cannot load: every output is as if nothing had failed, on real schedulers over a memory that tells."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.rules.policy import Action, EcLoadFailure

from tests.support.ec.fake_ec import LEFT, ToyEcEngine, expected, image_request
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, request
from tests.support.engine.versions import VERSION
from tests.support.examples import examples
from tests.support.variants import product

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

OUTPUTS = 6
TOKENS = 6 * BLOCK + 5
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


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
    """Check that no block is held, vLLM's encoder cache counts are exact, and no request is remembered."""
    manager = scheduler.encoder_cache_manager
    assert manager.num_freeable_slots == manager.cache_size
    assert manager.num_free_slots + sum(manager.freeable.values()) == manager.cache_size
    assert manager.freeable.keys() == manager.cached.keys()
    if VERSION >= (0, 31):
        assert manager.cached.keys() == manager.num_embeds_by_hash.keys()
    assert not any(manager.cached.values())
    assert not manager.request_cached_ids
    assert set(manager.cached) >= set(items)
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1  # the null block
    control = scheduler._penstock.ec
    assert not control._steps
    assert not control.failing
    assert not control._waits._deadlines.waiting()
    assert not scheduler._penstock.observer._records


ITEMS = {
    "one at the front": {0: ("a", 40)},
    "one in the middle": {70: ("a", 50)},
    "one at the end": {TOKENS - 21: ("a", 20)},
    "two, the first bad": {10: ("a", 30), 100: ("good", 60)},
    "two, the second bad": {10: ("good", 30), 100: ("a", 60)},
    "two, both bad": {10: ("a", 30), 100: ("b", 60)},
    "the same twice": {10: ("a", 30), 100: ("a", 30)},
}


@product(
    kind={"sync": "sync", "async": "async"},
    keeps_held={"V1 runner": False, "V2 runner": True},
    chunk={"whole": 1024, "chunks": 64, "uneven chunks": 40},
    items=ITEMS,
)
def test_output_after_a_recompute(
    kind: str,
    keeps_held: bool,
    chunk: int,
    items: dict[int, tuple[str, int]],
    make_ec_scheduler: MakeScheduler,
    recorder: Recorder,
) -> None:
    """The request, one that shares its prefix, one that shares an item, others, and a later one: all outputs are right."""
    scheduler = make_ec_scheduler(kind, chunk=chunk)
    act("recompute")
    scheduler.ec_connector.store |= {"a", "b", "good"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad={"a", "b"}.__contains__, keeps_held=keeps_held)
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


@KINDS
def test_hybrid_model(kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """With several KV cache groups every group's blocks go, and the outputs are right."""
    scheduler = make_ec_scheduler(kind, chunk=64, hybrid=True)
    act("recompute")
    scheduler.ec_connector.store |= {"a", "good"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad={"a"}.__contains__)
    items = {10: ("good", 30), 100: ("a", 60)}
    first, sharer = image("first", items), image("sharer", items, tokens=TOKENS + BLOCK)
    engine.run(first, sharer)
    later = image("later", items, tokens=TOKENS + 2 * BLOCK)
    engine.run(later)
    assert_right(engine, first, sharer, later)
    assert recorder.take("load_outcome", "first")[0].outcome == c.OUTCOME_RECOMPUTED
    assert_clean(scheduler)


LENGTHS = {"a": 20, "b": 40, "c": 64, "d": 33}


@dataclass(frozen=True)
class Plan:
    """A request of a scenario: who shares its beginning, its items by offset, when it comes and when its client leaves."""

    family: int
    tokens: int
    items: tuple[tuple[int, str], ...]
    comes: int
    leaves: int | None

    def build(self, name: str) -> Any:
        """Return the request."""
        items = {offset: (item, LENGTHS[item]) for offset, item in self.items}
        return image(name, items, tokens=self.tokens, first=400 + self.family)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Return a request with up to four items, and some text around them."""
    at, items = 0, []
    for item in draw(st.lists(st.sampled_from("abcd"), max_size=4)):
        at += draw(st.integers(0, 40))
        items.append((at, item))
        at += LENGTHS[item]
    tokens = at + draw(st.integers(1, 3 * BLOCK))
    leaves = draw(st.none() | st.integers(1, 8))
    return Plan(draw(st.integers(0, 1)), tokens, tuple(items), draw(st.integers(0, 6)), leaves)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(plans(), min_size=1, max_size=6),
    st.sets(st.sampled_from("abcd")),
    st.sampled_from(["sync", "async"]),
    st.booleans(),
    st.sampled_from([1024, 64, 40]),
    st.sampled_from([64, 120, 4096]),
    st.sampled_from(["recompute", "fail", "auto"]),
    st.sets(st.integers(1, 8), max_size=2),
)
def test_any_scenario(
    make_ec_scheduler: MakeScheduler,
    recorder: Recorder,
    requests: list[Plan],
    bad: set[str],
    kind: str,
    keeps_held: bool,
    chunk: int,
    rows: int,
    action: str,
    preempts: set[int],
) -> None:
    """No wrong token is delivered, requests without a bad item are unaffected, and all counts are exact."""
    recorder.events.clear()
    scheduler = make_ec_scheduler(kind, chunk=chunk, rows=rows)
    act(action, 1 if action == "auto" else None)
    scheduler.ec_connector.store |= set(LENGTHS)
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad=bad.__contains__, keeps_held=keeps_held)
    live = [(plan, plan.build(f"r{index}")) for index, plan in enumerate(requests)]
    for step in range(9):
        for plan, each in live:
            if plan.comes == step:
                scheduler.add_request(each)
            if plan.leaves is not None and plan.comes + plan.leaves == step:
                scheduler.finish_requests(each.request_id, LEFT)
        if step in preempts and scheduler.running:  # as vLLM does for want of blocks
            scheduler._preempt_request(scheduler.running.pop(), time.monotonic())
        if scheduler.requests or engine.busy:
            engine.step()
    engine.run()
    for plan, each in live:
        outputs, right = engine.outputs.get(each.request_id, []), expected(each, OUTPUTS)
        assert outputs == right[: len(outputs)], each.request_id
        if plan.leaves is None and each.request_id not in engine.errors:
            assert outputs == right, each.request_id
        if not bad & {item for _, item in plan.items}:
            assert not recorder.take("load_outcome", each.request_id)
            assert each.request_id not in engine.errors
            assert preempts or not each.num_preemptions
    assert action != "recompute" or not engine.errors
    assert_clean(scheduler)
    again = [plan.build(f"again{index}") for index, plan in enumerate(requests)]
    engine.run(*again)
    assert_right(engine, *(each for each in again if each.request_id not in engine.errors))
