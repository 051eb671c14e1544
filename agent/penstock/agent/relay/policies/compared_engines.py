"""The engines of a fleet as the leader of its roll-outs compares them: what agents say, from look to look. Pure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.agent.model import EngineKey
from penstock.agent.parsing import Target
from penstock.agent.policy.rollouts import EngineCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.proto.v1 import admin_pb2 as admin

# A list does without a few agents that answer late: what those counted meanwhile is of this step.
_LATE_SECONDS = 12.0


class ComparedEngines:
    """What the engines of all agents have counted since this relay first saw them.

    An agent that is away in a look keeps its engines, which add nothing meanwhile; if it is away for longer, what they
    count until it is back is left out, for it is of earlier steps. What an engine counted before the first look is
    of no roll-out that this relay has seen.

    Attributes:
        refusing: the engines that refuse what they were sent.
        silent: agents of an older version, whose engines are not compared.

    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without engines; *clock*: monotonic seconds."""
        self._clock = clock
        self._targets: dict[str, dict[EngineKey, Target]] = {}
        # When each agent answered last.
        self._answered: dict[str, float] = {}
        self._last: dict[EngineKey, EngineCounts] = {}
        self._totals: dict[EngineKey, EngineCounts] = {}
        self.refusing: frozenset[EngineKey] = frozenset()
        self.silent: frozenset[str] = frozenset()

    def look(self, agents: Iterable[str], answers: Mapping[str, Iterable[admin.Engine]]) -> None:
        """Take what the agents say now.

        Args:
            agents: all agents of the fleet.
            answers: the engines of those that answered, with the agents' own keys.

        """
        for gone in self._targets.keys() - set(agents):
            self._forget(self._targets.pop(gone))
            self._answered.pop(gone, None)
        self._forget_late(answers)
        answered: set[EngineKey] = set()
        refusing: set[EngineKey] = set()
        silent = set(self.silent) & set(agents) - answers.keys()
        for agent, engines in answers.items():
            found: dict[EngineKey, Target] = {}
            for engine in engines:
                if not engine.HasField("compared"):
                    silent.add(agent)
                    continue
                target = _target(agent, engine)
                found[target.key] = target
                self._count(target.key, engine.compared)
                if engine.compared.refuses:
                    refusing.add(target.key)
            before = self._targets.get(agent, {})
            answered |= before.keys() | found.keys()
            self._forget(before.keys() - found.keys())
            self._targets[agent] = found
        self.refusing = frozenset(refusing | (self.refusing - answered))
        self.silent = frozenset(silent)

    def targets(self) -> list[Target]:
        """Return the engines, as selectors see them."""
        return [target for engines in self._targets.values() for target in engines.values()]

    def counts(self) -> dict[EngineKey, EngineCounts]:
        """Return what each has counted since this relay first saw it."""
        return dict(self._totals)

    def trouble(self) -> str:
        """Return a sentence about agents that do not give what is compared; empty without any."""
        if not self.silent:
            return ""
        return (
            f"the engines of {', '.join(sorted(self.silent)[:3])} are not compared ({len(self.silent)} agents are of an "
            "older version); upgrade them"
        )

    def _count(self, key: EngineKey, compared: admin.ComparedEngine) -> None:
        now = EngineCounts(
            compared.requests, compared.failed, compared.deferred_seconds, compared.recomputed_tokens
        )
        more = now.since(self._last.get(key, now))
        self._totals[key] = self._totals.get(key, EngineCounts()).adding(more)
        self._last[key] = now

    def _forget_late(self, answers: Iterable[str]) -> None:
        """Begin anew with the engines of agents whose last answer is too long ago."""
        now = self._clock()
        self._answered |= dict.fromkeys(answers, now)
        for agent, engines in self._targets.items():
            if now - self._answered[agent] > _LATE_SECONDS:
                for key in engines:
                    self._last.pop(key, None)

    def _forget(self, keys: Iterable[EngineKey]) -> None:
        for key in keys:
            self._last.pop(key, None)
            self._totals.pop(key, None)


def _target(agent: str, engine: admin.Engine) -> Target:
    server = f"{agent}/{engine.key.server}" if engine.key.server else agent
    key = EngineKey(server, engine.key.engine)
    return Target(key, engine.compared.model, dict(engine.labels), engine.compared.identity)
