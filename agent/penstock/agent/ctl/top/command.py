"""``agentctl top``: a live screen on a terminal, else repeated plain output; a thread polls the agent, so that drawing never waits."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from itertools import count as endless
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.connection.endpoint import bundle_of
from penstock.agent.ctl.errors import UnreachableError
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import DURATION, engine_selector, with_client, with_selector
from penstock.agent.ctl.printing import say
from penstock.agent.ctl.top.layout import as_text, screen
from penstock.agent.ctl.top.view import SORTS, AgentState, History
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Self

    from penstock.agent.ctl.connection.client import Client

_PLAIN_WIDTH = 120
_PLAIN_HEIGHT = 200

# Seconds; a slower agent is shown as not answering.
_ANSWER = 5.0
# Rows of peers, the worst first: 64 engines with 1,000 peers each have 64,000, which take the agent ten seconds.
MOST_PEERS = 1_000


@click.command()
@with_selector
@click.option("--interval", type=DURATION, metavar="DURATION", help="Refresh interval.  [default: 2s]")
@click.option("--sort", type=click.Choice(SORTS), default=SORTS[0], show_default=True, help="Sort order.")
@click.option("--plain", is_flag=True, help="Print repeatedly, as without a terminal.")
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N", help="With plain output: exit after N samples."
)
@with_client
def top(
    client: Client, selector: str, interval: timedelta | None, sort: str, plain: bool, count: int | None
) -> None:
    """Show engines and peers live: transfer rates, in flight, failures, deferrals, policy.

    Keys: q quits, s changes the order, up and down scroll.
    """
    seconds = max(interval.total_seconds(), 0.2) if interval is not None else 2.0
    chosen = engine_selector(selector)
    # An unreachable agent is an error before the screen is set up.
    client.call("GetStatus", admin.GetStatusRequest())
    if bundle_of(click.get_current_context()):
        # It does not change.
        plain, count = True, 1
    if plain or count is not None or not _can_draw():
        _print(client, chosen, sort, seconds, count)
        return
    from penstock.agent.ctl.top.screen import run  # noqa: PLC0415  (it needs curses)

    with Poller(lambda: poll_agent(client, chosen), seconds) as poller:
        run(poller.newest, sort, colour=click.get_current_context().color is not False)


def _can_draw() -> bool:
    """Return whether this is a terminal that curses supports."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        return False
    try:
        import curses  # noqa: PLC0415  (not on every platform)
    except ImportError:
        return False
    try:
        curses.setupterm()
    except curses.error:
        return False
    return True


def _print(
    client: Client, selector: admin.EngineSelector, sort: str, interval: float, count: int | None
) -> None:
    history = History()
    width = shutil.get_terminal_size((_PLAIN_WIDTH, 0)).columns
    for number in endless() if count is None else range(count):
        if number:
            time.sleep(interval)
            say("")
        sample = poll_agent(client, selector)
        history.add(sample)
        if sample.error and number + 1 == count:
            raise UnreachableError(sample.error)
        lines = screen(history, sort, 0, width, _PLAIN_HEIGHT, sample.now)
        # The last line lists the keys.
        say(*as_text(lines[:-1]).split("\n"))


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
