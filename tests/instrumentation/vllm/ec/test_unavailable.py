"""Requests whose item cannot be loaded and, without its media, cannot be encoded here either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c

from tests.support.ec.decisions import OUTPUTS, act, image, outcome_of
from tests.support.ec.fake_ec import ToyEcEngine, expected

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

FAILED = c.OUTCOME_FAILED


KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


@KINDS
def test_without_media(kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A request whose media is not here fails whatever the policy says; also one that comes while the item is bad."""
    scheduler = make_ec_scheduler(kind)
    act("recompute")
    scheduler.ec_connector.store |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad={"a"}.__contains__)
    first, sharer = image("first", "a", media=False), image("sharer", "a", tokens=200)
    engine.run(first, sharer)
    late = image("late", "a", media=False, first=400)
    assert "the media is not on this engine" in engine.errors["first"]
    assert engine.outputs["sharer"] == expected(sharer, OUTPUTS)
    # What was encoded here meanwhile serves it well.
    engine.run(late)
    assert engine.outputs["late"] == expected(late, OUTPUTS)
    scheduler.encoder_cache_manager.reset()
    engine.cache.clear()
    later = image("later", "a", media=False, first=401)
    engine.run(later)
    assert "the media is not on this engine" in engine.errors["later"]
    assert outcome_of(recorder, later).mode == c.FAILURE_MODE_LOAD


@KINDS
@pytest.mark.parametrize("chunk", [1024, 64], ids=["whole", "chunks"])
def test_gone_without_media(
    kind: str, chunk: int, make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """An item that is not there any more and cannot be encoded here fails its request, also in mid-prefill; vLLM would end the engine."""
    scheduler = make_ec_scheduler(kind, chunk=chunk)
    act("recompute")
    scheduler.ec_connector.store |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async")
    first, other = image("first", "a", "gone", media=False), image("other", "b", first=400)
    engine.run(first, other)
    assert "the media is not on this engine, it cannot encode 1 items" in engine.errors["first"]
    assert engine.outputs["first"] == []
    assert engine.outputs["other"] == expected(other, OUTPUTS)
    found = outcome_of(recorder, first)
    assert (found.outcome, found.mode, found.error_type) == (
        FAILED,
        c.FAILURE_MODE_PROBE,
        c.ERROR_TYPE_EVICTED,
    )
    manager = scheduler.encoder_cache_manager
    assert manager.num_freeable_slots == manager.cache_size


def test_gone_without_media_nor_policy(make_ec_scheduler: MakeScheduler) -> None:
    """Without a policy vLLM's own behaviour stays: the item is scheduled to be encoded."""
    scheduler = make_ec_scheduler()
    engine = ToyEcEngine(scheduler, ahead=False)
    with pytest.raises(AssertionError, match="first is to encode gone without media"):
        engine.run(image("first", "gone", media=False))
