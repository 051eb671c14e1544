"""Asking the agent again and again, beside whoever draws."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.top.view import AgentState
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from penstock.agent.ctl.client import Client

# Seconds; an agent that needs longer is shown as one that does not answer.
_ANSWER = 5.0


def poll_agent(
    client: Client, selector: admin.EngineSelector, clock: Callable[[], float] = time.monotonic
) -> AgentState:
    """Ask once; an agent that does not answer is a sample too."""
    try:
        status = client.call("GetStatus", admin.GetStatusRequest(), timeout=_ANSWER)
        engines = client.call("ListEngines", admin.ListEnginesRequest(selector=selector), timeout=_ANSWER)
        peers = client.call("ListPeers", admin.ListPeersRequest(selector=selector), timeout=_ANSWER)
    except click.ClickException as error:
        return AgentState(clock(), time.time(), error=error.message)
    return AgentState(clock(), time.time(), status, tuple(engines.engines), tuple(peers.peers))


class Poller:
    """A thread that takes a sample every *interval* seconds and hands it over by :meth:`newest`."""

    def __init__(self, ask: Callable[[], AgentState], interval: float) -> None:
        self._ask = ask
        self._interval = interval
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._samples: list[AgentState] = []
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End; a question that is open ends by its own deadline, nobody waits for it."""
        self._stop.set()

    def newest(self) -> list[AgentState]:
        """Return the samples since the last time, oldest first; does not wait."""
        with self._lock:
            samples, self._samples = self._samples, []
        return samples

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                sample = self._ask()
            except ValueError:
                # gRPC's word for a channel that was closed between two calls: nobody looks any more.
                if self._stop.is_set():
                    return
                raise
            with self._lock:
                # Whoever draws is faster than this; a terminal that is stopped must not fill the memory.
                self._samples = [*self._samples[-1:], sample]
            self._stop.wait(self._interval)
