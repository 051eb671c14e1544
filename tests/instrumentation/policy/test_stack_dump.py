"""What the threads of a process execute: bounded, without values, and refused unless it is allowed."""

from __future__ import annotations

import gc
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.policy.stack_dump import (
    BYTES_MAX,
    FRAMES_MAX,
    NOT_ALLOWED,
    THREADS_MAX,
    TOO_SOON,
    StackDumper,
)

from tests.support.seconds import SecondsClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.proto.v1.policy_pb2 import StackDump

_SECRET = "a prompt that nobody may see"


class _End(threading.Event):
    """What busy threads wait for; it counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait, and be counted."""
        self.waiting.release()
        return super().wait(timeout)


@contextmanager
def _threads(count: int, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Have threads do *work*, which waits for the end of the context."""
    end = _End()

    def run() -> None:
        work(end)

    threads = [threading.Thread(target=run, name=f"busy {_SECRET[:4]}{number}") for number in range(count)]
    for thread in threads:
        thread.start()
    for _ in range(count):
        assert end.waiting.acquire(timeout=60)
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


def _dump() -> StackDump:
    return StackDumper(allowed=True).answer(7, "engine-core").stacks


def _hang_with_a_secret(end: threading.Event, prompt: str = _SECRET) -> None:
    local = prompt.upper()
    end.wait(60)
    assert local


def test_a_thread_that_hangs_is_seen_without_its_values() -> None:
    """Function, file, line and module; neither arguments nor variables, nor the source's text or directory."""
    with _threads(1, _hang_with_a_secret):
        dump = _dump()
    assert (dump.id, dump.process, dump.refusal) == (7, "engine-core", "")
    assert dump.pid
    assert dump.threads[0].name == "MainThread"
    busy = next(thread for thread in dump.threads if thread.name.startswith("busy"))
    (frame,) = (each for each in busy.frames if each.function == "_hang_with_a_secret")
    assert (frame.file, frame.module) == ("test_stack_dump.py", __name__)
    assert frame.line > 0
    sent = dump.SerializeToString()
    for leak in (_SECRET, _SECRET.upper(), "end.wait(60)", "/tests/"):
        assert leak.encode() not in sent


def test_it_is_refused_unless_allowed() -> None:
    """The sentence names the variable, and nothing else is sent."""
    dump = StackDumper(allowed=False).answer(7, "engine-core").stacks
    assert dump.refusal == NOT_ALLOWED
    assert "PENSTOCK_ALLOW_STACKS=1" in dump.refusal
    assert not dump.threads


def test_once_a_second() -> None:
    """A second question within it is refused."""
    clock = SecondsClock()
    dumper = StackDumper(allowed=True, clock=clock)
    assert dumper.answer(1, "").stacks.threads
    assert dumper.answer(2, "").stacks.refusal == TOO_SOON
    clock.now += 1.1
    assert dumper.answer(3, "").stacks.threads


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_amid_it(monkeypatch: pytest.MonkeyPatch, collects: bool) -> None:
    """CPython 3.11 would stand still; afterwards it is as it was before, also where it fails."""
    seen: list[bool] = []

    def frames() -> dict[int, Any]:
        seen.append(gc.isenabled())
        raise RuntimeError

    monkeypatch.setattr(sys, "_current_frames", frames)
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        with pytest.raises(RuntimeError):
            _dump()
        assert (seen, gc.isenabled()) == ([False], collects)
    finally:
        (gc.enable if before else gc.disable)()


def test_deep_stacks_and_many_threads_are_cut() -> None:
    """The innermost frames stay, and what is left out is counted."""

    def deep(end: threading.Event, level: int = 200) -> None:
        if level:
            deep(end, level - 1)
        else:
            end.wait(60)

    with _threads(THREADS_MAX + 20, deep):
        dump = _dump()
    assert len(dump.threads) <= THREADS_MAX
    assert dump.threads_left_out >= 20
    assert dump.ByteSize() <= BYTES_MAX + 1_024
    busy = next(thread for thread in dump.threads if thread.name.startswith("busy"))
    assert len(busy.frames) == FRAMES_MAX
    assert busy.frames_left_out > 100
    assert busy.frames[-1].function.endswith("deep")
