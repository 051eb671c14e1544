"""Items that are overwritten between their arrival and their use: the checksum that came with them tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.ec import fingerprints

from tests.support.ec.connectors import WIDTH, greet, output, pair, run, save
from tests.support.ec.rig import feature, request, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.engine.recorder import Recorder

ROWS = 5


@pytest.fixture
def instrumented(recorder: Recorder) -> Iterator[Recorder]:
    """Instrument the connectors that vLLM's factory builds."""
    from penstock.instrumentation.vllm.ec.hook import EcConnectorHook

    hook = EcConnectorHook()
    hook.install()
    yield recorder
    hook.uninstall()


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("same_host", [False, True])
def test_an_overwritten_item(
    instrumented: Recorder, make: Callable[..., Any], damaged: bool, same_host: bool
) -> None:
    """It is left out in a guarded step, and is a corrupt transfer; one that is whole is loaded."""
    producer, scheduler = pair(make, same_host=same_host)
    first = request("first", feature("first", ROWS))
    wait_for(lambda: scheduler.ensure_cache_available(first, 0))  # the producer has answered
    worker = make("WORKER", "ec_consumer")
    greet(scheduler, worker)
    sent = torch.randn(ROWS, WIDTH)
    save(producer, "a", sent)
    asked = request("r", feature("a", ROWS))
    assert scheduler.checksum("a") is None
    wait_for(lambda: scheduler.ensure_cache_available(asked, 0))
    assert scheduler.has_cache_item("a")
    assert scheduler.checksum("a") == fingerprints.of_item(sent.numpy().tobytes())
    scheduler.update_state_after_alloc(asked, 0)
    orders = scheduler.build_connector_meta(output())
    orders.penstock_items = (("a", ROWS, "image", "r", scheduler.peer_of("a").address),)
    orders.penstock_checksums = {"a": scheduler.checksum("a")}
    orders.penstock_guarded = orders.penstock_enforced = True
    if damaged:
        (load,) = orders.loads
        scheduler._consumer._region.write(load.slot.content + 8, b"\x01\x02\x03\x04")
    cache: dict[str, torch.Tensor] = {}
    report = run(worker, orders, cache)
    (checked,) = report.checked
    assert checked.mismatched is damaged
    assert torch.equal(cache["a"], torch.zeros_like(sent) if damaged else sent)
    failures = instrumented.take("transfer_failure", "r")
    assert [each.error_type for each in failures] == ([c.ERROR_TYPE_CORRUPT] if damaged else [])
