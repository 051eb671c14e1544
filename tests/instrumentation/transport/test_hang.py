"""An agent that hangs (SIGSTOP): the socket is open, the kernel accepts bytes, no answer comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.telemetry import exporter, snapshots
from penstock.instrumentation.transport import Stream

from tests.support.agent.agent import wait_until
from tests.support.agent.entries import acknowledged, emit_failure, emit_transfer
from tests.support.engine.runtime_threads import exporter_of
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.instrumentation.runtime import Runtime

ROOT = Path(__file__).parents[3]


@pytest.fixture
def hanging(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Start an agent's double as a process that a signal can stop."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.agent.fake_agent", f"unix://{directory}/ingest.sock"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("kind")
def test_hung_agent_is_given_up_and_taken_back(
    hanging: subprocess.Popen[str], make_runtime: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emitting goes on with bounded memory while the agent hangs; when it wakes up everything is acknowledged."""
    monkeypatch.setattr(exporter, "ANSWER_DEADLINE", 0.3)
    runtime = make_runtime()
    emit_failure(runtime, "before")
    wait_until(lambda: acknowledged(runtime), "the first entry is acknowledged")
    service = exporter_of(runtime)
    stop(hanging.pid)
    connections = service._connections
    for number in range(2_000):
        emit_transfer(runtime, f"r-{number}")
    wait_until(lambda: service._connections > connections + 1, "the stream is given up, and the next")
    assert runtime.active
    assert not runtime.emitter.drops
    assert len(service._outbox) < 20
    hanging.send_signal(signal.SIGCONT)
    wait_until(lambda: acknowledged(runtime), "all entries are acknowledged")


@pytest.mark.usefixtures("kind")
def test_hung_agent_gets_no_pile_of_snapshots(
    hanging: subprocess.Popen[str], make_runtime: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an agent that does not read, at most one snapshot and one batch wait in memory."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_INTERVAL", 0.001)
    monkeypatch.setattr(exporter, "ANSWER_DEADLINE", 0.5)
    backlogs: list[int] = []
    send = Stream.send

    def noted(self: Any, request: Any) -> None:
        backlogs.append(self.backlog)
        send(self, request)

    monkeypatch.setattr(Stream, "send", noted)
    runtime = make_runtime()
    runtime.snapshots.add("big", lambda snapshot: setattr(snapshot.engine, "model", "x" * 500_000))
    runtime.start()
    wait_until(lambda: len(backlogs) > 2, "snapshots")
    stop(hanging.pid)
    service = exporter_of(runtime)
    stream = service._stream
    assert stream is not None
    wait_until(lambda: stream.backlog or service._stream is not stream, "flow control has stopped the stream")
    emit_failure(runtime, "r")
    wait_until(lambda: service._stream is not stream, "the stream is given up")
    assert max(backlogs) <= 1
    runtime.stop(0.1)


def test_process_ends_with_a_hung_agent(hanging: subprocess.Popen[str], directory: Path) -> None:
    """A host whose agent hangs ends by itself, with its own exit code."""
    stop(hanging.pid)
    script = """
    import sys
    from penstock.instrumentation.runtime import runtime
    from penstock.instrumentation.core.settings import Settings
    runtime.configure(Settings(endpoint=sys.argv[1]))
    runtime.identify(process="engine-core", key="0")
    runtime.start_policy(("kv_load_failure",))
    runtime.emit_event("load_outcome", {}, component=1)
    while runtime._exporter._stream is None:
        pass
    sys.exit(7)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), f"unix://{directory}/ingest.sock"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "GRPC_VERBOSITY": "ERROR"},
    )
    assert (done.returncode, done.stderr) == (7, "")
