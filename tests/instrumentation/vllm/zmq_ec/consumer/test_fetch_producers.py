"""Which producers are asked for an item: those that are gone, come back, or are named by a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import zmq
from penstock.instrumentation.core import constants as c

from demo.common.processes import free_port
from tests.support.ec.rig import Notes, feature, publisher, request, rig, tensor, wait_for

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.producer.worker import ProducerWorker


FREE = "127.0.0.1:1"  # no listener


def test_a_dead_producer_costs_its_time_out_once(producer: ProducerWorker) -> None:
    """It is not asked again for a while; the living one answers."""
    with rig(FREE, producer.server.address) as consumer:
        notes = Notes()
        consumer.consumer.observe(notes)
        for index in range(5):
            producer.save(f"i{index}", tensor(4))
            consumer.wait(request("r", feature(f"i{index}", 4)))
            assert consumer.consumer.has(f"i{index}")
        assert {peer for _, peer, result in notes.probes if result == c.PROBE_RESULT_HIT} == {
            producer.server.address
        }
        refused = [each for each in notes.failures if each.error_type == c.ERROR_TYPE_REFUSED]
        assert all(each.peer is not None and each.peer.address == FREE for each in refused)
        assert len([1 for _, peer, _ in notes.probes if peer == FREE]) < 5


def test_no_producer_at_all() -> None:
    """Everything is encoded here, at once."""
    with rig() as consumer:
        consumer.wait(request("r", feature("a", 4)))
        assert not consumer.consumer.has("a")


def test_a_producer_that_comes_back_is_used_again() -> None:
    """After a while, by itself."""
    port = free_port()
    with publisher(port=port) as producer, rig(producer.server.address, missing_for=0.05) as consumer:
        producer.save("a", tensor(4))
        consumer.wait(request("r", feature("a", 4)))
        producer.close()
        asked = request("r", feature("b", 4))
        consumer.wait(asked)
        assert not consumer.consumer.has("b")
        with publisher(port=port) as again:
            again.save("b", tensor(4))
            wait_for(lambda: consumer.consumer.ensure(asked, 0) and consumer.consumer.has("b"))


@pytest.mark.parametrize(
    ("params", "allowed", "found"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_a_producer_that_the_request_names(
    producer: ProducerWorker, params: bool, allowed: bool, found: bool
) -> None:
    """Is asked only where that is allowed."""
    host, _, port = producer.server.address.rpartition(":")
    producer.save("a", tensor(4))
    with rig(allow_request_producers=allowed) as consumer:
        named: Any = {"a": {"peer_host": host, "peer_port": int(port)}} if params else None
        consumer.wait(request("r", feature("a", 4), params=named))
        assert consumer.consumer.has("a") is found


def test_requests_cannot_make_a_consumer_remember_endless_producers() -> None:
    """Connections and names are bounded."""
    from penstock.instrumentation.vllm.zmq_ec.consumer.producers import NAMED_MAX

    with rig(allow_request_producers=True) as consumer:
        for index in range(NAMED_MAX + 20):
            named = {f"i{index}": {"peer_host": "127.0.0.1", "peer_port": 1 + index}}
            consumer.wait(request("r", feature(f"i{index}", 4), params=named))
        fetcher = consumer.consumer._fetcher
        assert fetcher is not None
        assert len(list(fetcher._producers)) <= NAMED_MAX


def test_a_producer_that_is_needed_is_not_forgotten() -> None:
    """Neither one that is asked, nor one whose item waits for room; when all are needed, no further one is asked."""
    from penstock.instrumentation.vllm.zmq_ec.consumer.producers import NAMED_MAX, Producers

    context = zmq.Context()
    known = Producers(context, ())
    try:
        (first,) = known.available(("127.0.0.1:9",), 0.0)
        first.waited_for = 1
        for port in range(10, 10 + 2 * NAMED_MAX):
            known.available((f"127.0.0.1:{port}",), 0.0)
        assert first in list(known)
        assert first.connection is not None
        for each in known:
            each.busy = 1
        assert known.available(("127.0.0.1:8",), 0.0) == []
        assert len(list(known)) == NAMED_MAX
    finally:
        known.close()
        context.term()
