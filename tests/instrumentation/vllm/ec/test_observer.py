"""What the observer emits of an EC connector."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec.observer import EcObserver
from penstock.instrumentation.vllm.ec.protocol import EcFailure, EcTransfer

from tests.support.ec.fake_ec import TOY_PEER

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]


def test_the_observer(recorder: Recorder) -> None:
    """What a connector tells becomes samples and events of the channel, and nothing while Penstock is paused."""
    observer = EcObserver("ZmqECConnector", c.COMPONENT_WORKER, rank=3)
    transfer = EcTransfer("a", TOY_PEER, 100, 350, 4096, ok=True, request_id="r")
    failure = EcFailure(
        "a",
        c.FAILURE_MODE_TRANSFER,
        c.ERROR_TYPE_REMOTE_RESET,
        "x" * 5000,
        TOY_PEER,
        "r",
        "ZMQError",
        start_ns=100,
    )

    def tell() -> None:
        observer.received(transfer)
        observer.sent(transfer)
        observer.probed("a", TOY_PEER, c.PROBE_RESULT_HIT, 10, 40, "r")
        observer.probed("a", None, c.PROBE_RESULT_ERROR, 10, 40, "")
        observer.failed(failure)

    tell()
    assert [(each["direction"], each["duration_nano"], each["bytes"]) for each in recorder.transfers] == [
        (c.DIRECTION_RECEIVE, 250, 4096),
        (c.DIRECTION_SEND, 250, 4096),
    ]
    assert {(each["channel"], each["rank"], each["peer"]) for each in recorder.transfers} == {
        (c.CHANNEL_EC, 3, TOY_PEER.address)
    }
    assert [(each["peer"], each["duration_nano"]) for each in recorder.probes] == [
        (TOY_PEER.address, 30),
        ("unknown", 30),
    ]
    (told,) = recorder.take("transfer_failure", "r")
    assert (told.item, told.error_class, len(told.error_text)) == ("a", "ZMQError", 1024)
    runtime.pause("policy", paused=True)
    try:
        tell()
    finally:
        runtime.pause("policy", paused=False)
    assert (len(recorder.transfers), len(recorder.probes), len(recorder.events)) == (2, 2, 1)
