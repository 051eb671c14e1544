"""The end of the interpreter, in which CPython starts no thread: 3.12.0 and 3.12.1 from its beginning on, before ``atexit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.script import run_script

if TYPE_CHECKING:
    from tests.support.agent.fake_agent import FakeAgent

SCRIPT = """
import atexit, sys, threading, time

from penstock.instrumentation.core import guard
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.transport import streams

if sys.argv[2] == "threads":
    streams.SEPARATE_SINCE = (1_000_000,)

def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "not within 60 s"
        time.sleep(0.005)

runtime.configure(Settings(endpoint=sys.argv[1]))
runtime.identify(process="engine-core", key="0")
"""

RECONNECT = """
runtime.start_policy(("kv_load_failure",))
runtime.emit_event("load_outcome", {}, component=1)
threads = runtime._threads()
until(lambda: runtime._exporter._sent and runtime._policy_client._stream)

# Comes before the end of Penstock's threads, as what the engine itself has to do at its end.
@atexit.register
def lose_the_agent():
    for thread in threads:
        thread.request_park()
        assert thread.wait_parked(60)
        thread.resume()
    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        until(lambda: not any(thread._thread.is_alive() for thread in threads))
        assert {hook for hook, _ in guard.counts.snapshot()} == {"penstock-exporter", "penstock-policy"}
    else:
        until(lambda: all(thread._stream for thread in threads))
"""

FIRST_ENTRY = """
@atexit.register
def emit():
    runtime.emit_event("load_outcome", {}, component=1)
    runtime.start_policy(("kv_load_failure",))
    runtime.stop()
"""


@pytest.mark.parametrize("kind", ["loop", "threads"])
@pytest.mark.parametrize("script", [RECONNECT, FIRST_ENTRY], ids=["reconnect", "first entry"])
def test_a_process_that_is_ending_begins_nothing(agent: FakeAgent, script: str, kind: str) -> None:
    """No traceback of ours is the engine's last word, and no thread tries again."""
    assert run_script(SCRIPT + script, agent.listen, kind).stderr == ""
