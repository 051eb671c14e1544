"""The loads and saves that a step's metadata carries to the workers."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace

from penstock.instrumentation.vllm.kv.base.transfers import KvStepLoads
from penstock.instrumentation.vllm.messages.transfers import LOADS_MAX, KvLoad, loads_of, saves_of


class Source(Enum):
    """As vLLM's CacheHitSource."""

    HOST = "host"
    DISK = "disk"
    P2P = "p2p"


def test_a_step_that_loads_nothing_has_nothing_on_it() -> None:
    """The metadata of a step without loads is unchanged."""
    metadata, step = SimpleNamespace(), KvStepLoads(object())
    step.on_match("asked", waits=True)
    step.attach(object(), metadata, None)
    assert vars(metadata) == {}
    assert (loads_of(metadata), saves_of(metadata), loads_of(None)) == ((), (), ())


def test_loads_of_a_step() -> None:
    """Loads since the last step are attached once; the last answer of a request counts."""
    metadata, step = SimpleNamespace(), KvStepLoads(SimpleNamespace(_cache_hit_source=Source.HOST))
    step.on_match("a", waits=False)
    step.on_match("a", waits=True)
    step.on_load_allocated("a", 64)
    step.on_load_allocated("never-asked", 32)
    step.set_source("a", [Source.DISK])
    step.set_source("unknown", [Source.DISK])
    step.attach(object(), metadata, None)
    assert loads_of(metadata) == (KvLoad("a", 64, True, "disk"), KvLoad("never-asked", 32, False, "host"))
    again = SimpleNamespace()
    step.attach(object(), again, None)
    assert loads_of(again) == ()


def test_a_step_is_bounded() -> None:
    """The loads of one step are bounded, and so are the matched requests without blocks."""
    metadata, step = SimpleNamespace(), KvStepLoads(object())
    for number in range(5_000):
        step.on_match(str(number), waits=False)
    for number in range(5_000):
        step.on_load_allocated(str(number), 1)
    step.attach(object(), metadata, None)
    assert len(loads_of(metadata)) == LOADS_MAX
    step.on_finished("4999")
