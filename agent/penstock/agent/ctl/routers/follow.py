"""Follows the state of endpoints, and keeps routers as it says, until it is ended; then all are in again."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.printing import say
from penstock.agent.ctl.routers.endpoints import MAX_ENDPOINTS, words
from penstock.agent.ctl.routers.rotation import Rotation
from penstock.agent.views import text
from penstock.agent.views.coverage import missing_agents
from penstock.agent.views.router_feed import FeedAnswers, relay_feed
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from google.protobuf.message import Message
    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.ctl.routers.endpoints import Endpoints, EndpointState
    from penstock.agent.ctl.routers.rotation import RotationRules
    from penstock.agent.views.router_feed import FeedEndpoint

# Rows that are combined, as in a relay's feed.
_MOST_ROWS: Final = 20_000
# Seconds; engines report once a second, and an answer of thousands of rows is work for the agent.
_LEAST_SLEEP, _LONGEST_SLEEP, _SHARE_OF_TIME = 2.0, 10.0, 4


# Agents that may be missing: one, and a tenth of more than ten.
_FEW, _OF_MANY = 1, 10
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Receiver(Protocol):
    """What takes endpoints out: a router, or a file that one reads.

    Attributes:
        name: for people.

    """

    name: str

    def apply(self, out: Mapping[str, EndpointState], now: float) -> list[str]:
        """Let all be in but those of *out*; return sentences for people."""

    def restore(self) -> list[str]:
        """Let all be in; return a sentence about each that is not."""


class FeedLook(NamedTuple):
    """One look at the feed.

    Attributes:
        endpoints: the worst first.
        missing: which agents of a relay have not answered, in a sentence; empty for none.
        is_whole: at most a few are missing: one of ten, and one of fewer.

    """

    endpoints: list[FeedEndpoint]
    missing: str
    is_whole: bool


def read_feed(client: Client) -> FeedLook:
    """Return what the agent or relay says of each source over all its readers.

    It is made as the feed for routers is, of the same answers, but an agent has one vote; of an agent over its servers.

    Raises:
        FailedError: a call fails.

    """
    coverages = []

    def ask(method: str, request: Message) -> Any:
        response = client.call(method, request)
        if client.coverage is not None:
            coverages.append(client.coverage)
        return response

    said = FeedAnswers(
        ask("ListPeers", admin.ListPeersRequest(limit=_MOST_ROWS)),
        ask("ListEngines", admin.ListEnginesRequest(without_counters=True)),
        ask("ListQuarantines", admin.ListQuarantinesRequest()),
    )
    worst = max(coverages, key=_absent, default=None)
    return FeedLook(
        relay_feed(said, current_time(), by_agent=True).endpoints,
        missing_agents(worst),
        worst is None or _absent(worst) <= max(_FEW, worst.asked // _OF_MANY) < worst.asked,
    )


def _absent(coverage: admin.RelayCoverage) -> int:
    return max(coverage.asked - coverage.answered, len(coverage.missing))


def follow(
    client: Client,
    endpoints: Endpoints,
    rules: RotationRules,
    receivers: Sequence[Receiver],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Keep *receivers* as the feed says, until interrupted.

    Raises:
        FailedError: the first call fails, a router does not take endpoints back, or one is still out at the end.

    """
    rotation, reader = Rotation(endpoints.pools, rules), _Reader(client, endpoints)
    feed = reader.first()
    left: list[str] = []
    with _one_interrupt() as ignore_signals:
        try:
            while True:
                begun = time.monotonic()
                step = rotation.look(begun, None if feed is None else endpoints.states(feed, rules.avoid))
                _say(step.told)
                for each in receivers:
                    _say(each.apply(step.out, begun))
                spent = time.monotonic() - begun
                sleep(min(_LONGEST_SLEEP, max(_LEAST_SLEEP, _SHARE_OF_TIME * (spent + reader.seconds))))
                feed = reader.read()
        except KeyboardInterrupt:
            # An interrupt is how it ends.
            pass
        finally:
            # The undo has an end of its own.
            ignore_signals()
            left = _restore(receivers)
            _say(left, err=True)
    if left:
        raise FailedError("not all endpoints are in again; see above")


def _restore(receivers: Sequence[Receiver]) -> list[str]:
    """Let all be in; return a sentence about each that is not."""
    left: list[str] = []
    for each in receivers:
        try:
            left += each.restore()
        except Exception as error:  # noqa: BLE001  (whatever it is, the other receivers are restored)
            left.append(f"{each.name} may not have all endpoints in again: {type(error).__name__}: {error}")
    return left


@contextmanager
def _one_interrupt() -> Iterator[Callable[[], None]]:
    """Let the first signal interrupt, and ignore those after it; yield what ignores the first, too."""
    before: dict[signal.Signals, Any] = {}

    def ignore() -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)

    def interrupt(*_: object) -> None:
        ignore()
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        before |= {number: signal.getsignal(number) for number in _ENDS}
    try:
        for number in before:
            signal.signal(number, interrupt)
        yield ignore
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Reader:
    """Reads the feed again and again, and says once what is in the way.

    Attributes:
        seconds: that the last answer took.

    """

    def __init__(self, client: Client, endpoints: Endpoints) -> None:
        self._client = client
        self._endpoints = endpoints
        self._named: set[str] = set()
        self._problem = ""
        self.seconds = 0.0

    def first(self) -> Sequence[FeedEndpoint] | None:
        """Return the feed, and name what it does not have; None where it is not known.

        Raises:
            FailedError: a call fails.

        """
        feed = self._known(read_feed(self._client))
        if feed is not None:
            self._name_strangers(feed, missing=True)
        return feed

    def read(self) -> Sequence[FeedEndpoint] | None:
        """Return the feed; None where it is not known."""
        begun = time.monotonic()
        try:
            look = read_feed(self._client)
        except FailedError as error:
            self._complain(error.message)
            return None
        finally:
            self.seconds = time.monotonic() - begun
        feed = self._known(look)
        if feed is not None:
            self._name_strangers(feed)
        return feed

    def _known(self, look: FeedLook) -> Sequence[FeedEndpoint] | None:
        """Return what a look has found; None where too many agents are missing from it."""
        # It is said here, and not once more at the end of the command.
        self._client.missing = ""
        doubt = "" if look.is_whole else "; that is too few to go by"
        self._complain(f"{look.missing}{doubt}" if look.missing else "")
        return look.endpoints if look.is_whole else None

    def _complain(self, problem: str) -> None:
        if problem and problem != self._problem:
            say(text.style(problem, "yellow"), err=True)
        self._problem = problem

    def _name_strangers(self, feed: Sequence[FeedEndpoint], *, missing: bool = False) -> None:
        """Name each source without a URL once, and with *missing* what the feed does not have."""
        for each in feed:
            name = words(each)
            if (
                self._endpoints.url(each) is None
                and name not in self._named
                and len(self._named) < MAX_ENDPOINTS
            ):
                self._named.add(name)
                say(f"{name} has no --endpoint: it is left as it is", err=True)
        for source in self._endpoints.unknown(feed) if missing else ():
            say(f"{source} is not among the peers: its state is unknown, and it stays in", err=True)


def _say(lines: Sequence[str], *, err: bool = False) -> None:
    if lines:
        say(*lines, err=err)
