"""An hour of ordinary life on real engines, in which nobody may be woken: ``make calm``, ``python -m tests.calm --minutes 60``.

A prefill and decode service with one agent and a real Prometheus, which scrapes and evaluates as often as in production,
goes through `PHASES` again and again. All along the diagnosis and the alerts are asked. In the end all that was said is
listed, phase by phase; a critical alert, or a cause that is told as lasting, at likely or above, and is not true in its
phase, makes the exit code 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from demo.common.agent import Agent
from demo.common.otlp_receiver import Receiver
from demo.common.processes import free_port
from tests.calm.phases import PHASES, Phase, Town, forget_stopped
from tests.calm.pods import DECODE, PREFILL, Pods
from tests.calm.traffic import FAILED, LEFT, SENT, SERVED, Traffic
from tests.calm.watch import Watch
from tests.support.agent.agent import short_directory
from tests.support.engine.forked_child import ForkedChild
from tests.support.prometheus.rules import FILES, RULES
from tests.support.prometheus.server import Prometheus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.calm.watch import Said

_INTERVAL: Final = "15s"
_SETTLE: Final = 20.0


@contextmanager
def town(seed: int, pace: float) -> Iterator[Town]:
    """Run two prefill pods and one of decode, an agent, a trace backend, Prometheus and clients."""
    with (
        ExitStack() as parts,
        patch("demo.servers.Child", ForkedChild),
        short_directory() as directory,
    ):
        parts.callback(ForkedChild.end_servers)
        port = free_port()

        def traces() -> Receiver:
            receiver = Receiver(port)
            receiver.start()
            return receiver

        receiver = traces()
        http = f"127.0.0.1:{free_port()}"
        agent = Agent(directory, otlp_endpoint=receiver.endpoint, engines=3, http=http)
        parts.callback(agent.stop)
        agent.start()
        pods = Pods(agent, directory)
        parts.callback(pods.stop)
        for role in (PREFILL, PREFILL, DECODE):
            pods.start(role)
        (directory / "prometheus").mkdir()
        rules = [RULES / file for file in FILES]
        prometheus = Prometheus(directory / "prometheus", [http], rules, interval=_INTERVAL)
        parts.callback(prometheus.stop)
        prometheus.start()
        traffic = Traffic(pods, seed)
        running = Town(agent, pods, traffic, prometheus, receiver, traces, pace)

        def end_traces() -> None:
            """End the backend that is there then."""
            running.receiver.stop()

        parts.callback(end_traces)
        traffic.start()
        parts.callback(traffic.stop)
        yield running


def live(place: Town, watch: Watch, phases: Sequence[Phase], seconds: float) -> list[str]:
    """Go through *phases* until *seconds* are over, once at least; print what was said; return what must not have been."""
    wrong: list[str] = []
    end = time.monotonic() + seconds
    rounds = 0
    while not rounds or time.monotonic() < end:
        rounds += 1
        for phase in phases:
            if rounds > 1 and time.monotonic() > end:
                break
            watch.begin(phase.name, phase.true)
            try:
                phase.do(place)
                place.live(_SETTLE)
            finally:
                wrong += _report(watch.begin("between"), place.traffic)
        forget_stopped(place)
    return wrong


def _report(said: Said, traffic: Traffic) -> list[str]:
    """Print what was said in a phase; return what must not have been, with the phase."""
    counts, errors = traffic.take()
    _print(
        f"{said.phase}: {said.seconds:.0f} s; diagnosis asked {said.looks['diagnose']} times, alerts "
        f"{said.looks['alerts']} times; requests: {counts[SENT]} sent, {counts[SERVED]} served, {counts[LEFT]} left,"
        f" {counts[FAILED]} failed"
    )
    for error in errors:
        _print(f"    request  {error}")
    for cause, span in said.causes.items():
        tense = "lasts" if cause.lasts else "ended"
        _print(
            f"    cause    {cause.kind} ({cause.confidence}, {tense}) {span.first:.0f}-{span.last:.0f} s: {cause.sentence}"
        )
    for alert, span in said.alerts.items():
        _print(
            f"    alert    {alert.name} ({alert.severity}) {span.first:.0f}-{span.last:.0f} s: {alert.summary}"
        )
    wrong = said.violations()
    for each in wrong:
        _print(f"    WRONG    {each}")
    return [f"{said.phase}: {each}" for each in wrong]


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return 1 if something was said that must not be."""
    parser = argparse.ArgumentParser(prog="python -m tests.calm", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--pace", type=float, default=1.0, help="multiplies the seconds of each phase")
    parser.add_argument(
        "--phases", default="", help="words, by commas: only the phases whose names have one of them"
    )
    options = parser.parse_args(arguments)
    words = [word for word in options.phases.split(",") if word]
    phases = [phase for phase in PHASES if not words or any(word in phase.name for word in words)]
    if not phases:
        parser.error(f"no phase has one of {', '.join(words)} in its name")
    _print(f"seed {options.seed}; {len(phases)} of {len(PHASES)} phases")
    begun = time.monotonic()
    with town(options.seed, options.pace) as place:
        watch = Watch(place.agent.admin, place.prometheus)
        watch.start()
        try:
            wrong = live(place, watch, phases, options.minutes * 60)
        finally:
            watch.stop()
    _print(f"{time.monotonic() - begun:.0f} s, {len(wrong)} wrong")
    for each in wrong:
        _print(f"  {each}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
