"""Takes servers out of rotation by policy, while this relay holds the lease; the loop's.

It keeps nothing: what was ordered in the last hour is in the audit logs of the agents, and each order ends by itself. So does
what it saw of readers: a relay that takes the lease watches anew.
"""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from penstock.agent.policy.manifest import ejection_rules
from penstock.agent.relay.ejections.board import NOBODY
from penstock.agent.relay.ejections.rails import HISTORY_SECONDS, Act, EjectionRails
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey as EngineKeyMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.agent.parsing import Target
    from penstock.agent.policy.manifest import EjectionRules, Manifest
    from penstock.agent.relay.ejections.board import EjectionBoard
    from penstock.agent.relay.ejections.evidence import Server, Vote
    from penstock.agent.relay.ejections.rails import EjectionVerdict

LOOK_SECONDS: Final = 5.0
# What an author at an agent never begins with: a person's, over a relay, begins with "relay: ".
_AUTHOR: Final = "relay (policy "
_REFUSED_SECONDS: Final = 60.0
_MAX_WHY: Final = 300

_log = structlog.get_logger(__name__)


class HeldLease(Protocol):
    """A lease that one relay of several holds."""

    @property
    def held(self) -> bool: ...  # noqa: D102


class FleetCalls(Protocol):
    """What the agents are asked. Nothing raises: an agent that does not answer is not known."""

    async def seen(self) -> tuple[list[Server], dict[str, list[Vote]]]:
        """Return the servers, and the votes on each by its name."""

    async def audit(self) -> Sequence[tuple[str, admin.AuditEntry]]:
        """Return the newest entries of the audit logs, each with its agent's name."""

    async def order(self, agent: str, request: admin.SetEjectionRequest) -> str:
        """Give an order, which names engines as the fleet does; return why it is not taken, empty if it is."""


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
        # It was the holder, and a policy set ejection, at the last look.
        self._led = False
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
            self._rails, self._led = EjectionRails(), False
            self._board.clear("another relay leads; ask it, or this one once it does")
            return
        known = self._policies()
        if known is None:
            self._board.clear("the policies are not known: their source does not answer")
            return
        policies, targets = known
        policies = [each for each in policies if each.spec.ejection is not None]
        if not policies and not self._led:
            self._board.clear(NOBODY)
            return
        self._led = bool(policies)
        now = self._clock()
        moment = datetime.fromtimestamp(now, UTC)
        servers, votes = await self._calls.seen()
        by_key = {target.key: target for target in targets}
        rules = {
            server.name: found
            for server in servers
            if (found := _strictest(_rules(policies, by_key.get(key), moment) for key in server.keys))
        }
        history = await self._history(now) if any(rule.enforces for rule in rules.values()) and votes else []
        imagined = self._rails.imagined
        verdicts = self._rails.look(now, servers, votes, rules, history)
        self._board.orders["observed"] += self._rails.imagined - imagined
        self._board.verdicts, self._board.undecided = verdicts, "" if policies else NOBODY
        for verdict in verdicts:
            # Asking took its time.
            if verdict.word == "eject" and self._lease.held:
                await self._order(verdict, now)
        for server in servers:
            if _is_mine(server) and not (server.name in rules and rules[server.name].enforces):
                await self._end(server)

    async def _history(self, now: float) -> list[Act]:
        """Return the orders of the last hour, and their ends, from the audit logs."""
        return [
            act
            for agent, entry in await self._calls.audit()
            if (act := _act(agent, entry)) is not None and act.at > now - HISTORY_SECONDS
        ]

    async def _order(self, verdict: EjectionVerdict, now: float) -> None:
        server, policy = verdict.server, verdict.rules.policy
        request = _request(server, policy, verdict.why)
        request.ttl.FromSeconds(round(verdict.seconds))
        refused = await self._calls.order(server.agent, request)
        if refused:
            self._rails.refused(server.name, refused, now + _REFUSED_SECONDS)
        self._board.orders["refused" if refused else "enforced"] += 1
        log = _log.warning if refused else _log.info
        log(
            "a server was not taken out of rotation" if refused else "a server is taken out of rotation",
            server=server.name, policy=policy, seconds=round(verdict.seconds), why=verdict.why, refused=refused,
        )  # fmt: skip

    async def _end(self, server: Server) -> None:
        """End an order of a policy that is gone, or enforces nothing any more."""
        refused = await self._calls.order(
            server.agent, _request(server, "", "no policy enforces it any more")
        )
        _log.info("a server is put back", server=server.name, refused=refused)


def _rules(policies: Iterable[Manifest], target: Target | None, moment: datetime) -> EjectionRules | None:
    return None if target is None else ejection_rules(policies, target, moment)


def _strictest(found: Iterable[EjectionRules | None]) -> EjectionRules | None:
    """Return the rules of a server by those of its engines: it goes out as a whole, so all of them must have it so."""
    rules = list(found)
    if not rules or any(each is None for each in rules):
        return None
    given = [each for each in rules if each is not None]
    return next((each for each in given if not each.enforces), given[0])


def _is_mine(server: Server) -> bool:
    return server.order is not None and server.order.author.startswith(_AUTHOR)


def _request(server: Server, policy: str, reason: str) -> admin.SetEjectionRequest:
    return admin.SetEjectionRequest(
        selector=admin.EngineSelector(
            engines=[EngineKeyMessage(server=key.server, engine=key.engine) for key in server.keys]
        ),
        author=f"{_AUTHOR}{policy})",
        reason=reason[:_MAX_WHY],
    )


def _act(agent: str, entry: admin.AuditEntry) -> Act | None:
    """Return what an entry of an agent's audit log is of the rails; None for nothing."""
    if entry.action not in ("eject", "eject-off"):
        return None
    is_end = entry.action == "eject-off"
    try:
        own = json.loads(entry.old_manifest_json if is_end else entry.new_manifest_json)["server"]
    except (ValueError, KeyError, TypeError):
        return None
    name = f"{agent}/{own}" if own else agent
    author = "" if entry.author.startswith(_AUTHOR) else entry.author or "somebody"
    return Act(name, entry.time.ToNanoseconds() / 1e9, is_end, author)
