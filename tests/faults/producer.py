"""An engine's process without the engine: the real runtime and exporter under steady traffic, and a ledger.

``python -m tests.faults.producer`` emits entries with ids of their own until it is stopped, then waits until all
of them have been acknowledged. The ledger has one JSON object a line, written as it happens: the ids of each batch
that the agent acknowledged, and at the end what was emitted in all. Lines on standard input are commands:

| line | what it does |
|---|---|
| ``emit N`` | emits N entries at once, as fast as it can |
| ``clock S`` | moves the process's wall clock by S seconds |
| ``streams`` | from now on, writes down how many streams it has opened, whenever it opens one |
| ``fork`` | forks a child that emits entries under ids of its own and ends |
| ``stop`` | ends the traffic, waits for the last acknowledgement, says goodbye, ends |
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.telemetry import exporter, snapshots
from penstock.instrumentation.telemetry.exporter import Exporter
from penstock.instrumentation.telemetry.outbox import Outbox, Watermark

from tests.faults.ids import held, name
from tests.faults.shift import WallClock
from tests.support.agent.entries import acknowledged, emit_closed, emit_probe, emit_transfer

# The pace of the traffic: so often a second some entries are emitted.
_TICKS = 50
_EMITTERS = (emit_closed, emit_transfer, emit_probe)
# Seconds, instead of one: each takes along what waits, and a test waits for the next acknowledgement.
_SNAPSHOTS = 0.2
_CHILD_ENTRIES = 60
_CHILD_DEADLINE = 60.0


class Ledger:
    """The file that outlives the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **entry: Any) -> None:
        """Append one line, in one call."""
        os.write(self._file, json.dumps(entry).encode() + b"\n")


class Traffic:
    """Entries under ids that no one else uses."""

    def __init__(self, word: str) -> None:
        self._word = word
        self.emitted = 0

    def emit(self, count: int) -> None:
        """Emit the next *count* entries: an event, a transfer, a probe, and again."""
        for number in range(self.emitted, self.emitted + count):
            _EMITTERS[number % len(_EMITTERS)](runtime, name(self._word, number))
        self.emitted += count


def keep(ledger: Ledger) -> type[Outbox]:
    """Return an outbox that writes down what it lets go of because it was acknowledged."""

    class KeptOutbox(Outbox):
        def acknowledge(self, watermark: int) -> Watermark:
            head = self.in_flight()
            answer = super().acknowledge(watermark)
            if head is not None and answer is Watermark.GOOD and head[0] <= watermark:
                seq, batch = head
                ledger.write(acknowledged=held(batch.body), epoch=runtime.session.epoch, seq=seq)
            return answer

    return KeptOutbox


def watch_streams(ledger: Ledger) -> None:
    """Write down each attempt to reach the agent, beginning with the stream that is open."""
    connect, count = Exporter._connect, [1]

    def counted(self: Exporter, now: float) -> None:
        before = self._connections
        connect(self, now)
        if self._connections > before:
            count[0] += 1
            ledger.write(streams=count[0])

    Exporter._connect = counted  # type: ignore[method-assign]
    ledger.write(streams=1)


def fork(word: str, path: Path) -> None:
    """Emit from a forked child, which is a source of its own; returns when it has ended."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    code = 1
    try:
        ledger = Ledger(path.with_name(f"{word}.ledger"))
        exporter.Outbox = keep(ledger)  # type: ignore[attr-defined]  # it imports the name, and calls it
        runtime.identify(process="worker", key="0", rank=os.getpid())
        traffic = Traffic(word)
        traffic.emit(_CHILD_ENTRIES)
        code = 0 if finish(ledger, traffic, _CHILD_DEADLINE) else 1
    finally:
        os._exit(code)


def finish(ledger: Ledger, traffic: Traffic, deadline: float) -> bool:
    """Wait until all is acknowledged, end, and write the last line; tell whether all was."""
    end = time.monotonic() + deadline
    while not (settled := acknowledged(runtime)) and time.monotonic() < end:
        time.sleep(0.01)
    runtime.stop(60.0)
    ledger.write(emitted=traffic.emitted, settled=settled)
    return settled


def main() -> int:
    """Emit until ``stop`` comes; 0 if all was acknowledged."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--word", required=True)
    parser.add_argument("--engine", default="0")
    parser.add_argument("--rate", type=int, default=300)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--deadline", type=float, default=60.0)
    options = parser.parse_args()
    clock = WallClock()
    clock.install()
    ledger = Ledger(options.ledger)
    exporter.Outbox = keep(ledger)  # type: ignore[attr-defined]  # it imports the name, and calls it
    snapshots.SNAPSHOT_INTERVAL = _SNAPSHOTS  # type: ignore[misc]  # it looks it up at each turn
    runtime.configure(Settings(endpoint=options.endpoint))
    runtime.identify(process="engine-core", key=options.engine, model="tiny", vllm_version="0.32.0")
    runtime.start()
    traffic, forks = Traffic(options.word), 0
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], 1 / _TICKS)
        if not ready:
            traffic.emit(max(1, options.rate // _TICKS) if options.rate else 0)
            continue
        command, _, argument = sys.stdin.readline().strip().partition(" ")
        if command == "emit":
            traffic.emit(int(argument))
        elif command == "clock":
            clock.move(float(argument))
        elif command == "streams":
            watch_streams(ledger)
        elif command == "fork":
            forks += 1
            fork(f"{options.word}f{forks}", options.ledger)
        else:
            return 0 if finish(ledger, traffic, options.deadline) else 1


if __name__ == "__main__":
    sys.exit(main())
