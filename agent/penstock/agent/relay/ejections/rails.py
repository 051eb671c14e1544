"""Decides which servers go out of rotation: evidence, its age, and the rails. Pure but for what it remembers from look to look."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from penstock.agent.parsing import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.agent.policy.manifest import EjectionRules
    from penstock.agent.relay.ejections.evidence import Server, Vote

Word = Literal["watched", "held_back", "would_eject", "eject", "ejected"]

HISTORY_SECONDS: Final = 3600.0
MOST_SECONDS: Final = 3600.0
_NAMED: Final = 3


class Act(NamedTuple):
    """An order of the last hour, or its end by a person.

    Attributes:
        at: seconds since the epoch.
        is_end: somebody put the server back.
        author: empty for the leading relay itself.

    """

    server: str
    at: float
    is_end: bool = False
    author: str = ""


class EjectionVerdict(NamedTuple):
    """What is made of one server.

    Attributes:
        since: when enough readers began to agree; None where they do not.
        seconds: of the order, if it is to be given or would be.

    """

    server: Server
    rules: EjectionRules
    word: Word
    why: str
    since: float | None
    seconds: float = 0.0


class _Scene(NamedTuple):
    """What all servers of one look are judged by; orders of this look are added.

    Attributes:
        suspects: servers that enough readers accuse, by name.
        out: servers that are out of rotation, by name.
        done: orders of the last hour, and their ends.

    """

    now: float
    servers: Sequence[Server]
    suspects: set[str]
    out: set[str]
    done: list[Act]


class EjectionRails:
    """Judges look by look; one leader's, and begins anew with each.

    Attributes:
        imagined: orders that policies that observe would have given, since the start.

    """

    def __init__(self) -> None:
        """Begin without evidence."""
        self._since: dict[str, float] = {}
        # The most failed loads that an agent has counted in a minute, since then.
        self._failures: dict[str, Counter[str]] = {}
        self.imagined = 0
        # What policies that observe would have ordered, and until when.
        self._imagined: list[tuple[Act, float]] = []
        # By server: why its agent refused, and until when it is left alone.
        self._refused: dict[str, tuple[str, float]] = {}

    def refused(self, server: str, why: str, until: float) -> None:
        """Note that its agent did not take the order."""
        self._refused[server] = (why, until)

    def look(
        self,
        now: float,
        servers: Sequence[Server],
        votes: Mapping[str, Sequence[Vote]],
        rules: Mapping[str, EjectionRules],
        history: Iterable[Act],
    ) -> list[EjectionVerdict]:
        """Return what is made of each server that is out or in view, by name.

        Args:
            now: seconds since the epoch.
            servers: of the fleet.
            votes: on each, by its name.
            rules: of each that a policy is about, by its name.
            history: of the last hour.

        """
        self._imagined = [(act, ends) for act, ends in self._imagined if act.at > now - HISTORY_SECONDS]
        self._refused = {name: found for name, found in self._refused.items() if found[1] > now}
        suspects = self._suspects(now, servers, votes, rules)
        out = {each.name for each in servers if each.order is not None}
        scene = _Scene(now, servers, suspects, out, list(history))
        verdicts = []
        # The server that most readers accuse, and for longest, comes first.
        for server in sorted(servers, key=lambda each: self._place(each, votes)):
            rule = rules.get(server.name)
            if rule is None:
                continue
            if server.order is not None:
                verdicts.append(EjectionVerdict(server, rule, "ejected", server.order.reason, None))
            elif server.name in suspects:
                found = self._judge(scene, server, rule, votes[server.name])
                verdicts.append(found)
                if found.word == "eject":
                    out.add(server.name)
                    scene.done.append(Act(server.name, now))
        return sorted(verdicts, key=lambda each: each.server.name)

    def _place(self, server: Server, votes: Mapping[str, Sequence[Vote]]) -> tuple[int, float, str]:
        bad = sum(vote.is_bad for vote in votes.get(server.name, ()))
        return -bad, self._since.get(server.name, 0.0), server.name

    def _suspects(
        self,
        now: float,
        servers: Sequence[Server],
        votes: Mapping[str, Sequence[Vote]],
        rules: Mapping[str, EjectionRules],
    ) -> set[str]:
        """Keep the evidence; return the servers that enough readers accuse."""
        found = set()
        for server in servers:
            rule, cast = rules.get(server.name), votes.get(server.name, ())
            accusers = [vote for vote in cast if vote.is_bad]
            agreed = rule is not None and len(accusers) >= rule.min_readers and 2 * len(accusers) > len(cast)
            # What is out is read by nobody: what readers said of it is of before.
            if not agreed or server.order is not None:
                continue
            found.add(server.name)
            self._since.setdefault(server.name, now)
            counted = self._failures.setdefault(server.name, Counter())
            for vote in accusers:
                counted[vote.agent] = max(counted[vote.agent], vote.failures)
        for name in self._since.keys() - found:
            del self._since[name], self._failures[name]
        return found

    def _judge(
        self, scene: _Scene, server: Server, rule: EjectionRules, cast: Sequence[Vote]
    ) -> EjectionVerdict:
        since, counted = self._since[server.name], self._failures[server.name]
        accusers = [vote for vote in cast if vote.is_bad]
        evidence = _sentence(server, accusers, len(cast), counted)
        if sum(counted[vote.agent] >= rule.min_failures for vote in accusers) < rule.min_readers:
            needed = f"{rule.min_failures} failed loads in a minute are needed at each of {rule.min_readers} readers"
            return EjectionVerdict(server, rule, "watched", f"{evidence}; {needed}", since)
        if scene.now - since < rule.after:
            return EjectionVerdict(
                server, rule, "watched", f"{evidence}; {_span(rule.after)} of it are needed", since
            )
        ends = max((ends for act, ends in self._imagined if act.server == server.name), default=0.0)
        if not rule.enforces and ends > scene.now:
            return EjectionVerdict(server, rule, "would_eject", evidence, since, ends - scene.now)
        if not rule.enforces:
            scene = self._with_imagined(scene)
        own = [act for act in scene.done if not act.is_end and not act.author]
        why = self._held_back(scene, server, rule, len(own)) or _pool_rails(scene, server, rule)
        if why:
            return EjectionVerdict(server, rule, "held_back", f"{evidence}; {why}", since)
        seconds = min(rule.duration * 2 ** sum(act.server == server.name for act in own), MOST_SECONDS)
        if rule.enforces:
            return EjectionVerdict(server, rule, "eject", evidence, since, seconds)
        self._imagined.append((Act(server.name, scene.now), scene.now + seconds))
        self.imagined += 1
        return EjectionVerdict(server, rule, "would_eject", evidence, since, seconds)

    def _with_imagined(self, scene: _Scene) -> _Scene:
        """Return *scene* with what would have been done beside what was."""
        return scene._replace(
            out=scene.out | {act.server for act, ends in self._imagined if ends > scene.now},
            done=[*scene.done, *(act for act, _ in self._imagined)],
        )

    def _held_back(self, scene: _Scene, server: Server, rule: EjectionRules, orders: int) -> str:
        """Return the rail of servers and fleet that holds an order back, in words; empty for none."""
        if server.name in self._refused:
            return f"its agent refuses the order: {self._refused[server.name][0]}"
        undone = [act for act in scene.done if act.server == server.name and act.is_end and act.author]
        if undone:
            last = max(undone, key=lambda act: act.at)
            left = last.at + HISTORY_SECONDS - scene.now
            return f"{last.author} put it back; it is left alone for {_span(left)}"
        if orders >= rule.per_hour:
            return f"{orders} orders were given in the last hour, as many as perHour"
        return ""


def _pool_rails(scene: _Scene, server: Server, rule: EjectionRules) -> str:
    """Return why a pool of *server* does without no more of its pods; empty if each does."""
    if not server.pools:
        return "its role is not known, so nor is what else serves it"
    return next(filter(None, (_pool_rail(pool, scene, server, rule) for pool in sorted(server.pools))), "")


def _pool_rail(pool: str, scene: _Scene, server: Server, rule: EjectionRules) -> str:
    # A pod counts once, whatever it says it has.
    members = [each for each in scene.servers if pool in each.pools]
    pods = {each.agent for each in members}
    gone = {each.agent for each in members if each.name in scene.out} | {server.agent}
    if 100 * len(gone) > rule.max_pods_percent * len(pods):
        return (
            f"{len(gone)} of {len(pods)} pods with {pool} would be out, more than maxPodsPercent "
            f"({rule.max_pods_percent})"
        )
    if not pods - gone - {each.agent for each in members if each.name in scene.suspects}:
        return f"no well pod with {pool} would be left"
    return ""


def _sentence(server: Server, accusers: Sequence[Vote], cast: int, counted: Mapping[str, int]) -> str:
    named = ", ".join(vote.agent for vote in accusers[:_NAMED])
    more = f" and {len(accusers) - _NAMED} more" if len(accusers) > _NAMED else ""
    failed = sum(counted.values())
    return (
        f"{len(accusers)} of {cast} readers ({named}{more}) get nothing good from {', '.join(server.addresses)}, "
        f"{failed} failed loads: {accusers[0].why}"
    )


def _span(seconds: float) -> str:
    return format_duration(timedelta(seconds=round(seconds)))
