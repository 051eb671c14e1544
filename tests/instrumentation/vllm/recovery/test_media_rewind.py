"""KV loads that fail behind a picture of the computed prefix: no engine ends where a policy speaks, and every token is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.rules.policy import NO_POLICY

from tests.support.ec.fake_ec import LEFT, ToyEcEngine, expected, image_request
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, preempt
from tests.support.examples import examples
from tests.support.variants import product

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

TOY = {"kv_connector": "ToyConnector", "kv_connector_module_path": "tests.support.kv.fake_connector"}
STORED = 4 * BLOCK
OUTPUTS = 6
PICTURE = {10: ("picture", 30)}
WITHOUT_MEDIA = "is to encode picture without media"

KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


def stored(request_id: str, items: dict[int, tuple[str, int]] = PICTURE, **arguments: Any) -> Any:
    """Return a request with pictures whose first blocks are in the connector's store."""
    params = {"stored": STORED, **arguments.pop("params", {})}
    return image_request(
        request_id, items, **{"tokens": STORED + 5, "max_tokens": OUTPUTS, "params": params, **arguments}
    )


def first_only(block: int) -> Callable[[str, int], bool]:
    """Return what fails that block of the request "first"."""
    return lambda request_id, number: request_id == "first" and number == block


def assert_right(engine: ToyEcEngine, *requests: Any) -> None:
    """Every output is what it would have been without a failure."""
    for each in requests:
        assert engine.outputs[each.request_id] == expected(each, OUTPUTS), each.request_id


def test_vanilla_ends_the_engine(make_scheduler: MakeScheduler) -> None:
    """Without a policy vLLM's own recompute has the worker encode what it was never given: nothing of ours stands in the way."""
    scheduler = make_scheduler("sync", own="recompute", pictures=True, **TOY)
    engine = ToyEcEngine(scheduler, ahead=False, fails=first_only(0))
    with pytest.raises(AssertionError, match=WITHOUT_MEDIA):
        engine.run(stored("first"))


PICTURES = {
    "covered by the load": PICTURE,
    "half of it loaded": {STORED - 10: ("picture", 12)},
    "two, both covered": {10: ("picture", 30), 70: ("other-picture", 50)},
    "the same twice": {10: ("picture", 30), 70: ("picture", 30)},
}


@product(
    kind={"sync": "sync", "async": "async"},
    waits={"in the step": False, "waiting": True},
    chunk={"whole": 1024, "chunks": 40},
    broken={"0": 0, "1": 1, "3": 3},
    items=PICTURES,
)
def test_output_after_a_recompute(
    kind: str,
    waits: bool,
    chunk: int,
    broken: int,
    items: dict[int, tuple[str, int]],
    make_scheduler: MakeScheduler,
    recorder: Recorder,
) -> None:
    """The request, one that shares its loaded prefix and one that comes later encode what they need: all outputs are right."""
    scheduler = make_scheduler(kind, pictures=True, chunk=chunk, **TOY)
    runtime.policy.swap(policy("recompute"), 1.0)
    engine = ToyEcEngine(scheduler, ahead=kind == "async", fails=first_only(broken))
    first = stored("first", items, params={"waits": waits})
    sharer = image_request("sharer", items, tokens=STORED + BLOCK, max_tokens=OUTPUTS)
    engine.run(first, sharer)
    later = image_request("later", items, tokens=STORED + 2 * BLOCK, max_tokens=OUTPUTS)
    engine.run(later)
    assert_right(engine, first, sharer, later)
    assert not engine.errors
    (outcome,) = recorder.take("load_outcome", "first")
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
    assert not scheduler._penstock.media._left_out


@pytest.mark.parametrize("role", ["kv_consumer", "kv_both"])
def test_media_go_out_only_while_a_load_may_fail(role: str, make_scheduler: MakeScheduler) -> None:
    """What lies in the cached prefix is left out as vLLM does it, unless a policy would rewind a request that shares a load."""
    scheduler = make_scheduler("sync", role=role, pictures=True, **TOY)
    engine = ToyEcEngine(scheduler, ahead=False)
    engine.run(stored("warm", first=400))
    for action, loads, kept in (
        ("recompute", False, False),
        ("recompute", True, True),
        ("auto", True, True),
        ("fail", True, False),
        ("", True, False),
    ):
        runtime.policy.swap(policy(action), 1.0)
        name = f"{action}-{loads}"
        cached = image_request(f"cached-{name}", PICTURE, first=400, tokens=STORED, max_tokens=1)
        loading = [stored(f"loading-{name}", first=401 + len(engine.outputs), max_tokens=1)] if loads else []
        engine.run(*loading, cached)
        given = engine.given[cached.request_id]
        assert (given[0].data is not None) is (kept and role == "kv_consumer"), name


def poisoned(engine: ToyEcEngine) -> None:
    """Let nothing be found again: neither blocks nor pictures."""
    scheduler = engine.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    pool.evict_blocks(set(range(pool.num_gpu_blocks)))
    scheduler.encoder_cache_manager.reset()
    engine.cache.clear()


@KINDS
def test_a_policy_that_comes_too_late(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A request sent without media before the policy came alone fails, with the reason."""
    scheduler = make_scheduler(kind, pictures=True, **TOY)

    def fails(request_id: str, block: int) -> bool:
        runtime.policy.swap(policy("recompute"), 1.0)
        return request_id == "first" and block == 0

    engine = ToyEcEngine(scheduler, ahead=kind == "async", fails=fails)
    other = image_request("other", PICTURE, first=400, tokens=3 * BLOCK, max_tokens=OUTPUTS)
    engine.run(stored("first"), other)
    assert_right(engine, other)
    assert engine.errors.keys() == {"first"}
    assert "left its media out" in engine.errors["first"]
    assert engine.errors["first"].endswith("The request can be retried.")
    (outcome,) = recorder.take("load_outcome", "first")
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_FAILED, c.DECIDED_BY_POLICY)
    again = stored("again")
    engine.run(again)
    assert_right(engine, again)


@KINDS
@pytest.mark.parametrize("policed", [False, True])
def test_preempted_and_nothing_is_left(
    kind: str, policed: bool, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A request that vLLM itself sends back behind a covered picture ends the engine, and with a policy only itself."""
    scheduler = make_scheduler(kind, pictures=True, **TOY)
    engine = ToyEcEngine(scheduler, ahead=kind == "async")
    engine.run(image_request("warm", PICTURE, tokens=STORED + 5, max_tokens=OUTPUTS))
    runtime.policy.swap(policy("fail") if policed else NO_POLICY, 1.0)
    first = image_request("first", PICTURE, tokens=STORED + 5, max_tokens=OUTPUTS)
    scheduler.add_request(first)
    engine.step()
    preempt(scheduler)
    poisoned(engine)
    other = image_request("other", {10: ("good", 30)}, first=400, tokens=3 * BLOCK, max_tokens=OUTPUTS)
    if not policed:
        with pytest.raises(AssertionError, match=WITHOUT_MEDIA):
            engine.run(other)
        return
    engine.run(other)
    assert_right(engine, other)
    assert "left its media out" in engine.errors["first"]
    outputs = engine.outputs["first"]
    assert outputs == expected(first, OUTPUTS)[: len(outputs)]
    (outcome,) = recorder.take("load_outcome", "first")
    assert (outcome.outcome, outcome.error_type) == (c.OUTCOME_FAILED, c.ERROR_TYPE_EVICTED)


@KINDS
@pytest.mark.parametrize("policed", [False, True])
def test_the_second_load_fails(kind: str, policed: bool, make_scheduler: MakeScheduler) -> None:
    """A request that has run on a good load, was preempted and waits for another that fails cannot encode: it fails, not the engine."""
    scheduler = make_scheduler(kind, own="recompute", pictures=True, **TOY)
    runtime.policy.swap(policy("recompute") if policed else NO_POLICY, 1.0)
    first = stored("first", params={"waits": True})

    def fails(_request_id: str, _block: int) -> bool:
        if first.num_preemptions:
            first.kv_transfer_params["stored"] = 0  # it is there once, as with a peer
        return bool(first.num_preemptions)

    engine = ToyEcEngine(scheduler, ahead=kind == "async", fails=fails)
    scheduler.add_request(first)
    while not scheduler.running:
        engine.step()
    preempt(scheduler)
    poisoned(engine)
    if policed:
        engine.run()
        assert "left its media out" in engine.errors["first"]
    else:
        with pytest.raises(AssertionError, match=WITHOUT_MEDIA):
            engine.run()


@KINDS
def test_what_a_policy_has_sent_back_is_held_to_it(kind: str, make_scheduler: MakeScheduler) -> None:
    """A request that was rewound behind its picture loses its prefix once the policy is gone: it fails, not the engine."""
    scheduler = make_scheduler(kind, pictures=True, **TOY)

    def fails(request_id: str, block: int) -> bool:
        if request_id != "first":
            return False
        runtime.policy.swap(policy("recompute"), 1.0)
        return block == 3

    engine = ToyEcEngine(scheduler, ahead=kind == "async", fails=fails)
    engine.run(image_request("warm", PICTURE, tokens=2 * BLOCK + 3, max_tokens=OUTPUTS))
    first = stored("first")
    scheduler.add_request(first)
    while not first.num_preemptions:
        engine.step()
    runtime.policy.swap(NO_POLICY, 1.0)
    poisoned(engine)
    engine.run()
    assert "left its media out" in engine.errors["first"]


LENGTHS = {"a": 20, "b": 40, "c": 64}


@dataclass(frozen=True)
class Plan:
    """A request of a scenario: who shares its beginning, its pictures by offset, what is stored of it, when it comes and leaves."""

    family: int
    tokens: int
    items: tuple[tuple[int, str], ...]
    stored: int
    waits: bool
    comes: int
    leaves: int | None

    def build(self, name: str) -> Any:
        """Return the request."""
        return image_request(
            name,
            {offset: (item, LENGTHS[item]) for offset, item in self.items},
            tokens=self.tokens,
            first=400 + self.family,
            max_tokens=OUTPUTS,
            params={"stored": self.stored * BLOCK, "waits": self.waits},
        )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Return a request with up to three pictures, some text around them, and some of its beginning in the store."""
    at, items = 0, []
    for item in draw(st.lists(st.sampled_from("abc"), max_size=3)):
        at += draw(st.integers(0, 40))
        items.append((at, item))
        at += LENGTHS[item]
    tokens = at + draw(st.integers(1, 3 * BLOCK))
    stored = draw(st.integers(0, (tokens - 1) // BLOCK))
    comes, leaves = draw(st.integers(0, 5)), draw(st.none() | st.integers(1, 8))
    return Plan(draw(st.integers(0, 1)), tokens, tuple(items), stored, draw(st.booleans()), comes, leaves)


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(plans(), min_size=1, max_size=5),
    st.sets(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=4),
    st.sampled_from(["sync", "async"]),
    st.booleans(),
    st.sampled_from([1024, 64, 40]),
    st.lists(st.sampled_from(["recompute", "fail", "auto"]), min_size=1, max_size=3),
    st.sets(st.integers(1, 8), max_size=2),
    st.sets(st.integers(1, 8), max_size=2),
)
def test_any_scenario(
    make_scheduler: MakeScheduler,
    recorder: Recorder,
    requests: list[Plan],
    broken: set[tuple[int, int]],
    kind: str,
    hybrid: bool,
    chunk: int,
    actions: list[str],
    preempts: set[int],
    poisons: set[int],
) -> None:
    """While a policy speaks the engine never ends, and no wrong token is ever delivered; each failure has its reason."""
    recorder.events.clear()
    scheduler = make_scheduler(kind, pictures=True, chunk=chunk, hybrid=hybrid, **TOY)
    engine = ToyEcEngine(
        scheduler,
        ahead=kind == "async",
        fails=lambda request_id, block: (int(request_id.removeprefix("r")), block) in broken,
    )
    live = [(plan, plan.build(f"r{index}")) for index, plan in enumerate(requests)]
    for step in range(9):
        runtime.policy.swap(policy(actions[step % len(actions)], max_recompute_tokens=2 * BLOCK), 1.0)
        for plan, each in live:
            if plan.comes == step:
                scheduler.add_request(each)
            if plan.leaves is not None and plan.comes + plan.leaves == step:
                scheduler.finish_requests(each.request_id, LEFT)
        if step in preempts and scheduler.running:
            preempt(scheduler)
        if step in poisons:
            poisoned(engine)
        if scheduler.requests or engine.busy:
            engine.step()
    engine.run()
    for plan, each in live:
        outputs, right = engine.outputs.get(each.request_id, []), expected(each, OUTPUTS)
        assert outputs == right[: len(outputs)], each.request_id
        if plan.leaves is None and each.request_id not in engine.errors:
            assert outputs == right, each.request_id
    assert all(reason.endswith("The request can be retried.") for reason in engine.errors.values())
    assert broken or preempts or not engine.errors
    assert not scheduler._penstock.media._left_out
    assert not scheduler._penstock.loads.unconfirmed
