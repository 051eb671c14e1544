"""vLLM shortens an external hit after the connector's look-up (``cap_external_hit``, from 0.33 on): what is told is what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

from tests.support.engine.schedulers import BLOCK, REMOTE, request, step
from tests.support.engine.versions import from_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

pytestmark = from_version(0, 33, "it caps no external hit")

NAME = "cmpl-a-0-12345678"


def _cap(scheduler: Any, tokens: int) -> None:
    """Put vLLM's connector of auxiliary outputs into *scheduler*, which has kept those of so many tokens."""
    from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector as Connector

    kept = MagicMock(spec=Connector)
    kept._block_size = BLOCK
    kept.max_cache_hit.return_value = tokens
    kept.take_output.return_value = None
    kept.cap_external_hit = lambda *args: Connector.cap_external_hit(kept, *args)
    scheduler.aux_output_connector = kept


def _run(scheduler: Any, tokens: int) -> Any:
    _cap(scheduler, tokens)
    found = request(NAME, params=REMOTE)
    scheduler.add_request(found)
    step(scheduler)
    return found


def test_a_hit_that_is_not_shortened(make_scheduler: Callable[..., Any], recorder: Recorder) -> None:
    """It is loaded and told as the connector found it."""
    scheduler = make_scheduler()
    found = _run(scheduler, 3 * BLOCK)
    assert found.status.name == "WAITING_FOR_REMOTE_KVS"
    assert scheduler._penstock.observer.record(NAME).external_tokens == 3 * BLOCK
    step(scheduler, finished_recving={NAME})
    while NAME in scheduler.requests:
        step(scheduler)
    (closed,) = recorder.take("request_closed", NAME)
    assert closed.external_cached_tokens > 2 * BLOCK


def test_a_hit_of_which_nothing_is_left(make_scheduler: Callable[..., Any], recorder: Recorder) -> None:
    """No load begins: no wait, no transfer, no token from outside; the prompt is computed here."""
    scheduler = make_scheduler()
    found = _run(scheduler, 2 * BLOCK)
    assert found.status.name == "RUNNING"
    record = scheduler._penstock.observer.record(NAME)
    assert (record.attempt, record.external_tokens) == (0, 0)
    assert not recorder.snapshot().deferred
    assert not recorder.snapshot().in_flight
    while NAME in scheduler.requests:
        step(scheduler)
    (closed,) = recorder.take("request_closed", NAME)
    assert closed.external_cached_tokens == 0
    assert not {"deferral_start", "load_outcome", "transfer_failure"} & set(recorder.kinds())
