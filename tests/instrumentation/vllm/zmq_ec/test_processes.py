"""Producer, scheduler and workers in processes of their own; some are killed, some stopped."""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.zmq_ec.memory.host_memory import OutOfMemoryError
from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import (
    BEGIN,
    RegionError,
    RegionView,
    SharedRegion,
    SlotName,
)

from demo.common.processes import free_port
from tests.support.ec.rig import Notes, feature, publisher, request, rig, tensor, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 40_000  # 39 chunks


@contextlib.contextmanager
def process(module: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a module of tests.support until the end of the test."""
    command = [sys.executable, "-m", f"tests.support.ec.{module}", *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def line(started: subprocess.Popen[str]) -> str:
    """Return the next line that it prints."""
    assert started.stdout is not None
    return started.stdout.readline().strip()


def tell(started: subprocess.Popen[str], text: str) -> None:
    """Write it a line."""
    assert started.stdin is not None
    started.stdin.write(text + "\n")
    started.stdin.flush()


@pytest.mark.parametrize(
    ("sign", "mode", "error_type"),
    [
        (signal.SIGKILL, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_REMOTE_RESET),
        (signal.SIGSTOP, c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT),
    ],
)
def test_a_producer_that_dies_or_stops_in_mid_stream(
    sign: signal.Signals, mode: int, error_type: int
) -> None:
    """The transfer fails as what it is, the request goes on, and the producer is used again once it is back."""
    with process("producer_process", free_port(), ROWS, 20) as started:
        address = line(started)
        with rig(address, region_bytes=64 << 20, bad_for=0.5, missing_for=1.0) as consumer:
            notes = Notes()
            consumer.consumer.observe(notes)
            asked = request("r", feature("a", ROWS))
            assert not consumer.consumer.ensure(asked, 0)
            assert line(started) == "mid"
            assert consumer.consumer.items.transfer_start("a")
            started.send_signal(sign)
            if sign is signal.SIGSTOP:
                # Not before: a busy machine may keep the transfer from its middle for longer.
                object.__setattr__(consumer.consumer._settings, "idle_timeout", 2.0)
            consumer.settle(asked)
            object.__setattr__(consumer.consumer._settings, "idle_timeout", 30.0)
            (failure,) = consumer.consumer.drain_failures()
            assert (failure.mode, failure.error_type) == (mode, error_type)
            # On a busy machine the item may be asked for again by now, in vain.
            consumer.wait(asked)
            assert not consumer.consumer.has("a")
            assert len(consumer.consumer._slots) == 0
            with contextlib.ExitStack() as back:
                if sign is signal.SIGSTOP:
                    started.send_signal(signal.SIGCONT)
                    tell(started, "go on")
                else:
                    started.wait()
                    again = back.enter_context(publisher(100 << 20, port=int(address.rpartition(":")[2])))
                    again.save("a", tensor(ROWS))
                wait_for(lambda: consumer.consumer.ensure(asked, 0) and consumer.consumer.has("a"))
                assert torch.equal(consumer.load("a")[0], tensor(ROWS))


def test_two_worker_processes_load_what_the_scheduler_fetched() -> None:
    """As with tensor parallelism: each maps the region, each reports, then the slot may go."""
    with (
        publisher() as producer,
        rig(producer.server.address, ranks=2) as consumer,
        process("worker_process") as first,
        process("worker_process") as second,
    ):
        workers = (first, second)
        for step in range(3):
            items = [f"i{step}-{n}" for n in range(2)]
            for item in items:
                producer.save(item, tensor(300, seed=step))
            consumer.wait(request("r", *(feature(item, 300) for item in items)))
            orders = consumer.orders(*items)
            expected = ",".join(f"{item}={zlib.crc32(tensor(300, seed=step).numpy())}" for item in items)
            reports: list[Any] = []
            for worker in workers:
                if not step:
                    assert line(worker) == "ready"
                tell(worker, pickle.dumps(orders).hex())
                answer, sums = line(worker).split()
                assert sums == expected
                reports.append(pickle.loads(bytes.fromhex(answer)))
            slot = consumer.consumer._slots.get(orders[0][0].slot.generation)
            assert slot is not None
            assert slot.reports_due == 2
            for report in reports:
                consumer.consumer.on_report(report)
            assert slot.reports_due == 0


def test_a_worker_never_gets_a_slot_whose_content_changed() -> None:
    """An order from an earlier time is refused, with both generations."""
    with publisher() as producer, rig(producer.server.address, region_bytes=1 << 20) as consumer:
        producer.save("a", tensor(700))
        producer.save("b", tensor(700, seed=1))
        consumer.wait(request("r", feature("a", 700)))
        stale = consumer.orders("a")
        consumer.consumer._slots.on_report(stale[0][0].slot.generation)
        consumer.consumer.end_step(["a"])
        consumer.wait(request("r", feature("b", 700)))
        with pytest.raises(RegionError, match=r"generation 2 .* not 1"):
            consumer.loaders[0].load(*stale, {}, "cpu")
        report = consumer.loaders[0].report()
        assert report is not None
        assert report.unreadable == (1,)
        assert torch.equal(consumer.load("b")[0], tensor(700, seed=1))


def test_a_guarded_worker_leaves_the_item_out_and_goes_on() -> None:
    """The guard writes a placeholder; the scheduler gets the item as bad."""
    with publisher() as producer, rig(producer.server.address) as consumer:
        producer.save("a", tensor(4))
        producer.save("b", tensor(4, seed=1))
        asked = request("r", feature("a", 4), feature("b", 4))
        consumer.wait(asked)
        orders = consumer.orders("a", "b")
        consumer.consumer._region.begin(orders[0][0].slot.start)  # overwrites the item
        cache: dict[str, torch.Tensor] = {}
        consumer.loaders[0].load(*orders, cache, "cpu", guarded=True)
        assert list(cache) == ["b"]
        report = consumer.loaders[0].report()
        assert report is not None
        consumer.consumer.on_report(report)
        consumer.consumer.end_step(["a", "b"])
        assert consumer.consumer.ensure(asked, 0)
        assert not consumer.consumer.has("a")
        assert consumer.consumer.has("b")


def test_a_scheduler_that_is_killed_leaves_nothing() -> None:
    """A worker that has the region mapped can still read it; no other process finds it, and no file is left."""
    slot = SlotName(7, BEGIN, BEGIN + 64, 4096)
    with process("region_process") as started:
        name = pickle.loads(bytes.fromhex(line(started)))
        view = RegionView(name)
        view.check(slot)
        started.kill()
        started.wait()
        with pytest.raises(RegionError, match="cannot be mapped"):
            RegionView(name)
        view.check(slot)
        held = view.bytes_of(slot)
        assert bytes(held) == b"\1" * 4096
        held.release()
        view.close()
    assert not [each for each in Path("/dev/shm").iterdir() if "penstock" in each.name]


def test_a_region_of_another_is_not_taken_for_it() -> None:
    """Process ids and descriptors are used again."""
    import dataclasses

    region = SharedRegion(1 << 20)
    with pytest.raises(RegionError, match="is not the scheduler's"):
        RegionView(dataclasses.replace(region.name, token=bytes(16)))
    view = RegionView(region.name)
    with pytest.raises(RegionError, match="outside"):
        view.check(SlotName(1, BEGIN, BEGIN + 64, 1 << 20))
    view.close()
    region.close()
    region.close()


@pytest.mark.parametrize("size", [0, 1 << 49])
def test_a_region_that_the_host_does_not_have(size: int) -> None:
    """Is refused at start rather than by the kernel's killer."""
    with pytest.raises(OutOfMemoryError, match="region_bytes"):
        SharedRegion(size)
