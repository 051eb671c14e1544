"""Plays all scenarios by turns with one meter: ``python -m benchmarks.replay METER EVENTS ROUNDS``; prints JSON, a play a line."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.harness.interleave import without_gc
from benchmarks.replay.meters import meter as meter_of
from benchmarks.replay.player import Player
from benchmarks.replay.scenarios import SCENARIOS
from benchmarks.replay.traffic import parse

if TYPE_CHECKING:
    from typing import IO

WITH: Final = "with"
WITHOUT: Final = "without"


def main(name: str, events: Path, rounds: int, answer: IO[str]) -> None:
    """Play each scenario *rounds* times on either scheduler, after one play that is not counted."""
    from penstock.instrumentation.runtime import runtime
    from penstock.instrumentation.vllm.ec.hook import EcConnectorHook
    from penstock.instrumentation.vllm.kv.hook import KvConnectorHook

    # On, without settings: there is no agent to talk to, and no thread of Penstock's.
    runtime.active = True
    runtime.emitter.saturate()
    recorded = json.loads(events.read_text())["events"]
    recordings = {server: parse(recorded, server) for server in ("prefill", "decode")}
    meter, nothing = meter_of(name), meter_of("blocks")
    order = random.Random(0)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        for scenario in SCENARIOS:
            arrivals = scenario.arrivals(recordings)
            players = {WITHOUT: Player(scenario, Path(directory), instrumented=False)}
            with contextlib.ExitStack() as hooks:
                for hook in (KvConnectorHook(), EcConnectorHook()):
                    hook.install()
                    hooks.callback(hook.uninstall)
                players[WITH] = Player(scenario, Path(directory), instrumented=True)
                for player in players.values():
                    player.play(arrivals, nothing, "warm-up")
                with without_gc():
                    for number in range(rounds):
                        for side in order.sample(list(players), len(players)):
                            label = f"{scenario.kind}/{side}/{number}"
                            played = players[side].play(arrivals, meter, label)
                            answer.write(json.dumps({"label": label, **played.as_json()}) + "\n")


if __name__ == "__main__":
    # vLLM logs to stdout; the results have a descriptor of their own.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as result:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), result)
