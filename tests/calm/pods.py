"""Pods of prefill and decode that come and go as Kubernetes lets them, and the router's list of those that serve."""

from __future__ import annotations

import itertools
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from demo.common.model import tiny_model
from demo.common.steps import until
from demo.servers import ROOT, Server, ServerSpec
from tests.support.kv.peers import signal_group

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from demo.common.agent import Agent

PREFILL: Final = "prefill"
DECODE: Final = "decode"
_ROLES: Final = {PREFILL: "kv_producer", DECODE: "kv_consumer"}
# terminationGracePeriodSeconds, unless a pod says otherwise.
_GRACE: Final = 30.0


class Pod:
    """A server; its name is what the agent knows it by."""

    def __init__(self, role: str, name: str, server: Server, args: tuple[str, ...]) -> None:
        self.role = role
        self.name = name
        self.server = server
        self.args = args
        self.requests = 0


class Pods:
    """All pods, and which of them the router sends requests to."""

    def __init__(self, agent: Agent, logs: Path) -> None:
        self._agent = agent
        self._logs = logs
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._serving: list[Pod] = []
        self._all: list[Pod] = []
        self._turns = itertools.count()

    def start(self, role: str, *args: str, name: str = "") -> Pod:
        """Start a pod and have the router know it once it is ready; with *name* it is one that comes back."""
        name = name or f"{role}-{next(self._numbers)}"
        env = {
            "PENSTOCK_ENDPOINT": self._agent.endpoint,
            "PENSTOCK_SERVER": name,
            "PENSTOCK_LABELS": f"role={role}",
        }
        spec = ServerSpec(name, _ROLES[role], args=args, env=env)
        pod = Pod(
            role, name, Server(spec, model=tiny_model(ROOT / ".cache" / "models"), logs=self._logs), args
        )
        self._all.append(pod)
        pod.server.wait_ready()
        with self._lock:
            self._serving.append(pod)
        return pod

    def serving(self, role: str) -> list[Pod]:
        """Return the pods of a role that the router knows."""
        with self._lock:
            return [pod for pod in self._serving if pod.role == role]

    @contextmanager
    def route(self, role: str) -> Iterator[Pod]:
        """Choose the pods in turn; the chosen one has a request until the end."""
        with self._lock:
            pods = [pod for pod in self._serving if pod.role == role]
            pod = pods[next(self._turns) % len(pods)]
            pod.requests += 1
        try:
            yield pod
        finally:
            with self._lock:
                pod.requests -= 1

    def drain(self, pod: Pod) -> None:
        """Let the router send it nothing more, and wait for the requests that it has."""
        self._leave(pod)
        until(lambda: not pod.requests, f"{pod.name} still has requests")

    def terminate(self, pod: Pod, grace: float = _GRACE) -> None:
        """End it by the kubelet's rules, while the router learns of it.

        SIGTERM to the main process alone; when that has ended, or after *grace* seconds, SIGKILL to all.
        """
        pod.server.child.signal(signal.SIGTERM)
        self._leave(pod)
        try:
            until(lambda: not pod.server.child.running, "", seconds=grace)
        except RuntimeError:
            pass
        finally:
            signal_group(pod.server, signal.SIGKILL)
            pod.server.stop()
            self._all.remove(pod)

    def stop(self) -> None:
        """End all."""
        while self._all:
            self._all.pop().server.stop()

    def _leave(self, pod: Pod) -> None:
        with self._lock:
            if pod in self._serving:
                self._serving.remove(pod)


def stopped_engines(agent: Agent) -> list[str]:
    """Return the engines of pods that are gone, as ``server/engine``."""
    engines: list[dict[str, Any]] = agent.ctl_json("get", "engines")["engines"]
    return [
        f"{each['key']['server']}/{each['key'].get('engine', '0')}"
        for each in engines
        if not any(source.get("connected") for source in each["sources"])
    ]
