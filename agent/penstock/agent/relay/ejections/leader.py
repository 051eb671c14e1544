"""Takes servers out of rotation by policy, while this relay holds the lease; the loop's.

It keeps nothing: what was ordered in the last hour is in the audit logs of the agents, and each order ends by itself. So does
what it saw of readers: a relay that takes the lease watches anew.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from penstock.agent.policy.manifest import ejection_rules, strictest
from penstock.agent.relay.ejections.authors import author_of, is_leader, is_ours
from penstock.agent.relay.ejections.board import NOBODY
from penstock.agent.relay.ejections.rails import HISTORY_SECONDS, MOST_SECONDS, Act, ActHistory, EjectionRails
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey as EngineKeyMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.agent.parsing import Target
    from penstock.agent.policy.manifest import EjectionRules, Manifest
    from penstock.agent.relay.ejections.board import EjectionBoard
    from penstock.agent.relay.ejections.evidence import SeenFleet, Server
    from penstock.agent.relay.ejections.rails import EjectionVerdict

LOOK_SECONDS: Final = 5.0
ACTIONS: Final = ("eject", "eject-off")
"""Of the audit log."""
# Of a clock that is not as far ahead as its agent says.
_AHEAD_SECONDS: Final = 60.0
_REFUSED_SECONDS: Final = 60.0
_MAX_WHY: Final = 300

_log = structlog.get_logger(__name__)


class HeldLease(Protocol):
    """A lease that one relay of several holds."""

    @property
    def held(self) -> bool: ...  # noqa: D102


class FleetCalls(Protocol):
    """What the agents are asked. Nothing raises: an agent that does not answer is not known."""

    async def seen(self) -> SeenFleet:
        """Return the servers, and the votes on each."""

    async def audit(
        self,
    ) -> tuple[Mapping[str, Sequence[tuple[float, admin.AuditEntry]]], frozenset[str]]:
        """Return the newest entries with :data:`ACTIONS` by agent, and all agents; with each how far its clock is ahead, seconds."""

    async def order(
        self,
        agent: str,
        request: admin.SetEjectionRequest,
        is_due: Callable[[admin.Ejection | None], bool],
    ) -> str:
        """Give an order, which names engines as the fleet does; return why it is not taken, empty if it is.

        Args:
            is_due: is asked just before about the order that is there then.

        """


class EjectionLeader:
    """Looks, and orders what the rails let through.

    Attributes:
        error: why the last look failed; empty if it did not.

    """

    def __init__(
        self,
        calls: FleetCalls,
        lease: HeldLease,
        policies: Callable[[], tuple[Iterable[Manifest], Iterable[Target]] | None],
        board: EjectionBoard,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Lead.

        Args:
            calls: to the agents.
            lease: only its holder orders.
            policies: returns the policies of the source as they are now, and the engines as selectors see them; None where
                they are not known.
            board: is told the verdicts.
            clock: seconds since the epoch.

        """
        self._calls = calls
        self._lease = lease
        self._policies = policies
        self._board = board
        self._clock = clock
        self._rails = EjectionRails()
        # Without a policy: until when orders are looked for that are to end.
        self._busy_until = math.inf
        # Of each agent, from its last answer.
        self._acts: dict[str, list[Act]] = {}
        self.error = ""

    async def run(self) -> None:
        """Look every 5 s until cancelled."""
        while True:
            try:
                await self.look()
                self.error = ""
            except Exception as error:  # noqa: BLE001  (a bug must not end the loop)
                _log.exception("ejections could not be decided; retrying")
                self.error = f"an error of the relay ({type(error).__name__}); its log has more"
                self._board.clear(self.error)
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Judge each server, and order what is to be."""
        if not self._lease.held:
            self._rails, self._busy_until, self._acts = EjectionRails(), math.inf, {}
            self._board.clear("another relay leads; ask it, or this one once it does")
            return
        known = self._policies()
        if known is None:
            self._board.clear(
                "the policies are not known: this relay has just begun to lead, or cannot read them"
            )
            return
        now = self._clock()
        all_policies, targets = known
        policies = [each for each in all_policies if each.spec.ejection is not None]
        # Orders of a policy that has gone, or of a leader before, are ended: for as long as one can last.
        self._busy_until = math.inf if policies else min(self._busy_until, now + MOST_SECONDS)
        if now >= self._busy_until:
            self._board.clear(NOBODY)
            return
        fleet = await self._calls.seen()
        rules = _rules_of(policies, targets, fleet.servers, now)
        may_follow = self._rails.look(now, fleet, rules)
        history = await self._history(now) if may_follow else ActHistory()
        imagined = self._rails.imagined
        verdicts = self._rails.judge(rules, history)
        self._board.orders["observed"] += self._rails.imagined - imagined
        self._board.verdicts, self._board.undecided = verdicts, "" if policies else NOBODY
        for index, verdict in enumerate(verdicts):
            # Asking took its time.
            if verdict.word == "eject" and self._lease.held:
                refused = await self._order(verdict, now)
                if refused:
                    why = f"{verdict.why}; its agent did not take the order: {refused}"
                    verdicts[index] = verdict._replace(word="held_back", why=why)
        by_key = {target.key for target in targets}
        left = 0
        for server in fleet.servers:
            enforced = server.name in rules and rules[server.name].enforces
            if is_ours(server.order) and not enforced and by_key.issuperset(server.keys):
                left += 1
                await self._end(server)
        if not policies and not left and not fleet.silent:
            self._busy_until = now

    async def _history(self, now: float) -> ActHistory:
        """Return the orders of the last hour, and their ends, from the audit logs; of an agent that is silent what it said before."""
        said, agents = await self._calls.audit()
        for agent, entries in said.items():
            acts = [act for ahead, entry in entries if (act := _act(agent, entry, ahead)) is not None]
            self._acts[agent] = [act for act in acts if now - HISTORY_SECONDS < act.at < now + _AHEAD_SECONDS]
        self._acts = {agent: acts for agent, acts in self._acts.items() if agent in agents}
        return ActHistory(
            [act for acts in self._acts.values() for act in acts if act.at > now - HISTORY_SECONDS],
            agents - said.keys(),
        )

    async def _order(self, verdict: EjectionVerdict, now: float) -> str:
        server, policy = verdict.server, verdict.rules.policy
        request = _request(server, policy, verdict.why)
        request.ttl.FromSeconds(round(verdict.seconds))
        refused = await self._calls.order(server.agent, request, lambda order: order is None)
        if refused:
            self._rails.refused(server.name, refused, now + _REFUSED_SECONDS)
        self._board.orders["refused" if refused else "enforced"] += 1
        log = _log.warning if refused else _log.info
        log(
            "a server was not taken out of rotation" if refused else "a server is taken out of rotation",
            server=server.name, policy=policy, seconds=round(verdict.seconds), why=verdict.why, refused=refused,
        )  # fmt: skip
        return refused

    async def _end(self, server: Server) -> None:
        """End an order of a policy that is gone, or enforces nothing any more."""
        request = _request(server, "", "no policy enforces it any more")
        refused = await self._calls.order(server.agent, request, is_ours)
        if refused:
            _log.warning("a server was not put back; retrying", server=server.name, why=refused)
        else:
            _log.info("a server is put back", server=server.name)


def _rules_of(
    policies: Sequence[Manifest], targets: Iterable[Target], servers: Iterable[Server], now: float
) -> dict[str, EjectionRules]:
    """Return the rules of each server that policies are about, by its name."""
    moment = datetime.fromtimestamp(now, UTC)
    by_key = {target.key: ejection_rules(policies, target, moment) for target in targets} if policies else {}
    found = {server.name: strictest([by_key.get(key) for key in server.keys]) for server in servers}
    return {name: rules for name, rules in found.items() if rules is not None}


def _request(server: Server, policy: str, reason: str) -> admin.SetEjectionRequest:
    return admin.SetEjectionRequest(
        selector=admin.EngineSelector(
            engines=[EngineKeyMessage(server=key.server, engine=key.engine) for key in server.keys]
        ),
        author=author_of(policy),
        reason=reason[:_MAX_WHY],
    )


def _act(agent: str, entry: admin.AuditEntry, ahead: float) -> Act | None:
    """Return what an entry of an agent's audit log is of the rails, None for nothing; *ahead*: of its clock, seconds."""
    if entry.action not in ACTIONS:
        return None
    is_end = entry.action == "eject-off"
    try:
        own = json.loads(entry.old_manifest_json if is_end else entry.new_manifest_json)["server"]
        at = entry.time.ToNanoseconds() / 1e9 - ahead
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    name = f"{agent}/{own}" if own else agent
    return Act(name, at, is_end, "" if is_leader(entry.author) else entry.author or "somebody")
