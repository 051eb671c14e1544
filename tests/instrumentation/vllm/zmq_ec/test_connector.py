"""``ZmqECConnector`` as vLLM builds and calls it: real configurations, vLLM's own factory."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support.ec.connectors import WIDTH, greet, output, pair, run, save
from tests.support.ec.rig import PATIENT, Notes, feature, request, wait_for
from tests.support.engine.versions import VERSION

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from penstock.instrumentation.vllm.ec.protocol import EcLoader, EcPeerSource, EcRehearsal
    from penstock.instrumentation.vllm.scheduler import engine_facts
    from penstock.instrumentation.vllm.zmq_ec.connector import ZmqECConnector
    from penstock.instrumentation.vllm.zmq_ec.registration import ZmqEcRegistration
    from vllm.v1.outputs import ECConnectorOutput


if TYPE_CHECKING:
    from collections.abc import Callable


def test_from_a_producer_to_two_ranks(make: Callable[..., Any]) -> None:
    """The whole way, in vLLM's order of calls."""

    def two_ranks(configuration: Any) -> None:
        configuration.parallel_config.tensor_parallel_size = 2
        configuration.parallel_config.world_size = 2
        configuration.parallel_config.distributed_executor_backend = "mp"

    producer = make("WORKER", "ec_producer")
    sent = torch.randn(5, WIDTH)
    save(producer, "a", sent)
    address = producer._publisher.server.address
    scheduler = make("SCHEDULER", "ec_consumer", change=two_ranks, producers=[address], **PATIENT)
    workers = [make("WORKER", "ec_consumer", change=two_ranks) for _ in range(2)]
    asked = request("r", feature("a", 5))
    greet(scheduler, *workers)

    assert not scheduler.has_cache_item("a")
    assert not scheduler.ensure_cache_available(asked, 0)
    wait_for(lambda: scheduler.ensure_cache_available(asked, 0))
    assert scheduler.has_cache_item("a")
    scheduler.update_state_after_alloc(asked, 0)
    orders = scheduler.build_connector_meta(output())
    caches: list[dict[str, torch.Tensor]] = [{}, {}]
    reports = [run(worker, orders, cache) for worker, cache in zip(workers, caches, strict=True)]
    for cache in caches:
        assert torch.equal(cache["a"], sent)
    (slot,) = scheduler._consumer._slots._slots.values()
    assert slot.reports_due == 2
    together = reports[0].aggregate(reports[1])
    scheduler.update_connector_output(ECConnectorOutput(ec_connector_worker_meta=together))
    assert slot.reports_due == 0
    # The next step orders nothing, because vLLM has it.
    assert scheduler.ensure_cache_available(asked, 0)
    assert scheduler.build_connector_meta(output()).loads == ()


@pytest.mark.parametrize(
    ("role", "host", "told"),
    [
        ("ec_producer", "10.0.0.9", "10.0.0.9:14579"),
        ("ec_both", "fd00::9", "[fd00::9]:14579"),
        ("ec_producer", "0.0.0.0", ""),
        ("ec_consumer", "10.0.0.9", ""),
    ],
)
def test_the_address_that_a_producer_announces(
    make: Callable[..., Any], role: str, host: str, told: str
) -> None:
    """It is the one that its requests' results name, and the engine's fact; a wildcard is none."""

    def listen(configuration: Any) -> None:
        configuration.ec_transfer_config.ec_ip = host

    scheduler = make("SCHEDULER", role, port=14579, change=listen)
    assert scheduler.announced_address == told
    assert engine_facts._encoder_address(scheduler) == told


def test_only_promised_items_are_loaded(make: Callable[..., Any]) -> None:
    """An item that vLLM encodes here is not loaded too, although it arrived meanwhile."""
    producer, scheduler = pair(make)
    save(producer, "a", torch.randn(5, WIDTH))
    asked = request("r", feature("a", 5))
    wait_for(lambda: scheduler.ensure_cache_available(asked, 0))
    scheduler.update_state_after_alloc(asked, 0)
    assert scheduler.build_connector_meta(output()).loads == ()


def test_an_item_that_is_allocated_and_freed_in_one_step_is_there(make: Callable[..., Any]) -> None:
    """VLLM's manager may free an entry to allocate it anew."""
    producer, scheduler = pair(make)
    save(producer, "a", torch.randn(5, WIDTH))
    asked = request("r", feature("a", 5))
    scheduler.update_state_after_alloc(asked, 0)
    scheduler.build_connector_meta(output(freed=("a",)))
    assert scheduler.ensure_cache_available(asked, 0)
    scheduler.build_connector_meta(output(freed=("a",)))
    assert not scheduler.ensure_cache_available(asked, 0)


def test_a_producer_publishes_again_what_its_host_cache_has_evicted(make: Callable[..., Any]) -> None:
    """VLLM's encoder cache still has it, so nothing is encoded and ``save_caches`` is not called."""
    producer = make("WORKER", "ec_producer", host_cache_bytes=1 << 16)
    scheduler = make("SCHEDULER", "ec_producer")
    cache = {"a": torch.randn(200, WIDTH), "b": torch.randn(200, WIDTH)}
    held = producer._publisher.cache

    def at_rest() -> bool:
        with held._lock:
            held._reclaim()
            return all(kept.content for kept in held._items.values()) and not held._slots._pinned

    for item in cache:
        producer.save_caches(cache, item)
        # While the server computes the checksum of an item, that cannot be evicted for another.
        wait_for(at_rest)
    assert not held.touch("a")
    asked = SimpleNamespace(mm_features=[feature("a", 200), feature("gone", 4)])
    producer.bind_connector_metadata(scheduler.build_connector_meta(output(new=(asked,))))
    producer.start_save_caches(encoder_cache=cache)
    producer.clear_connector_metadata()
    assert held.touch("a")
    assert not held.touch("b")


def test_a_producer_loads_nothing_and_a_consumer_serves_nothing(make: Callable[..., Any]) -> None:
    """Each side of each role does its part only."""
    scheduler = make("SCHEDULER", "ec_producer")
    asked = request("r", feature("a", 5))
    assert scheduler.ensure_cache_available(asked, 0)
    assert not scheduler.has_cache_item("a")
    worker = make("WORKER", "ec_consumer")
    worker.save_caches({"a": torch.zeros(2, 2)}, "a")
    worker.bind_connector_metadata(scheduler.build_connector_meta(output()))
    worker.start_save_caches(encoder_cache={"a": torch.zeros(2, 2)})
    worker.start_load_caches({})
    assert worker.build_connector_worker_meta() is None
    assert scheduler.take_unavailable_requests() == set()
    assert scheduler.take_failed_loads() == []


def test_both_roles_in_one_engine(make: Callable[..., Any]) -> None:
    """What it encodes is for others, what it does not have it gets from others."""
    other = make("WORKER", "ec_producer")
    sent = torch.randn(3, WIDTH)
    save(other, "a", sent)
    worker = make("WORKER", "ec_both", producers=[other._publisher.server.address])
    scheduler = make("SCHEDULER", "ec_both", producers=[other._publisher.server.address], **PATIENT)
    greet(scheduler, worker)
    asked = request("r", feature("a", 3))
    wait_for(lambda: scheduler.ensure_cache_available(asked, 0))
    assert scheduler.has_cache_item("a")
    scheduler.update_state_after_alloc(asked, 0)
    orders = scheduler.build_connector_meta(output(new=(asked,)))
    cache: dict[str, torch.Tensor] = {}
    worker.bind_connector_metadata(orders)
    worker.start_save_caches(encoder_cache=cache)
    worker.start_load_caches(cache)
    assert torch.equal(cache["a"], sent)
    assert worker.build_connector_worker_meta().loaded.done


def test_a_producer_says_where_its_items_are(make: Callable[..., Any]) -> None:
    """In the words of vLLM's own connectors; an address that is no address is not said."""
    announced = feature("a", 5)
    announced.data = None
    scheduler = make("SCHEDULER", "ec_producer", port=14_600)
    _, items = scheduler.request_finished(request("r", announced))
    items["a"].pop("modality", "")  # vLLM 0.33 has it
    indices = {"item_indices": [0]} if VERSION >= (0, 31) else {}
    assert items == {"a": {**indices, "metadata": {}, "peer_host": "127.0.0.1", "peer_port": 14_600}}

    def everywhere(configuration: Any) -> None:
        configuration.ec_transfer_config.ec_ip = "0.0.0.0"

    scheduler = make("SCHEDULER", "ec_producer", port=14_600, change=everywhere)
    _, items = scheduler.request_finished(request("r", announced))
    items["a"].pop("modality", "")
    assert items == {"a": {**indices, "metadata": {}}}
    assert make("SCHEDULER", "ec_consumer").request_finished(request("r", announced)) == (False, None)


def test_it_is_an_ec_loader(make: Callable[..., Any]) -> None:
    """As the instrumented scheduler expects one; both sides can be observed."""
    producer, scheduler = pair(make, load_failure="fail")
    connector: Any = scheduler
    assert all(isinstance(connector, each) for each in (EcPeerSource, EcRehearsal))
    assert isinstance(scheduler, EcLoader)
    assert scheduler.load_failure_default == "fail"
    notes = Notes()
    scheduler.observe(notes)
    producer.observe(notes)
    save(producer, "a", torch.randn(5, WIDTH))
    asked = request("r", feature("a", 5))
    assert scheduler.transfer_began("a") is None
    assert not scheduler.waits_for("a")
    wait_for(lambda: connector.ensure_cache_available(asked, 0))
    peer = scheduler.peer_of("a")
    assert peer is not None
    assert peer.address == producer._publisher.server.address
    assert scheduler.transfer_began("a")
    assert not scheduler.waits_for("a")
    assert scheduler.in_flight() == []
    wait_for(lambda: notes.hand_outs)
    scheduler.give_up("a")
    assert not connector.has_cache_item("a")


@pytest.mark.parametrize(
    ("attribute", "value", "why"),
    [
        ("nnodes", 2, "2 nodes"),
        ("distributed_executor_backend", "ray", "'ray'"),
        ("distributed_executor_backend", "external_launcher", "'external_launcher'"),
    ],
)
def test_engines_whose_workers_are_elsewhere(
    make: Callable[..., Any], attribute: str, value: Any, why: str
) -> None:
    """Are refused at start, in the scheduler and in the workers; as producers they work."""

    def change(configuration: Any) -> None:
        configuration.parallel_config.world_size = 2
        setattr(configuration.parallel_config, attribute, value)

    for side in ("SCHEDULER", "WORKER"):
        with pytest.raises(ValueError, match=why):
            make(side, "ec_consumer", change=change)
    make("SCHEDULER", "ec_producer", change=change)


def test_a_configuration_with_a_typing_error(make: Callable[..., Any]) -> None:
    """Is refused at start."""
    with pytest.raises(ValueError, match="unknown keys: producer"):
        make("SCHEDULER", "ec_consumer", producer=["enc:1"])


def test_an_encoder_decoder_model_is_left_alone(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """VLLM runs no connector in its step, so nothing may be promised."""
    from vllm.config import ModelConfig

    monkeypatch.setattr(ModelConfig, "is_encoder_decoder", True)
    producer = make("WORKER", "ec_producer")
    save(producer, "a", torch.randn(5, WIDTH))
    scheduler = make("SCHEDULER", "ec_consumer", producers=[producer._publisher.server.address])
    assert scheduler.ensure_cache_available(request("r", feature("a", 5)), 0)
    assert not scheduler.has_cache_item("a")


def test_with_the_plugin_no_module_path_is_needed(make: Callable[..., Any]) -> None:
    """And the registration can be taken back, again and again."""
    hook = ZmqEcRegistration()
    assert not [unmet for each in hook.requires() if (unmet := each.unmet())]
    for _ in range(2):
        hook.install()
        hook.install()
        try:
            assert type(make("SCHEDULER", "ec_producer", path=None)) is ZmqECConnector
        finally:
            hook.uninstall()
        with pytest.raises(ValueError, match="Unsupported connector"):
            make("SCHEDULER", "ec_producer", path=None)


def test_no_thread_before_it_is_needed(make: Callable[..., Any]) -> None:
    """Nothing is started that a fork could break."""
    import threading

    def alive() -> int:
        return sum(each.name == "penstock-ec-fetcher" for each in threading.enumerate())

    scheduler = make("SCHEDULER", "ec_consumer")
    before = alive()
    scheduler.ensure_cache_available(request("r"), 0)
    assert alive() == before
    scheduler.ensure_cache_available(request("r", feature("a", 4)), 0)
    assert alive() == before + 1
    scheduler.shutdown()
    assert alive() == before


def test_an_unreadable_item_raises_unless_the_step_is_guarded(make: Callable[..., Any]) -> None:
    """Guarded, it is left out, also when the load is asked for again; the scheduler gives the item up."""
    from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import RegionError

    producer, scheduler = pair(make)
    save(producer, "a", torch.randn(5, WIDTH))
    save(producer, "b", torch.randn(5, WIDTH))
    worker = make("WORKER", "ec_consumer")
    greet(scheduler, worker)
    asked = request("r", feature("a", 5), feature("b", 5))
    wait_for(lambda: scheduler.ensure_cache_available(asked, 0))
    for index, item in enumerate("ab"):
        assert scheduler.has_cache_item(item)
        scheduler.update_state_after_alloc(asked, index)
    orders = scheduler.build_connector_meta(output())
    bad, good = orders.loads
    scheduler._consumer._region.begin(bad.slot.start)  # overwrites the item

    with pytest.raises(RegionError, match="generation 0"):
        run(worker, orders, {})
    worker.build_connector_worker_meta()

    orders.penstock_guarded = True
    cache: dict[str, torch.Tensor] = {}
    worker.bind_connector_metadata(orders)
    worker.start_load_caches(cache)
    cache["a"] = torch.zeros(5, WIDTH)
    worker.start_load_caches(cache)
    report = worker.build_connector_worker_meta()
    assert (report.loaded.done, report.loaded.unreadable) == (
        (bad.slot.generation, good.slot.generation),
        (bad.slot.generation,),
    )
    scheduler.update_connector_output(ECConnectorOutput(ec_connector_worker_meta=report))
    assert not scheduler.has_cache_item("a")
    assert scheduler.has_cache_item("b")


def test_a_region_that_a_worker_cannot_map_costs_encodes(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found out before anything is to be loaded: alone, the connector has no way back from a load that fails."""
    from penstock.instrumentation.vllm.zmq_ec.consumer import worker as loader
    from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import RegionError

    def denied(_name: Any) -> None:
        raise RegionError("the scheduler's shared memory cannot be mapped: Permission denied")

    producer, scheduler = pair(make)
    save(producer, "a", torch.randn(5, WIDTH))
    worker = make("WORKER", "ec_consumer")
    asked, bare = request("r", feature("a", 5)), request("q", feature("a", 5, media=False))
    monkeypatch.setattr(loader, "RegionView", denied)
    greet(scheduler, worker)

    assert scheduler.ensure_cache_available(asked, 0)
    assert not scheduler.has_cache_item("a")
    assert not scheduler.ensure_cache_available(bare, 0)
    assert scheduler.take_unavailable_requests() == {"q"}
    assert scheduler.build_connector_meta(output()).region is None


@pytest.mark.parametrize(
    ("observed", "media", "loads"), [(False, True, False), (False, False, True), (True, True, True)]
)
def test_before_the_workers_have_said_that_they_can_read(
    make: Callable[..., Any], observed: bool, media: bool, loads: bool
) -> None:
    """An item is encoded here unless its load is guarded or no encoder is there."""
    producer, scheduler = pair(make)
    save(producer, "a", torch.randn(5, WIDTH))
    if observed:
        scheduler.observe(Notes())
    asked = request("r", feature("a", 5, media=media))
    wait_for(lambda: scheduler.ensure_cache_available(asked, 0))
    assert scheduler.has_cache_item("a") is loads
