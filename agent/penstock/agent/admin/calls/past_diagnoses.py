"""What was wrong at a moment of the past: from the log, the audit log, and what processes that still run were then, too."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent import limits
from penstock.agent.admin.calls.engines import source_message
from penstock.agent.admin.calls.events import read_in_turn
from penstock.agent.admin.calls.orders import drill_message
from penstock.agent.admin.calls.pairs import pair_engines
from penstock.agent.admin.calls.suspects import MAX_SUSPECTS, suspects_at
from penstock.agent.admin.lookups import (
    CHANGES_READ,
    WindowQuestion,
    clock_offsets,
    key_message,
    messages,
    past_engines,
    past_orders,
    read_windows,
    selection_of,
    timestamp_message,
    view_target,
)
from penstock.agent.diagnosis import Facts, diagnose, diagnosis_message
from penstock.agent.diagnosis.facts import words
from penstock.agent.errors import ContractError, NotFoundError
from penstock.agent.pairs import list_pairs
from penstock.agent.parsing import parse_duration
from penstock.proto.names import ENGINE_CORE, NANOS
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import Peer
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN
from penstock.proto.v1.snapshot_pb2 import PeerStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from google.protobuf.timestamp_pb2 import Timestamp
    from penstock.agent.admin.lookups import AgentContext, PastEngines, PastOrders, ReadWindows
    from penstock.agent.journal import Reader
    from penstock.agent.model import EngineKey, PolicySource
    from penstock.agent.parsing import Selection, Target
    from penstock.agent.sources import EngineView, LiveSource
    from penstock.agent.traces.spans import PolicyLookup

LONGEST: Final = 7 * 86_400.0
"""Seconds; longer times are not in the log."""

# What only looks; a remedy is for what is wrong now.
_LOOKS: Final = ("agentctl describe engine ", "agentctl describe peer ", "agentctl get ", "agentctl explain ")
_SINCE: Final = re.compile(r"--since (\S+)")
_NO_SNAPSHOTS: Final = (
    "what engines held, waited for and were stuck in then, how fast peers were, and which entries were lost is not known: "
    "the log keeps no snapshots"
)


async def past_diagnosis(
    agent: AgentContext, request: admin.DiagnoseRequest, since: float, baseline: float
) -> admin.Diagnosis:
    """Return what was wrong with the selected engines at ``at``.

    Raises:
        ContractError: the log does not have that moment.
        NotFoundError: a selected engine was not known then.

    """
    now, at = int(agent.clock() * NANOS), _nanoseconds(request.at)
    _check(at, now)
    running, retire_seconds = agent.registry.sources(), agent.retirement.after

    def known(reader: Reader) -> PastEngines:
        _check_begins(reader, at)
        return past_engines(reader, at, present=running, retire_seconds=retire_seconds)

    past = await read_in_turn(agent, known)
    orders = past_orders(await agent.store.changes("", CHANGES_READ), at)
    asked = admin.ListSuspectsRequest(selector=request.selector, limit=MAX_SUSPECTS)
    asked.since.FromNanoseconds(int(since * NANOS))
    suspects = await suspects_at(agent, asked, at)
    selection = selection_of(request.selector)
    then = PastMoment.of(at, past, orders, running, selection)
    question = WindowQuestion(
        now=at,
        since=since,
        baseline=baseline,
        wanted=lambda key: selection.everything or key in then.targets,
        roles={view.key: view.role for view in then.views},
        ahead=then.ahead,
        policies=agent.policies,
        past=True,
    )

    def run(reader: Reader) -> admin.Diagnosis:
        facts = then.facts(read_windows(reader, question), agent.policies, suspects)
        return diagnosis_message(diagnose(facts), facts)

    found = await read_in_turn(agent, run)
    for cause in found.causes:
        for each in (cause, *cause.effects):
            each.commands[:] = _looking(each.commands, (now - at) / NANOS)
    return found


def _nanoseconds(moment: Timestamp) -> int:
    """Return *moment* in nanoseconds since the epoch.

    Raises:
        ContractError: it is outside the calendar.

    """
    try:
        return moment.ToNanoseconds()
    except ValueError as error:
        raise ContractError("at is no moment of the calendar; give one of the last 7 days") from error


def _check(at: int, now: int) -> None:
    """Check that a moment, nanoseconds, is in the week before *now*.

    Raises:
        ContractError: it is not.

    """
    ago = (now - at) / NANOS
    if ago < -limits.ASKER_CLOCK_SECONDS:
        raise ContractError(f"at is {_moment(at)}, which is to come; give a time up to now, {_moment(now)}")
    if ago > LONGEST:
        raise ContractError(f"at is {_moment(at)}, more than 7 days ago; give a later time")


def _check_begins(reader: Reader, at: int) -> None:
    first = reader.batch(reader.first())
    if first is None:
        raise ContractError("the log is empty: nothing is known of any time; leave at out")
    if at < first.received_unix_nano:
        begins = _moment(first.received_unix_nano)
        raise ContractError(f"at is {_moment(at)}, and the log begins at {begins}; give a later time")


def _moment(unix_nano: int) -> str:
    return f"{datetime.fromtimestamp(unix_nano // NANOS, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _looking(commands: Sequence[str], ago: float) -> list[str]:
    """Return those of *commands* that only look, and look back as far as the moment."""

    def longer(found: re.Match[str]) -> str:
        try:
            seconds = parse_duration(found[1]).total_seconds()
        except ValueError:
            return found[0]
        return f"--since {-int(-(ago + seconds) // 60)}m"

    return [_SINCE.sub(longer, each) for each in commands if each.startswith(_LOOKS)]


class PastMoment(NamedTuple):
    """What is known of the moment *at* beside the windows.

    Attributes:
        views: the selected engines.
        targets: likewise.
        running: their processes that ran then and still do, by epoch, with what they say of themselves.

    """

    at: int
    past: PastEngines
    orders: PastOrders
    views: Sequence[EngineView]
    targets: Mapping[EngineKey, Target]
    running: Mapping[int, LiveSource]

    @classmethod
    def of(
        cls,
        at: int,
        past: PastEngines,
        orders: PastOrders,
        present: Iterable[LiveSource],
        selection: Selection,
    ) -> PastMoment:
        """Return what is known of the selected engines.

        Raises:
            NotFoundError: one was not known.

        """
        known = {view.key: view_target(view) for view in past.views}
        for key in sorted(selection.keys - known.keys()):
            raise NotFoundError(
                f"engine {key} was not known at {_moment(at)}; give another one, or another time"
            )
        targets = {key: target for key, target in known.items() if selection.matches(target)}
        views = [view for view in past.views if view.key in targets]
        ran = {live.source.epoch for view in views for live in view.sources if live.connected}
        # As they are on the loop, which goes on while the log is read.
        running = {
            live.source.epoch: replace(live, clock_readings=live.clock_readings.copy())
            for live in present
            if live.source.epoch in ran and live.snapshot is not None
        }
        return cls(at, past, orders, views, targets, running)

    @property
    def ahead(self) -> dict[EngineKey, int]:
        """The clocks of the processes that still run minus the agent's, nanoseconds."""
        return clock_offsets(map(self._running, self.views))

    def _running(self, view: EngineView) -> EngineView:
        """Return an engine with its processes that still run, and what the EngineCore among them says of itself."""
        sources = [
            self.running[live.source.epoch] for live in view.sources if live.source.epoch in self.running
        ]
        facts = [
            live.snapshot.engine
            for live in sources
            if live.source.process == ENGINE_CORE
            and live.snapshot is not None
            and live.snapshot.HasField("engine")
        ]
        return replace(view, facts=facts[0] if facts else None, sources=tuple(sources))

    def facts(self, read: ReadWindows, lookup: PolicyLookup, suspects: admin.ListSuspectsResponse) -> Facts:
        """Return what a diagnosis of the moment is made of."""
        windows = (read.fold.present.waits, read.fold.present.failures)
        met = {(each.key, each.peer) for window in windows for each in window}
        return Facts(
            now=self.at,
            present=read.fold.present,
            before=read.fold.before,
            engines=[self._engine(view, self._policies(view.key, read, lookup)) for view in self.views],
            peers=self._quarantined(),
            quiet_peers=len(met - set(self.past.quarantined)),
            drills=self._drills(),
            quarantines=self._quarantines(),
            pairs=self._pairs(),
            suspects=list(suspects.suspects),
            suspects_cut=suspects.truncated,
            cleared_late_reads=frozenset(suspects.cleared_late_request_ids),
            policies=read.policies,
            policy_changes=self.orders.policy_changes,
            unreadable=read.unreadable,
            log_begins=read.log_begins,
            past=tuple(self._missing()),
        )

    def _engine(self, view: EngineView, policies: Sequence[PolicySource]) -> admin.Engine:
        """Return an engine as it was; what its process says of itself does not change while it runs."""
        applied = self.past.applied.get(view.key)
        order = self.orders.ejections.get(view.key.server)
        return admin.Engine(
            key=key_message(view.key),
            connected=view.connected,
            last_seen=timestamp_message(view.last_seen_unix_nano),
            role=messages.role_of(view.role),
            role_guessed=view.role_guessed,
            labels=dict(self.targets[view.key].labels),
            facts=self._running(view).facts,
            in_sync=True,
            paused=applied is not None and applied.paused,
            policies=messages.source_messages(policies),
            sources=map(source_message, view.sources),
            said_goodbye=view.said_goodbye,
            ejection=messages.ejection_message(order, in_force=False) if order is not None else None,
        )

    def _policies(self, key: EngineKey, read: ReadWindows, lookup: PolicyLookup) -> Sequence[PolicySource]:
        """Return the policies in force in an engine: as it had told, else those by which it decided last."""
        applied = self.past.applied.get(key)
        if applied is not None:
            return lookup(applied.source, applied.hash, self.at)
        decided = (each.policy_hash for each in read.fold.present.load_ends if each.key == key)
        return read.policies.get((key, next(filter(None, decided), "")), ())

    def _quarantined(self) -> list[admin.PeerSummary]:
        """Return the peers that engines had cut off themselves."""
        return [
            admin.PeerSummary(
                key=key_message(key),
                peer=Peer(address=peer),
                status=PeerStatus(quarantine=QUARANTINE_STATE_OPEN),
            )
            for key, peer in self.past.quarantined
            if key in self.targets
        ]

    def _quarantines(self) -> list[admin.Quarantine]:
        """Return the peers that operators had cut off."""
        return [
            admin.Quarantine(
                key=key_message(view.key),
                peer=Peer(address=order.peer),
                state=QUARANTINE_STATE_OPEN,
                reason=order.reason,
                author=order.author,
            )
            for view in self.views
            if view.connected
            for order in self.orders.quarantines_of(self.targets[view.key], self.at)
            if order.quarantined
        ]

    def _drills(self) -> list[admin.Drill]:
        """Return the drills that ran in any of the engines."""
        found = []
        for drill in self.orders.drills:
            keys = [
                view.key
                for view in self.views
                if view.connected and drill.selection.matches(self.targets[view.key])
            ]
            if keys:
                message = drill_message(drill)
                message.engines.extend(admin.EngineRollout(key=key_message(key)) for key in keys)
                found.append(message)
        return found

    def _pairs(self) -> list[admin.Pair]:
        """Return the pairs of engines both of which still run: what they differ in, they differed in then."""
        views = map(self._running, self.views)
        pairs = list_pairs(pair_engines(views, lambda _key, _now: {}, self.at)).pairs
        return [pair for pair in pairs if pair.HasField("peer_key")]

    def _missing(self) -> Iterator[str]:
        """Yield what is not known, in words."""
        yield _NO_SNAPSHOTS
        ended = [str(view.key) for view in self.views if view.connected and self._running(view).facts is None]
        if ended:
            yield f"connectors and weights of {_named(ended)} are not known: the processes of then have ended"
        unsure = [str(key) for key in self.past.unsure if key in self.targets]
        if unsure:
            yield f"whether {_named(unsure)} had come back is not known: nothing had been reported since the loss"
        if self.past.cut or self.orders.cut:
            yield "there was too much to read: orders, quarantines and policies of then may be missing"


def _named(names: Sequence[str]) -> str:
    return words.named(names, "engine")
