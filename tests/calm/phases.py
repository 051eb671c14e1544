"""Ordinary life, phase by phase, and which kinds of causes are true in each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from demo.common.steps import until
from tests.calm.pods import DECODE, PREFILL, stopped_engines
from tests.support.agent.disk import full_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from demo.common.agent import Agent
    from demo.common.otlp_receiver import Receiver
    from tests.calm.pods import Pods
    from tests.calm.traffic import Traffic
    from tests.support.prometheus.server import Prometheus

# Longer than any critical alert waits.
_FULL_SECONDS: Final = 150.0
_LOOPS_PER_CORE: Final = 4
_GRACE_OF_LONG_TIMEOUT: Final = 60.0
_LONG_TIMEOUT: Final = ("--shutdown-timeout", "20")
_SPIN: Final = "while True: pass"


@dataclass(slots=True)
class Town:
    """Where life goes on.

    Attributes:
        traces: makes a new trace backend at the same address.
        pace: what seconds of a phase are multiplied by.

    """

    agent: Agent
    pods: Pods
    traffic: Traffic
    prometheus: Prometheus
    receiver: Receiver
    traces: Callable[[], Receiver]
    pace: float = 1.0

    def live(self, seconds: float) -> None:
        """Let *seconds* of life go by."""
        time.sleep(seconds * self.pace)


class Phase(NamedTuple):
    """Something ordinary; *true* are the kinds of causes that may be told as lasting while it is done, and then."""

    name: str
    do: Callable[[Town], None]
    true: frozenset[str] = frozenset()


def _calm(town: Town) -> None:
    town.live(60)


def _clients_leave(town: Town) -> None:
    town.traffic.leaving = 0.1
    try:
        town.live(60)
    finally:
        town.traffic.leaving = 0.0


def _long_prompts(town: Town) -> None:
    town.traffic.long = True
    try:
        town.live(60)
    finally:
        town.traffic.long = False


def _rolling_restart(town: Town) -> None:
    """One after the other: a new pod, then the old one without requests, as with a preStop hook that waits."""
    for role in (DECODE, PREFILL):
        for old in town.pods.serving(role):
            town.pods.start(role)
            town.pods.drain(old)
            town.pods.terminate(old)
            town.live(10)


def _new_pod(town: Town) -> None:
    pod = town.pods.start(PREFILL)
    town.live(40)
    town.pods.drain(pod)
    town.pods.terminate(pod)
    town.live(15)


def _sigterm(town: Town, args: tuple[str, ...], grace: float) -> None:
    """Pods end amid their requests, and come back under their names; those that are too many are drained."""
    for role in (DECODE, PREFILL):
        pod = town.pods.start(role, *args)
        until(lambda pod=pod: pod.requests, f"No request comes to {pod.name}")  # type: ignore[misc]
        town.pods.terminate(pod, grace)
        town.live(15)
        again = town.pods.start(role, *args, name=pod.name)
        town.live(10)
        town.pods.drain(again)
        town.pods.terminate(again, grace)


def _sigterm_default(town: Town) -> None:
    _sigterm(town, (), 30.0)


def _sigterm_long(town: Town) -> None:
    _sigterm(town, _LONG_TIMEOUT, _GRACE_OF_LONG_TIMEOUT)


def _agent_restart(town: Town) -> None:
    town.agent.stop()
    try:
        town.live(10)
    finally:
        town.agent.start()
    town.live(20)


def _disk_full(town: Town) -> None:
    with full_disk(town.agent):
        time.sleep(_FULL_SECONDS)
    town.live(20)


def _trace_backend_away(town: Town) -> None:
    town.receiver.stop()
    try:
        town.live(45)
    finally:
        town.receiver = town.traces()
    town.live(15)


def _prometheus_restart(town: Town) -> None:
    town.prometheus.stop()
    try:
        town.live(20)
    finally:
        town.prometheus.start()
    town.live(40)


def _busy_machine(town: Town) -> None:
    with _busy_loops(_LOOPS_PER_CORE * (os.cpu_count() or 1)):
        town.live(60)
    town.live(15)


@contextmanager
def _busy_loops(number: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


# A pod that ends amid its requests breaks some, and who reads from it says so.
_BROKEN: Final = frozenset({"peer_refuses", "peer_resets", "peer_times_out", "peer_fails"})
PHASES: Final = (
    Phase("calm traffic", _calm),
    Phase("one client in ten leaves", _clients_leave),
    Phase("long prompts among short ones", _long_prompts),
    Phase("rolling restart of decode and prefill", _rolling_restart),
    Phase("a new prefill pod, drained later", _new_pod),
    Phase("SIGTERM amid requests, default shutdown time-out", _sigterm_default, _BROKEN),
    Phase("SIGTERM amid requests, shutdown time-out of 20 s", _sigterm_long, _BROKEN),
    Phase("agent restart", _agent_restart),
    Phase("agent's disk full, then freed", _disk_full, frozenset({"agent_blind"})),
    Phase("trace backend away", _trace_backend_away),
    Phase("Prometheus restart", _prometheus_restart),
    # First tokens are late then.
    Phase("busy machine", _busy_machine, frozenset({"first_tokens_late"})),
)


def forget_stopped(town: Town) -> None:
    """Have the agent forget the pods that are gone: in Kubernetes each has an agent that goes with it."""
    for engine in stopped_engines(town.agent):
        town.agent.ctl("forget", "engine", engine)
