"""The small parts around EC connectors: the hook, the observer, the taint's spread from a request, drills, memory."""

from __future__ import annotations

import time
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks.registry import HookRegistry
from penstock.instrumentation.resilience.fault_drills import Drill
from penstock.instrumentation.resilience.orders import Orders
from penstock.instrumentation.resilience.policy import NO_POLICY, Action, EcLoadFailure
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec.ec_media import LocalMedia
from penstock.instrumentation.vllm.ec.hook import EcConnectorHook
from penstock.instrumentation.vllm.ec.observer import EcObserver
from penstock.instrumentation.vllm.ec.protocol import EcFailure, EcLoader, EcTransfer
from penstock.instrumentation.vllm.recovery.freed_blocks import FreedBlocks
from penstock.instrumentation.vllm.recovery.rewind import NO_BLOCK, BlockHolder, spread
from penstock.instrumentation.vllm.scheduler import session

from tests.support.ec.fake_ec import TOY_PEER, ToyEcEngine, ToyLoader, expected, image_request
from tests.support.engine.recorder import policy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.config import ECTransferConfig
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

tables = st.lists(st.lists(st.integers(0, 9), max_size=5, unique=True), min_size=1, max_size=5)


@given(tables, st.dictionaries(st.integers(0, 4), st.integers(0, 12), max_size=3), st.sampled_from([1, 2, 4]))
def test_spread_from_requests(blocks: list[list[int]], begins: dict[int, int], size: int) -> None:
    """All behind a request's first bad token is tainted, the block that holds it as a whole, and nothing that nobody reaches."""
    holders = [BlockHolder(str(index), (table,)) for index, table in enumerate(blocks)]
    seeds = {str(index): token for index, token in begins.items() if index < len(blocks)}
    taint = spread(holders, set(), [size], seeds)
    (tainted,) = taint.blocks
    for index, table in enumerate(blocks):
        name = str(index)
        start = taint.starts.get(name, len(table) * size)
        assert tainted.isdisjoint(table[: start // size])
        assert tainted.issuperset(table[start // size :])
        if name in seeds:
            assert start <= seeds[name]
        elif name in taint.starts:
            assert start % size == 0
        assert (name in taint.direct) is (name in seeds)
    if not seeds:
        assert not taint.starts
        assert not tainted


def test_a_ghost_has_only_what_is_still_there() -> None:
    """Of the blocks that a request has left, those that were reused, never cached or stand for nothing are not its any more."""

    def block(number: int, content: object, *, null: bool = False) -> Any:
        return SimpleNamespace(block_id=number, block_hash=content, is_null=null)

    blocks = [block(1, "a"), block(2, "b"), block(3, None), block(0, "n", null=True)]
    ghost = FreedBlocks("r", [blocks])
    blocks[1].block_hash = "reused"
    assert ghost.holder("g") == BlockHolder("g", ([1, NO_BLOCK, NO_BLOCK, NO_BLOCK],))


def test_the_hook() -> None:
    """It fits this vLLM, keeps the connector's name, and gives its class back."""
    registry = HookRegistry()
    assert registry.install(EcConnectorHook())
    (state,) = registry.report()
    assert (state.name, state.installed, state.reason) == ("ec_connector", True, "")
    transfer = ECTransferConfig(
        ec_connector="ToyLoader", ec_role="ec_consumer", ec_connector_module_path="tests.support.ec.fake_ec"
    )
    config = SimpleNamespace(ec_transfer_config=transfer)
    connector = ECConnectorFactory.create_connector(config, ECConnectorRole.SCHEDULER)
    assert type(connector) is not ToyLoader
    assert (type(connector).__name__, isinstance(connector, ToyLoader)) == ("ToyLoader", True)
    assert isinstance(connector, EcLoader)
    # Without a scheduler of ours it answers as it would by itself.
    connector.store.add("a")
    assert (connector.has_cache_item("a"), connector.has_cache_item("b")) == (True, False)
    registry.uninstall("ec_connector")
    assert type(connector) is ToyLoader
    assert type(ECConnectorFactory.create_connector(config, ECConnectorRole.SCHEDULER)) is ToyLoader


def test_the_policys_fields() -> None:
    """An engine says that it acts upon ``ecLoadFailure``; a policy with it would else be refused."""
    assert "ec_load_failure" in session.POLICY_FIELDS


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


def test_drills_travel_to_the_workers(make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """The step after a change carries the drills in force; what is to be loaded, and whether it is guarded, every step that loads."""
    scheduler = make_ec_scheduler()
    drill = Drill("d", c.CHANNEL_EC, c.FAILURE_MODE_LOAD, 1.0, 60_000_000_000)
    runtime.policy.swap(NO_POLICY, 1.0, Orders(drills=(drill,), received_ns=time.monotonic_ns()))
    scheduler.ec_connector.store |= {"a"}
    scheduler.add_request(image_request("r", {10: ("a", 40)}, tokens=80))
    metadata = scheduler.schedule().ec_connector_metadata
    assert [each.id for each in metadata.penstock_drills] == ["d"]
    assert metadata.penstock_items == (("a", 40, "image", "r"),)
    assert not hasattr(metadata, "penstock_guarded")
    runtime.policy.swap(policy(ec=EcLoadFailure(Action.FAIL)), 1.0)
    assert scheduler.schedule().ec_connector_metadata.penstock_drills
    scheduler.ec_connector.store |= {"b"}
    scheduler.add_request(image_request("s", {0: ("c", 8), 10: ("b", 40)}, tokens=80, first=400))
    metadata = scheduler.schedule().ec_connector_metadata
    assert metadata.penstock_guarded is True
    assert metadata.penstock_encodes == {"c": "image"}
    assert not hasattr(metadata, "penstock_drills")


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


@pytest.mark.parametrize(
    ("data", "has"),
    [
        (None, False),
        ({}, False),
        ({"grid": 1}, False),
        ({"grid": 1, "pixels": None}, False),
        ({"grid": 1, "pixels": 2}, True),
    ],
)
def test_local_media(data: dict[str, Any] | None, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tells only the size of an input's place in the prompt is no media."""
    from vllm.distributed.ec_transfer.ec_connector import utils

    monkeypatch.setattr(utils.PlaceholderMetadataResolver, "fields_for", lambda *_: {"grid"})
    fields = None if data is None else {key: SimpleNamespace(data=value) for key, value in data.items()}
    assert LocalMedia(None).has(SimpleNamespace(data=fields, modality="image")) is has
