"""A signal ends a process once; those that come later, up to the last moment, change nothing."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_SCRIPT = """
import asyncio, atexit, os, signal, sys
from penstock.agent.aio import stop_event

class LastMoment:
    # In the built-in modules' globals: deleted after the signal module has reset the handlers of Python.
    def __del__(self, kill=os.kill, me=os.getpid()):
        kill(me, {number})

async def main():
    stop = stop_event()
    os.kill(os.getpid(), {number})
    await stop.wait()

sys.last_moment = LastMoment()
atexit.register(os.kill, os.getpid(), {number})
asyncio.run(main())
os.kill(os.getpid(), {number})
print("ended")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_later_signals_change_nothing(number):
    """After the loop has closed, at exit and while modules are taken down."""
    script = _SCRIPT.format(number=int(number))
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended\n", "")


def test_a_signal_after_the_loop_has_closed_without_one():
    """A process that ends by itself is not ended by the signal that comes then."""
    script = (
        "import asyncio, os, signal\n"
        "from penstock.agent.aio import stop_event\n"
        "async def main(): stop_event()\n"
        "asyncio.run(main())\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('ended')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended\n", "")
