"""What keeps KV blocks that no request computes with."""

from __future__ import annotations

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.naming.peers import Peer
from penstock.instrumentation.vllm.requests.held_blocks import HeldBlocks, HeldGauge, Holding

PEER = Peer("10.0.0.7:5600", "e-1")
LOAD = Holding(c.BLOCK_HOLDER_LOAD, 3, 10, PEER)
SAVE = Holding(c.BLOCK_HOLDER_SAVE, 4, 20)


def begun(*holdings: Holding) -> HeldBlocks:
    """Return the held blocks of the request ``r``."""
    held = HeldBlocks()
    for each in holdings:
        held.begin("r", each)
    return held


@pytest.mark.parametrize(
    ("steps", "holder", "since"),
    [
        ([], c.BLOCK_HOLDER_LOAD, 10),
        (["finished"], c.BLOCK_HOLDER_ABORTED, 30),
        (["pinned"], c.BLOCK_HOLDER_PINNED, 30),
        (["pinned", "finished"], c.BLOCK_HOLDER_PINNED, 30),
        (["finished", "pinned"], c.BLOCK_HOLDER_PINNED, 31),
        (["finished", "finished"], c.BLOCK_HOLDER_ABORTED, 30),
    ],
)
def test_life_of_a_load(steps: list[str], holder: int, since: int) -> None:
    """It is aborted where its request ends before it, and pinned once it is given up, whatever becomes of the request."""
    held = begun(LOAD)
    for now, step in enumerate(steps, start=30):
        (held.on_pinned if step == "pinned" else held.on_finished)("r", now)
    assert held.gauges() == [HeldGauge(holder, PEER, 1, 3, since)]
    held.end("r")
    assert not held.gauges()


def test_a_save_is_neither_aborted_nor_pinned() -> None:
    """Its request has ended before it began."""
    held = begun(SAVE)
    held.on_finished("r", 30)
    held.on_pinned("r", 30)
    assert held.gauges() == [HeldGauge(c.BLOCK_HOLDER_SAVE, None, 1, 4, 20)]


def test_one_holder_a_request() -> None:
    """A load under way keeps the blocks, whatever the connector does with them besides; a new load is a new holding."""
    assert begun(LOAD, SAVE).gauges() == begun(LOAD).gauges()
    assert begun(SAVE, LOAD).gauges() == begun(LOAD).gauges()


def test_gauges() -> None:
    """By holder and peer: how many requests and blocks, and the oldest."""
    held = HeldBlocks()
    held.begin("r1", LOAD)
    held.begin("r2", Holding(c.BLOCK_HOLDER_LOAD, 5, 7, PEER))
    held.begin("r3", Holding(c.BLOCK_HOLDER_LOAD, 1, 5, Peer("host")))
    held.begin("r4", SAVE)
    assert held.gauges() == [
        HeldGauge(c.BLOCK_HOLDER_LOAD, PEER, 2, 8, 7),
        HeldGauge(c.BLOCK_HOLDER_LOAD, Peer("host"), 1, 1, 5),
        HeldGauge(c.BLOCK_HOLDER_SAVE, None, 1, 4, 20),
    ]


def test_unknown_requests() -> None:
    """Nothing is held for a request that holds nothing."""
    held = HeldBlocks()
    held.on_pinned("r", 1)
    held.on_finished("r", 1)
    held.end("r")
    assert not held.gauges()
