"""Where a thread's time goes, by the kernel's account."""

from __future__ import annotations

import os
import threading
import time

from benchmarks.harness.thread_time import ThreadTime, cpu_seconds
from tests.support.agent.agent import wait_until

HELD = 0.1


def test_waiting_for_a_lock_is_not_computing():
    """However busy the machine is: what it took is in neither."""
    lock = threading.Lock()
    lock.acquire()
    before = ThreadTime.now()
    threading.Timer(2 * HELD, lock.release).start()
    with lock:
        waited = ThreadTime.now().since(before)
    assert waited.blocked > waited.running

    # What a host takes from a virtual machine is in no account: some stretch has to be without.
    wait_until(
        lambda: (computed := _compute()).running >= HELD > computed.blocked, "computing is not blocked"
    )


def _compute() -> ThreadTime:
    before = ThreadTime.now()
    while time.thread_time() - before.running < HELD:
        pass
    return ThreadTime.now().since(before)


def test_it_is_never_below_nothing():
    """The two clocks of it are not read at the same moment."""
    assert ThreadTime(wall=1.0, running=0.9, queued=0.2).blocked == 0


def test_a_process_has_the_time_of_all_its_threads():
    """Of those that have not ended; to the last tick."""
    before, done = cpu_seconds(os.getpid()), threading.Event()

    def compute() -> None:
        while time.thread_time() < HELD:
            pass
        done.wait(60)

    other = threading.Thread(target=compute)
    other.start()
    try:
        while cpu_seconds(os.getpid()) - before < HELD / 2:
            assert other.is_alive()
    finally:
        done.set()
        other.join()
