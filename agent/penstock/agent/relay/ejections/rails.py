"""Decides which servers go out of rotation: evidence, its age, and the rails. Pure but for what it remembers from look to look."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from penstock.agent.parsing import format_duration
from penstock.agent.relay.ejections.authors import is_ours
from penstock.agent.relay.ejections.evidence import SeenFleet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.agent.policy.manifest import EjectionRules
    from penstock.agent.relay.ejections.evidence import Server, Vote

Word = Literal["watched", "held_back", "would_eject", "eject", "ejected"]

HISTORY_SECONDS: Final = 3600.0
MOST_SECONDS: Final = 3600.0
GAP_SECONDS: Final = 15.0
"""Longest pause between two looks; after a longer one the evidence begins anew."""
TRIAL_SECONDS: Final = 600.0
"""For so long a server that is back is on trial: a failed load at each of enough readers takes it out again."""
# Agents count failures by the minute: so long those of before are among them.
_COUNTED_SECONDS: Final = 60.0
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


class ActHistory(NamedTuple):
    """What the audit logs have of the last hour.

    Attributes:
        acts: orders, and their ends.
        unknown: agents whose log is not known.

    """

    acts: Sequence[Act] = ()
    unknown: frozenset[str] = frozenset()


class _Scene(NamedTuple):
    """What all servers of one look are judged by; orders of this look are added.

    Attributes:
        accused: servers that half of those who read them accuse, or more, by name.
        pods: agents with a server of each pool, those that do not answer or whose server is away included.
        out: servers that are out of rotation, by name.
        done: orders of the last hour, and their ends.
        unknown: agents whose audit log is not known.

    """

    now: float
    servers: Sequence[Server]
    accused: set[str]
    pods: Mapping[str, set[str]]
    out: set[str]
    done: list[Act]
    unknown: frozenset[str]


class EjectionRails:
    """Judges look by look; one leader's, and begins anew with each.

    Attributes:
        imagined: orders that policies that observe would have given, since the start.

    """

    def __init__(self) -> None:
        """Begin without evidence."""
        self._last = -math.inf
        self._fleet = SeenFleet((), {}, frozenset())
        self._since: dict[str, float] = {}
        # The most failed loads that an agent has counted in a minute, since then.
        self._failures: dict[str, Counter[str]] = {}
        # The agent of each server that was seen.
        self._known: dict[str, str] = {}
        # By server that was out or away: from when on what readers count is of the time since.
        self._counts_from: dict[str, float] = {}
        # By server that a relay had taken out: until when it is on trial.
        self._trial: dict[str, float] = {}
        # By agent, as long as it is of the fleet: its pools, and the servers that it has read.
        self._pools: dict[str, frozenset[str]] = {}
        self._reads: dict[str, frozenset[str]] = {}
        self.imagined = 0
        # What policies that observe would have ordered, and until when.
        self._imagined: list[tuple[Act, float]] = []
        # By server: why its agent refused, and until when it is left alone.
        self._refused: dict[str, tuple[str, float]] = {}

    def refused(self, server: str, why: str, until: float) -> None:
        """Note that its agent did not take the order."""
        self._refused[server] = (why, until)

    def look(self, now: float, fleet: SeenFleet, rules: Mapping[str, EjectionRules]) -> bool:
        """Take what was seen at *now*, seconds since the epoch; return whether an order may follow from it.

        Args:
            rules: of each server that a policy is about, by its name.

        """
        if now - self._last > GAP_SECONDS:
            # What was in between is not known.
            self._since.clear()
            self._failures.clear()
        self._last = now
        self._imagined = [(act, ends) for act, ends in self._imagined if act.at > now - HISTORY_SECONDS]
        self._refused = {name: found for name, found in self._refused.items() if found[1] > now}
        self._remember(now, fleet)
        self._fleet = fleet
        suspects = self._suspects(now, rules)
        return any(
            rules[name].enforces and now - self._since[name] >= self._on_trial(name, rules[name]).after
            for name in suspects
        )

    def judge(self, rules: Mapping[str, EjectionRules], history: ActHistory) -> list[EjectionVerdict]:
        """Return what is made of each server of the last look that is out or in view, by name."""
        now, fleet = self._last, self._fleet
        pods: dict[str, set[str]] = {}
        for agent, pools in self._pools.items():
            for pool in pools:
                pods.setdefault(pool, set()).add(agent)
        scene = _Scene(
            now,
            fleet.servers,
            {
                name
                for name, cast in fleet.votes.items()
                if 2 * sum(vote.is_bad for vote in cast) >= len(cast) > 0
            },
            pods,
            {each.name for each in fleet.servers if each.order is not None},
            list(history.acts),
            history.unknown,
        )
        verdicts = []
        # The server that most readers accuse, and for longest, comes first.
        for server in sorted(fleet.servers, key=self._place):
            rule = rules.get(server.name)
            if rule is None:
                continue
            if server.order is not None:
                verdicts.append(EjectionVerdict(server, rule, "ejected", server.order.reason, None))
            elif server.name in self._since:
                found = self._judge(scene, server, rule)
                verdicts.append(found)
                if found.word == "eject":
                    scene.out.add(server.name)
                    scene.done.append(Act(server.name, now))
        return sorted(verdicts, key=lambda each: each.server.name)

    def _place(self, server: Server) -> tuple[int, float, str]:
        bad = sum(vote.is_bad for vote in self._fleet.votes.get(server.name, ()))
        return -bad, self._since.get(server.name, 0.0), server.name

    def _remember(self, now: float, fleet: SeenFleet) -> None:
        """Keep what counts of agents that do not answer, and of servers that were out or away."""
        before = {each.name for each in self._fleet.servers}
        for server in fleet.servers:
            is_back = server.name in self._known and server.name not in before
            if server.order is not None or is_back:
                self._counts_from[server.name] = now + _COUNTED_SECONDS
            if is_ours(server.order):
                self._trial[server.name] = now + TRIAL_SECONDS
        self._trial = {name: until for name, until in self._trial.items() if until > now}
        known = self._known | {server.name: server.agent for server in fleet.servers}
        self._known = {name: agent for name, agent in known.items() if agent in fleet.agents}
        pools: dict[str, frozenset[str]] = {}
        for server in fleet.servers:
            pools[server.agent] = pools.get(server.agent, frozenset()) | server.pools
        self._pools = {
            agent: found for agent, found in (self._pools | pools).items() if agent in fleet.agents
        }
        reads: dict[str, set[str]] = {agent: set() for agent in fleet.agents - fleet.silent}
        for name, cast in fleet.votes.items():
            for vote in cast:
                reads.setdefault(vote.agent, set()).add(name)
        now_known = {agent: frozenset(found) for agent, found in reads.items()}
        self._reads = {
            agent: found for agent, found in (self._reads | now_known).items() if agent in fleet.agents
        }
        self._counts_from = {name: at for name, at in self._counts_from.items() if at > now}

    def _on_trial(self, name: str, rule: EjectionRules) -> EjectionRules:
        """Return *rule*, or what it is while a server is on trial, as after an order of a circuit breaker: half-open."""
        return replace(rule, min_failures=1, after=0.0) if name in self._trial else rule

    def _cast(self, name: str) -> tuple[list[Vote], int]:
        """Return who accuses a server, and how many have a vote: also agents that are silent now and have read it."""
        cast = self._fleet.votes.get(name, ())
        voters = {vote.agent for vote in cast}
        silent = sum(name in self._reads.get(agent, ()) for agent in self._fleet.silent - voters)
        return [vote for vote in cast if vote.is_bad], len(cast) + silent

    def _suspects(self, now: float, rules: Mapping[str, EjectionRules]) -> set[str]:
        """Keep the evidence; return the servers that enough readers accuse."""
        found = set()
        for server in self._fleet.servers:
            rule = rules.get(server.name)
            accusers, cast = self._cast(server.name)
            agreed = rule is not None and len(accusers) >= rule.min_readers and 2 * len(accusers) > cast
            # What is out is read by nobody: what readers said of it is of before.
            if not agreed or server.order is not None:
                continue
            found.add(server.name)
            self._since.setdefault(server.name, now)
            counted = self._failures.setdefault(server.name, Counter())
            for vote in accusers if server.name not in self._counts_from else ():
                counted[vote.agent] = max(counted[vote.agent], vote.failures)
        for name in self._since.keys() - found:
            del self._since[name], self._failures[name]
        return found

    def _judge(self, scene: _Scene, server: Server, rule: EjectionRules) -> EjectionVerdict:
        rule = self._on_trial(server.name, rule)
        since, counted = self._since[server.name], self._failures[server.name]
        accusers, cast = self._cast(server.name)
        evidence = _sentence(server, accusers, cast, counted)
        if sum(counted[vote.agent] >= rule.min_failures for vote in accusers) < rule.min_readers:
            loads = "a failed load" if rule.min_failures == 1 else f"{rule.min_failures} failed loads"
            verb = "is" if rule.min_failures == 1 else "are"
            needed = f"{loads} in a minute {verb} needed at each of {rule.min_readers} readers"
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
            return f"its agent did not take the order: {self._refused[server.name][0]}"
        if server.agent in scene.unknown:
            return "whether somebody put it back is not known: its agent's audit log was not read"
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
    # A pod counts once, whatever it says it has; one that is away is as good as out.
    members = [each for each in scene.servers if pool in each.pools]
    pods = scene.pods[pool]
    gone = {each.agent for each in members if each.name in scene.out} | {server.agent}
    gone |= pods - {each.agent for each in members}
    if 100 * len(gone) > rule.max_pods_percent * len(pods):
        return (
            f"{len(gone)} of {len(pods)} pods with {pool} would be out, more than maxPodsPercent "
            f"({rule.max_pods_percent})"
        )
    if not pods - gone - {each.agent for each in members if each.name in scene.accused}:
        return f"no well pod with {pool} would be left"
    return ""


def _sentence(server: Server, accusers: Sequence[Vote], cast: int, counted: Mapping[str, int]) -> str:
    named = ", ".join(vote.agent for vote in accusers[:_NAMED])
    more = f" and {len(accusers) - _NAMED} more" if len(accusers) > _NAMED else ""
    failed = sum(counted.values())
    return (
        f"{len(accusers)} of {cast} readers ({named}{more}) blame {', '.join(server.addresses)}, "
        f"{failed} failed loads: {accusers[0].why}"
    )


def _span(seconds: float) -> str:
    return format_duration(timedelta(seconds=round(seconds)))
