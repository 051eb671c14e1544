"""What the workers get with a step, and bad items."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import Drill, Orders
from penstock.instrumentation.runtime import runtime
from penstock.rules.policy import NO_POLICY, Action, EcLoadFailure

from tests.support.ec.fake_ec import ToyEcEngine, expected, image_request
from tests.support.engine.recorder import policy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]


def test_drills_travel_to_the_workers(make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """The first step with tokens after a change carries the drills in force; what is to be loaded, and how, each step that loads."""
    scheduler = make_ec_scheduler()
    drill = Drill("d", c.CHANNEL_EC, c.FAILURE_MODE_LOAD, 1.0, 60_000_000_000)
    runtime.policy.swap(NO_POLICY, 1.0, Orders(drills=(drill,), received_ns=time.monotonic_ns()))
    scheduler.ec_connector.store |= {"a"}
    scheduler.add_request(image_request("r", {10: ("a", 40)}, tokens=80))
    metadata = scheduler.schedule().ec_connector_metadata
    assert [each.id for each in metadata.penstock_drills] == ["d"]
    assert metadata.penstock_items == (("a", 40, "image", "r", ""),)
    assert not hasattr(metadata, "penstock_guarded")
    runtime.policy.swap(policy(ec=EcLoadFailure(Action.FAIL)), 1.0)
    assert scheduler.schedule().ec_connector_metadata.penstock_drills
    scheduler.ec_connector.store |= {"b"}
    scheduler.add_request(image_request("s", {0: ("c", 8), 10: ("b", 40)}, tokens=80, first=400))
    metadata = scheduler.schedule().ec_connector_metadata
    assert metadata.penstock_guarded is True
    assert metadata.penstock_encodes == {"c": "image"}
    assert metadata.penstock_drills  # the step before had no tokens
    assert not hasattr(scheduler.schedule().ec_connector_metadata, "penstock_drills")


def test_what_a_connector_tries_again_is_no_longer_bad(
    make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A connector that moves items ahead has a memory of its own; ours does not outlive it."""
    scheduler = make_ec_scheduler(connector="ToyLoader")
    connector = scheduler.ec_connector
    connector.store |= {"a"}
    engine_ = ToyEcEngine(scheduler, ahead=False, bad={"a"}.__contains__)
    first, again = (
        image_request(name, {10: ("a", 40)}, tokens=80, max_tokens=3, first=number)
        for name, number in (("first", 400), ("again", 401))
    )
    engine_.run(first)
    scheduler.encoder_cache_manager.reset()
    engine_.cache.clear()
    engine_.bad = set().__contains__
    connector.coming |= {"a"}
    scheduler.add_request(again)
    engine_.step()
    connector.coming.clear()
    connector.store |= {"a"}
    engine_.run()
    assert engine_.outputs["again"] == expected(again, 3)
    assert engine_.loaded == ["a", "a"]
