"""Which endpoints are out of rotation. Pure: the time is given.

An endpoint is out for a pause, and then in again whatever is said of it: nobody learns more about one that nobody chooses.
If it is still bad, it goes out for twice as long. What is not known takes nobody out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.views import text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.ctl.routers.endpoints import EndpointState

LONGEST_PAUSE: Final = 600.0
"""Maximum seconds out; in for as long, and the next pause is the first again."""


@dataclass(frozen=True, slots=True)
class RotationRules:
    """When an endpoint goes out, and when it comes back.

    Attributes:
        avoid: the states that take one out.
        after: seconds that it is in one of them before it goes.
        pause: seconds out, the first time; it doubles up to ``LONGEST_PAUSE``.
        lost: seconds without an answer after which all are in.
        least: as many of each pool are in and not bad, or all are in.

    """

    avoid: frozenset[str] = frozenset({"unreachable", "failing"})
    after: float = 10.0
    pause: float = 30.0
    lost: float = 30.0
    least: int = 1


class RotationStep(NamedTuple):
    """What holds from now on.

    Attributes:
        out: why each is out.
        told: sentences about what has changed.

    """

    out: Mapping[str, EndpointState]
    told: list[str]


class _Course:
    """One endpoint over time.

    Attributes:
        why: why it went out; None while it is in.
        suspect: whether it is out, bad for long enough, or bad again after it was out.

    """

    def __init__(self, rules: RotationRules) -> None:
        self._rules = rules
        self._bad_since: float | None = None
        self._out_since = 0.0
        self._back_since: float | None = None
        self._pause = 0.0
        self.why: EndpointState | None = None
        self.suspect = False

    def look(self, now: float, found: EndpointState | None) -> None:
        """Take what is said now; None for nothing."""
        rules = self._rules
        bad = found is not None and found.state in rules.avoid
        if self.why is not None:
            if now - self._out_since < self._pause:
                return
            self.why, self._back_since, self._bad_since = None, now, None
        recent = self._back_since is not None and now - self._back_since < LONGEST_PAUSE
        if not bad:
            self._bad_since = None
            self.suspect = False
            return
        if self._bad_since is None:
            self._bad_since = now
        long_enough = now - self._bad_since >= rules.after
        self.suspect = long_enough or recent
        if long_enough:
            self.why, self._out_since = found, now
            self._pause = min(2 * self._pause, LONGEST_PAUSE) if recent else rules.pause


class Rotation:
    """All endpoints of a command.

    Args:
        pools: the pool of each URL.
        rules: when they go and come.

    """

    def __init__(self, pools: Mapping[str, str], rules: RotationRules) -> None:
        self._pools = pools
        self._rules = rules
        self._courses = {url: _Course(rules) for url in pools}
        self._out: dict[str, EndpointState] = {}
        self._kept: set[str] = set()
        self._answered: float | None = None
        self._lost = False

    def look(self, now: float, states: Mapping[str, EndpointState] | None) -> RotationStep:
        """Return what holds at *now*, monotonic seconds; None where nobody has answered."""
        told = []
        if self._answered is None or states is not None:
            self._answered = now
        if states is not None and self._lost:
            told.append("the state of endpoints is known again")
        lost = states is None and now - self._answered >= self._rules.lost
        if lost and not self._lost:
            told.append("the state of endpoints is not known any more: all are in")
        self._lost = lost
        if lost:
            self._courses = {url: _Course(self._rules) for url in self._pools}
        for url, course in self._courses.items():
            course.look(now, None if states is None else states.get(url))
        out = {url: course.why for url, course in self._courses.items() if course.why is not None}
        kept = self._short_pools()
        told += [self._shortage(pool) for pool in sorted(kept - self._kept)]
        self._kept = kept
        out = {url: found for url, found in out.items() if self._pools[url] not in kept}
        told += [f"out: {url}: {words(found)}" for url, found in out.items() if url not in self._out]
        told += [f"in: {url}" for url in self._out if url not in out]
        self._out = out
        return RotationStep(out, told)

    def _short_pools(self) -> set[str]:
        """Return the pools that would have too few left, of those that have somebody out."""
        ready = dict.fromkeys(self._pools.values(), 0)
        wanted = set()
        for url, course in self._courses.items():
            ready[self._pools[url]] += not course.suspect
            if course.why is not None:
                wanted.add(self._pools[url])
        return {pool for pool in wanted if ready[pool] < self._rules.least}

    def _shortage(self, pool: str) -> str:
        known = [course for url, course in self._courses.items() if self._pools[url] == pool]
        bad = sum(course.suspect for course in known)
        where = f" of pool {pool}" if pool else ""
        return (
            f"{bad} of {text.count(len(known), 'endpoint')}{where} would be out, and at least {self._rules.least} "
            "must stay (--min-ready): all are in"
        )


def words(found: EndpointState) -> str:
    """Return a state on one line."""
    return f"{found.state}: {text.one_line(found.why, 200)}" if found.why else found.state
