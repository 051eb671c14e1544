"""The four variables: a real agent is brought to each point of one, and asked everything there."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc
from penstock.proto.v1.admin_pb2 import GetStatusRequest
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from benchmarks.harness.results import Section
from benchmarks.scale.answers import measured
from benchmarks.scale.fleet import Fleet, peer_names
from benchmarks.scale.requests import REQUESTS
from benchmarks.scale.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.harness.results import Row

ENGINES: Final = 64
PEERS: Final = 1_000
_MIB: Final = 1 << 20
_LIMIT: Final = 1 << 30
# So that a week fills the log several times.
_LIMIT_OF_A_WEEK: Final = 64 << 20
# Each names each pair of engine and peer.
_PASSES: Final = 2
# Full batches of each engine between two looks at the size of the journal.
_BATCHES: Final = 16

# Two in an hour, each longer than --retire-after.
_STEP_SECONDS: Final = 30 * 60
# In an hour: each engine restarts about once a day, and a week replaces more peers and engines than there are at a time.
_RESTARTS: Final = 3
_NEW_PEERS: Final = 20


class Variable(NamedTuple):
    """What one part of the command measures.

    Attributes:
        unit: of its axis, and of its rows in the tables.
        points: where it is measured, rising.
        note: what is held, and how.
        measure: to the rows of all points; a point's group is its number.

    """

    unit: str
    points: tuple[int, ...]
    note: str
    measure: Callable[[tuple[int, ...], Callable[[str], None]], list[Row]]


@contextmanager
def _fleet(engines: int, peers: int, limit: int = _LIMIT) -> Iterator[tuple[Subject, Fleet]]:
    with (
        Subject.running(limit) as subject,
        Fleet(subject.agent.listen, subject.clock.now, engines, peer_names(peers)) as fleet,
    ):
        yield subject, fleet


def _settled(engines: int, peers: int, group: int) -> list[Row]:
    """Return the rows of an agent that knows all pairs of so many engines and peers."""
    with _fleet(engines, peers) as (subject, fleet):
        for _ in range(_PASSES):
            fleet.tell()
        return measured(subject, fleet.asked, str(group))


def _engines(points: tuple[int, ...], say: Callable[[str], None]) -> list[Row]:
    rows = []
    for count in points:
        say(f"{count} engines")
        rows += _settled(count, PEERS, count)
    return rows


def _peers(points: tuple[int, ...], say: Callable[[str], None]) -> list[Row]:
    rows = []
    for count in points:
        say(f"{count} peers")
        rows += _settled(ENGINES, count, count)
    return rows


def _journal(points: tuple[int, ...], say: Callable[[str], None]) -> list[Row]:
    """Fill one journal to each size, or until its oldest entries are deleted for new ones."""
    rows = []
    with _fleet(ENGINES, PEERS) as (subject, fleet):
        fleet.tell()
        for size in points:
            say(f"{size} MiB")
            while not _is_filled(subject, size * _MIB):
                fleet.fill(_BATCHES)
            fleet.tell(1)
            rows += measured(subject, fleet.asked, str(size))
    return rows


def _is_filled(subject: Subject, size: int) -> bool:
    with grpc.insecure_channel(subject.agent.admin) as channel:
        stub: Any = AdminStub(channel)  # type: ignore[no-untyped-call]
        status = stub.GetStatus(GetStatusRequest())
    return bool(status.state_bytes >= size or status.log_first > 1)


def _uptime(points: tuple[int, ...], say: Callable[[str], None]) -> list[Row]:
    """Live through the hours of a fleet in which engines restart, leave and come, and peers too."""
    rows = []
    with _fleet(ENGINES, PEERS, _LIMIT_OF_A_WEEK) as (subject, fleet):
        fleet.tell()
        for hour in range(1, points[-1] + 1):
            _live_an_hour(subject, fleet, hour)
            if hour in points:
                say(f"{hour} h of uptime")
                rows += measured(subject, fleet.asked, str(hour))
    return rows


def _live_an_hour(subject: Subject, fleet: Fleet, hour: int) -> None:
    for place in range(_RESTARTS):
        fleet.restart(hour * _RESTARTS + place)
    fleet.restart(hour, renamed=True)
    fleet.peers = [*fleet.peers[_NEW_PEERS:], *peer_names(_NEW_PEERS, PEERS + hour * _NEW_PEERS)]
    for _ in range(3600 // _STEP_SECONDS):
        subject.clock.forward(_STEP_SECONDS)
        fleet.tell(1)


VARIABLES: Final[Mapping[str, Variable]] = {
    "engines": Variable(
        "engines",
        (1, 8, ENGINES),
        f"each with {PEERS:,} peers; each pair has had two requests or more",
        _engines,
    ),
    "peers": Variable("peers", (10, 100, PEERS), f"of each of {ENGINES} engines, the same way", _peers),
    "journal": Variable(
        "MiB of journal",
        (32, 256, 1024),
        f"of {ENGINES} engines and {PEERS:,} peers, filled with transfers, each of a request of its own; "
        "the last is the default --state-limit, at which the oldest entries go",
        _journal,
    ),
    "uptime": Variable(
        "hours of uptime",
        (1, 24, 168),
        f"of {ENGINES} engines and {PEERS:,} peers, by clocks set forward by half an hour at a time: in each hour "
        f"{_RESTARTS} engines are killed and restart, one leaves for one with a new name, {_NEW_PEERS} peers for new ones, "
        f"and each engine ends {3600 // _STEP_SECONDS * REQUESTS} requests; --state-limit is {_LIMIT_OF_A_WEEK // _MIB} MiB, so that the log is filled again and again",
        _uptime,
    ),
}
"""By the names that ONLY= takes, in the order of the document."""


def measure(name: str, say: Callable[[str], None]) -> Section:
    """Measure one variable at all of its points."""
    variable = VARIABLES[name]
    return Section(name, variable.unit, (), variable.measure(variable.points, say))
