"""Polls the agent on a thread, so that drawing never waits."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.top.view import AgentState
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from penstock.agent.ctl.connection.client import Client

# Seconds; a slower agent is shown as not answering.
_ANSWER = 5.0
# Rows of peers, the worst first: 64 engines with 1,000 peers each have 64,000, which take the agent ten seconds.
MOST_PEERS = 1_000


def poll_agent(
    client: Client, selector: admin.EngineSelector, clock: Callable[[], float] = time.monotonic
) -> AgentState:
    """Return one sample; an error is a sample without state."""
    try:
        status = client.call("GetStatus", admin.GetStatusRequest(), timeout=_ANSWER)
        engines = client.call("ListEngines", admin.ListEnginesRequest(selector=selector), timeout=_ANSWER)
        asked = admin.ListPeersRequest(selector=selector, limit=MOST_PEERS)
        peers = client.call("ListPeers", asked, timeout=_ANSWER)
    except click.ClickException as error:
        return AgentState(clock(), current_time(), error=error.message)
    return AgentState(
        clock(), current_time(), status, tuple(engines.engines), tuple(peers.peers), total_peers=peers.total
    )


class Poller:
    """A thread that takes a sample every *interval* seconds for :meth:`newest`."""

    def __init__(self, ask: Callable[[], AgentState], interval: float) -> None:
        self._ask = ask
        self._interval = interval
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._samples: list[AgentState] = []
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; a call in progress ends by its own deadline and is not awaited."""
        self._stop.set()

    def newest(self) -> list[AgentState]:
        """Return the samples since the last call, oldest first; never blocks."""
        with self._lock:
            samples, self._samples = self._samples, []
        return samples

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                sample = self._ask()
            except ValueError:
                # gRPC raises it if the channel was closed between two calls.
                if self._stop.is_set():
                    return
                raise
            with self._lock:
                # Keeps two samples: a stopped terminal must not fill memory.
                self._samples = [*self._samples[-1:], sample]
            self._stop.wait(self._interval)
