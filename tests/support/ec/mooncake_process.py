"""One side of ECMooncakeConnector in a process of its own, over Mooncake's own engine and TCP.

python -m tests.support.ec.mooncake_process consumer DIRECTORY PORT ACTION LOSES
python -m tests.support.ec.mooncake_process producer DIRECTORY PORT CONSUMER_PORT

The consumer has one request for one item, says ``ready``, and ends with one line of JSON when the request has left. With LOSES (1 or 0) its
worker loses the item before it is loaded. The producer pushes that item and ends with one line, too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from penstock.instrumentation.vllm.ec.hook import EcConnectorHook
from penstock.instrumentation.vllm.install import ec_adapters
from penstock.instrumentation.vllm.scheduler.hook import instrument

from demo.common.steps import until
from tests.support.ec import mooncake
from tests.support.ec.decisions import OUTPUTS, act, image
from tests.support.ec.fake_ec import expected
from tests.support.engine import schedulers
from tests.support.engine.recorder import Recorder, recording

REQUEST, ITEM = "first", "a"


def consume(recorder: Recorder, directory: Path, port: int, action: str, *, loses: bool) -> dict[str, Any]:
    """Serve one request; return what became of it."""
    config = mooncake.mooncake_config(directory, "ec_consumer", port)
    worker = mooncake.build_worker(config)
    scheduler = schedulers.build(instrument(schedulers.SCHEDULERS["sync"]), config)
    schedulers.make_room_for_items(scheduler)
    if action:
        act(action)
    engine = mooncake.MooncakeEngine(scheduler, worker, ahead=False)
    request = mooncake.expects(image(REQUEST, ITEM))
    scheduler.add_request(request)
    print("ready", flush=True)  # noqa: T201
    if loses:
        reservations, name = worker._worker._reservations, mooncake.transfer_of(REQUEST, ITEM)
        until(lambda: reservations.status(name) is not None, "nothing is pushed")
        until(lambda: reservations.status(name).state.name == "READY", "the push does not end")
        reservations.cancel(name, "")
    engine.run_off()
    found = {
        "right": engine.outputs.get(REQUEST) == expected(request, OUTPUTS),
        "error": engine.errors.get(REQUEST, ""),
        "encoded": engine.encoded,
    }
    scheduler.shutdown()
    worker.shutdown()
    return found | told(recorder)


def produce(recorder: Recorder, directory: Path, port: int, consumer: int) -> dict[str, Any]:
    """Push the item; return what was reported."""
    producer = mooncake.Producer(mooncake.mooncake_config(directory, "ec_producer", port))
    producer.push(REQUEST, ITEM, to=consumer)
    producer.end()
    producer.connector.shutdown()
    return told(recorder)


def told(recorder: Recorder) -> dict[str, Any]:
    """Return what Penstock has reported."""
    return {
        "transfers": [[each["peer"], each["bytes"], each["result"]] for each in recorder.transfers],
        "failures": [[each.mode, each.item] for each in recorder.take("transfer_failure")],
        "outcomes": [[each.outcome, each.mode] for each in recorder.take("load_outcome")],
    }


def main(side: str, directory: str, port: str, *more: str) -> None:
    """Run one side."""
    with pytest.MonkeyPatch.context() as patch, recording(patch) as recorder:
        EcConnectorHook(ec_adapters()).install()
        if side == "consumer":
            found = consume(recorder, Path(directory), int(port), more[0], loses=more[1] == "1")
        else:
            found = produce(recorder, Path(directory), int(port), int(more[0]))
    print(json.dumps(found), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
