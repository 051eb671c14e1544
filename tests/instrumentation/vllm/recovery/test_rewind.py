"""Rewinds: who is tainted, and that every output is as if nothing had failed, on real schedulers over a memory that tells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.recovery.rewind import NO_BLOCK, BlockHolder, FreedBlocks, spread

from tests.support.ec.fake_ec import LEFT
from tests.support.engine.fake_worker import ToyEngine, expected
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, REACH, preempt, request
from tests.support.engine.speculating_worker import SpeculatingEngine
from tests.support.engine.versions import VERSION, from_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

TOY = {"kv_connector": "ToyConnector", "kv_connector_module_path": "tests.support.kv.fake_connector"}
STORED = 4 * BLOCK
OUTPUTS = 6

KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


@pytest.mark.parametrize(
    ("holders", "invalid", "starts", "direct", "blocks"),
    [
        ({"a": [[1, 2, 3]]}, set(), {}, "", [set()]),
        ({"a": [[1, 2, 3]]}, {9}, {}, "", [{9}]),
        ({"a": [[1, 2, 3]]}, {2}, {"a": 4}, "a", [{2, 3}]),
        ({"a": [[1, 2, 3]], "b": [[1, 4]]}, {2}, {"a": 4}, "a", [{2, 3}]),
        # b shares a block that a computed behind the invalid one; c shares one of b's.
        (
            {"c": [[5, 6]], "b": [[3, 5]], "a": [[1, 2, 3]]},
            {2},
            {"a": 4, "b": 0, "c": 0},
            "a",
            [{2, 3, 5, 6}],
        ),
        # Two sharers of the invalid block itself.
        ({"a": [[1, 2]], "b": [[1, 2, 7]]}, {2}, {"a": 4, "b": 4}, "ab", [{2, 7}]),
        # A second group with blocks of twice the size: its first holds tainted tokens, and goes as a whole.
        ({"a": [[1, 2, 3], [1, 8]]}, {2}, {"a": 0}, "a", [{1, 2, 3}, {1, 2, 8}]),
        # The null block in front of a sliding window has no owner.
        (
            {"a": [[1, 2], [NO_BLOCK, 8]], "b": [[3, 4], [NO_BLOCK, 9]]},
            {8},
            {"a": 8},
            "a",
            [{8}, {8}],
        ),
    ],
)
def test_spread(
    holders: dict[str, list[list[int]]],
    invalid: set[int],
    starts: dict[str, int],
    direct: str,
    blocks: list[set[int]],
) -> None:
    """Taint goes from the first invalid block on, to all groups, and to everybody who shares any of it."""
    groups = len(next(iter(holders.values())))
    sizes = [4, 8][:groups]
    taint = spread([BlockHolder(name, tuple(tables)) for name, tables in holders.items()], invalid, sizes)
    assert taint.starts == starts
    assert taint.direct == set(direct)
    assert [set(group) for group in taint.blocks] == blocks


tables = st.lists(st.lists(st.integers(0, 9), max_size=5, unique=True), max_size=5)


@given(tables, st.sets(st.integers(0, 9), max_size=3))
def test_spread_is_closed(blocks: list[list[int]], invalid: set[int]) -> None:
    """Afterwards no request holds a tainted block in front of where its taint begins, and all behind it is tainted."""
    holders = [BlockHolder(str(index), (table,)) for index, table in enumerate(blocks)]
    taint = spread(holders, invalid, [1])
    (tainted,) = taint.blocks
    assert invalid <= tainted
    for index, table in enumerate(blocks):
        start = taint.starts.get(str(index), len(table))
        assert tainted.isdisjoint(table[:start])
        assert tainted.issuperset(table[start:])
        assert (str(index) in taint.direct) is (not invalid.isdisjoint(table))


def stored(request_id: str, *, waits: bool, **arguments: Any) -> Any:
    """Return a request whose first blocks are in the connector's store."""
    return request(
        request_id,
        tokens=STORED + 5,
        max_tokens=OUTPUTS,
        params={"stored": STORED, **({"waits": True} if waits else {})},
        **arguments,
    )


def assert_right(engine: ToyEngine, *requests: Any) -> None:
    """Every output is what it would have been without a failure."""
    for each in requests:
        assert engine.outputs[each.request_id] == expected(each.prompt_token_ids, OUTPUTS), each.request_id


@KINDS
@pytest.mark.parametrize("waits", [False, True], ids=["in the step", "waiting"])
@pytest.mark.parametrize("broken", [{0}, {1}, {3}, {1, 2}])
def test_output_after_a_recompute(
    kind: str, waits: bool, broken: set[int], make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A load that always fails: its request, one that shares its prefix and one that comes later have the right output."""
    scheduler = make_scheduler(kind, **TOY)
    runtime.policy.swap(policy("recompute"), 1.0)
    engine = ToyEngine(
        scheduler,
        ahead=kind == "async",
        fails=lambda request_id, block: request_id == "first" and block in broken,
    )
    first, sharer = stored("first", waits=waits), request("sharer", tokens=STORED + 9, max_tokens=OUTPUTS)
    later = request("later", tokens=STORED + 40, max_tokens=OUTPUTS)
    other = request("other", first=499, tokens=3 * BLOCK, max_tokens=OUTPUTS)
    engine.run(other, first, sharer)
    engine.run(later)
    assert_right(engine, other, first, sharer, later)
    (outcome,) = recorder.take("load_outcome", "first")
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
    # What was loaded in front of the first broken block stays, but vLLM loads a waiting request's as a whole.
    assert outcome.tokens_kept == min(broken) * BLOCK
    assert not recorder.take("load_outcome", "other")
    assert scheduler.recompute_kv_load_failures is False


@pytest.mark.parametrize("hybrid", [False, True], ids=["one group", "two groups"])
@pytest.mark.parametrize("waits", [False, True], ids=["in the step", "waiting"])
@pytest.mark.parametrize("behind", [1, 5], ids=["padded with drafts", "prompt tokens"])
def test_output_after_a_recompute_with_drafts(
    hybrid: bool, waits: bool, behind: int, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Speculative decoding: drafts of a step that is taken back are not accepted behind it."""
    scheduler = make_scheduler(hybrid=hybrid, **TOY)
    runtime.policy.swap(policy("recompute"), 1.0)
    engine = SpeculatingEngine(
        scheduler,
        fails=lambda request_id, block: request_id == "first" and block == 1,
        by_blocks=not (hybrid and waits),
    )
    other = request("other", first=499, tokens=3 * BLOCK, max_tokens=OUTPUTS)
    first = request(
        "first",
        tokens=STORED + behind,
        max_tokens=OUTPUTS,
        params={"stored": STORED, **({"waits": True} if waits else {})},
    )
    sharer = request("sharer", tokens=STORED + 9, max_tokens=OUTPUTS)
    later = request("later", tokens=STORED + 40, max_tokens=OUTPUTS)
    engine.run(other, first, sharer)
    engine.run(later)
    assert_right(engine, other, first, sharer, later)
    assert engine.accepted
    (outcome,) = recorder.take("load_outcome", "first")
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)


@KINDS
def test_sharer_of_tainted_blocks_is_collateral(
    kind: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A request that found tainted blocks in the prefix cache has an outcome of its own, as another's victim."""
    scheduler = make_scheduler(kind, **TOY)
    runtime.policy.swap(policy("recompute"), 1.0)
    engine = ToyEngine(
        scheduler, ahead=kind == "async", fails=lambda request_id, block: request_id == "first" and block == 1
    )
    first, sharer = stored("first", waits=False), request("sharer", tokens=STORED + 9, max_tokens=OUTPUTS)
    engine.run(first, sharer)
    assert_right(engine, first, sharer)
    (own,) = recorder.take("load_outcome", "first")
    (shared,) = recorder.take("load_outcome", "sharer")
    assert (own.mode, shared.mode) == (c.FAILURE_MODE_LOAD, c.FAILURE_MODE_COLLATERAL)
    assert shared.outcome == c.OUTCOME_RECOMPUTED


@KINDS
@pytest.mark.parametrize("waits", [False, True], ids=["in the step", "waiting"])
def test_some_recompute_and_others_fail(
    kind: str, waits: bool, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """In one step the small request computes again and the large one fails; nothing of its poison is found later."""
    scheduler = make_scheduler(kind, **TOY)
    runtime.policy.swap(policy("auto", max_recompute_tokens=3 * BLOCK), 1.0)
    engine = ToyEngine(scheduler, ahead=kind == "async", fails=lambda _, block: block == 2)
    small = request(
        "small",
        first=400,
        tokens=3 * BLOCK + 3,
        max_tokens=OUTPUTS,
        params={"stored": 3 * BLOCK, "waits": waits},
    )
    large = request(
        "large",
        first=401,
        tokens=8 * BLOCK + 3,
        max_tokens=OUTPUTS,
        params={"stored": 8 * BLOCK, "waits": waits},
    )
    engine.run(small, large)
    again = request("again", first=401, tokens=8 * BLOCK + 3, max_tokens=OUTPUTS)
    engine.run(again)
    assert_right(engine, small, again)
    assert engine.errors.keys() == {"large"}
    assert "at most 96 are recomputed" in engine.errors["large"]
    assert engine.outputs["large"] == []
    outcomes = {each: recorder.take("load_outcome", each)[0].outcome for each in ("small", "large")}
    assert outcomes == {"small": c.OUTCOME_RECOMPUTED, "large": c.OUTCOME_FAILED}


@KINDS
@pytest.mark.parametrize(("waits", "by_blocks"), [(False, True), (True, True), (True, False)])
def test_hybrid_model(
    kind: str, waits: bool, by_blocks: bool, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """With several KV cache groups, where vLLM itself would raise, requests compute again with the right output."""
    scheduler = make_scheduler(kind, hybrid=True, **TOY)
    runtime.policy.swap(policy("recompute"), 1.0)
    engine = ToyEngine(
        scheduler,
        ahead=kind == "async",
        fails=lambda request_id, block: request_id == "first" and block == 1,
        by_blocks=by_blocks,
    )
    first, sharer = stored("first", waits=waits), request("sharer", tokens=STORED + 9, max_tokens=OUTPUTS)
    engine.run(first, sharer)
    later = request("later", tokens=STORED + 40, max_tokens=OUTPUTS)
    engine.run(later)
    assert_right(engine, first, sharer, later)
    (outcome,) = recorder.take("load_outcome", "first")
    assert outcome.outcome == c.OUTCOME_RECOMPUTED


@from_version(0, 31, "has no hybrid models that tell failed loads")
@KINDS
@pytest.mark.parametrize("cache", ["window", "mamba"])
@pytest.mark.parametrize("waits", [False, True], ids=["in the step", "waiting"])
@pytest.mark.parametrize("action", ["recompute", "fail"])
def test_blocks_of_a_hybrid_model(
    kind: str, cache: str, waits: bool, action: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Blocks in a sliding window, or a state, that were not loaded: decided by the policy, and no poison is found later."""
    scheduler = make_scheduler(kind, hybrid=cache, **TOY)
    runtime.policy.swap(policy(action), 1.0)
    engine = ToyEngine(
        scheduler,
        ahead=kind == "async",
        fails=lambda request_id, block: request_id == "first" and block == 3,
        reach=REACH[cache],
    )
    other = request("other", first=499, tokens=3 * BLOCK, max_tokens=OUTPUTS)
    first = stored("first", waits=waits)
    engine.run(other, first)
    later = request("later", tokens=STORED + 40, max_tokens=OUTPUTS)
    engine.run(later)
    right = [other, later] if action == "fail" else [other, first, later]
    assert_right(engine, *right)
    assert engine.errors.keys() == ({"first"} if action == "fail" else set())
    (outcome,) = recorder.take("load_outcome", "first")
    assert outcome.outcome == (c.OUTCOME_FAILED if action == "fail" else c.OUTCOME_RECOMPUTED)
    assert outcome.decided_by == c.DECIDED_BY_POLICY


@KINDS
@pytest.mark.parametrize("hybrid", [False, True], ids=["one group", "two groups"])
@pytest.mark.parametrize("waits", [False, True], ids=["in the step", "waiting"])
@pytest.mark.parametrize("action", ["recompute", "fail"])
def test_the_client_leaves_before_the_result_is_in(
    kind: str, hybrid: bool, waits: bool, action: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """The requests whose load failed have gone: the engine continues, and the tainted blocks are not in the prefix cache."""
    scheduler = make_scheduler(kind, hybrid=hybrid, **TOY)
    runtime.policy.swap(policy(action), 1.0)
    engine = ToyEngine(
        scheduler, ahead=kind == "async", fails=lambda request_id, block: request_id == "first" and block == 1
    )
    scheduler.add_request(stored("first", waits=waits))
    scheduled = scheduler.schedule()
    output = engine._execute(scheduled)
    scheduler.finish_requests("first", LEFT)
    scheduler.update_from_output(scheduled, output)
    # The second computes the broken block anew, so that the first's later ones fit behind it again.
    for count in (2 * BLOCK, STORED + 40):
        later = request(f"later-{count}", tokens=count, max_tokens=OUTPUTS)
        engine.run(later)
        assert_right(engine, later)
    assert not recorder.take("load_outcome")


@pytest.mark.parametrize("hybrid", [False, True], ids=["one group", "two groups"])
@pytest.mark.parametrize(
    ("action", "role", "outcome"),
    [
        ("recompute", "kv_consumer", c.OUTCOME_RECOMPUTED),
        ("fail", "kv_consumer", c.OUTCOME_FAILED),
        ("recompute", "kv_both", c.OUTCOME_FAILED),
    ],
)
def test_preempted_before_the_result_is_in(
    hybrid: bool, action: str, role: str, outcome: int, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """The token that vLLM would still deliver comes from the poison: it is dropped, and the decision holds."""
    scheduler = make_scheduler("async", hybrid=hybrid, role=role, **TOY)
    runtime.policy.swap(policy(action), 1.0)
    engine = ToyEngine(
        scheduler, ahead=True, fails=lambda request_id, block: request_id == "first" and block == 1
    )
    first = stored("first", waits=False)
    scheduler.add_request(first)
    engine.step()
    preempt(scheduler)
    engine.run()
    if outcome == c.OUTCOME_RECOMPUTED:
        assert_right(engine, first)
    else:
        assert engine.outputs["first"] == []
        assert engine.errors["first"].endswith("The request can be retried.")
    later = request("later", tokens=STORED + 40, max_tokens=OUTPUTS)
    engine.run(later)
    assert_right(engine, later)
    (told,) = recorder.take("load_outcome", "first")
    assert (told.outcome, told.decided_by) == (outcome, c.DECIDED_BY_POLICY)
    if VERSION >= (0, 27):  # An earlier vLLM has scheduled it again by then, which counts.
        assert (told.tokens_kept, told.tokens_recomputed) == (0, 0)
    assert told.mode == c.FAILURE_MODE_LOAD


@KINDS
@pytest.mark.parametrize("role", ["kv_both", "kv_producer"])
def test_what_may_be_exported_fails(
    kind: str, role: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Where the connector saves as well, a request that has run on tainted blocks fails, and so do its sharers."""
    scheduler = make_scheduler(kind, role=role, **TOY)
    runtime.policy.swap(policy("recompute"), 1.0)
    engine = ToyEngine(scheduler, ahead=kind == "async", fails=lambda request_id, _: request_id == "first")
    engine.run(stored("first", waits=False), request("sharer", tokens=STORED + 9, max_tokens=OUTPUTS))
    assert engine.errors.keys() == {"first", "sharer"}
    (outcome,) = recorder.take("load_outcome", "first")
    assert "may have passed tainted blocks on" in outcome.reason
    waiting = stored("waiting", waits=True, first=400)
    engine.run(waiting)
    assert_right(engine, waiting)


@from_version(0, 31, "does not end for it")
@pytest.mark.parametrize("cache", [True, "window", "mamba"])
def test_vanilla_without_a_policy(
    cache: bool | str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Without a policy a hybrid model's engine ends as vLLM ends it: nothing of ours stands in the way."""
    scheduler = make_scheduler(own="recompute", hybrid=cache, **TOY)
    engine = ToyEngine(scheduler, ahead=False, fails=lambda *_: True)
    with pytest.raises(RuntimeError, match="multiple KV cache groups"):
        engine.run(stored("first", waits=False))
    (outcome,) = recorder.take("load_outcome", "first")
    assert outcome.decided_by == c.DECIDED_BY_VLLM


def test_freed_blocks_are_only_what_is_still_there() -> None:
    """Of the blocks that a request has left, those that were reused, never cached or stand for nothing are not its any more."""

    def block(number: int, content: object, *, null: bool = False) -> Any:
        return SimpleNamespace(block_id=number, block_hash=content, is_null=null)

    blocks = [block(1, "a"), block(2, "b"), block(3, None), block(0, "n", null=True)]
    freed = FreedBlocks("r", [blocks])
    blocks[1].block_hash = "reused"
    assert freed.holder("g") == BlockHolder("g", ([1, NO_BLOCK, NO_BLOCK, NO_BLOCK],))
