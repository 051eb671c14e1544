"""The call that says what is wrong."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.agent.admin.calls.engines import list_engines, suspected_peers
from penstock.agent.admin.calls.events import read_in_turn
from penstock.agent.admin.calls.orders import list_drills, list_quarantines
from penstock.agent.admin.calls.pairs import list_pairs_of
from penstock.agent.admin.calls.past_diagnoses import LONGEST, past_diagnosis
from penstock.agent.admin.calls.suspects import MAX_SUSPECTS, list_suspects
from penstock.agent.admin.lookups import (
    WindowQuestion,
    check_engine_names,
    clock_offsets,
    queue_of,
    read_windows,
    selected_views,
    selection_of,
)
from penstock.agent.diagnosis import Facts, Held, diagnose, diagnosis_message
from penstock.agent.errors import ContractError
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.duration_pb2 import Duration
    from penstock.agent.admin.lookups import AgentContext
    from penstock.agent.journal import Reader
    from penstock.agent.sources import EngineView
    from penstock.proto.v1.admin_pb2 import EngineSelector

_SINCE, _BASELINE = 600.0, 3600.0
# Of the audit log, the newest; as many as the history of policies has.
_CHANGES = 256
_OF_POLICIES = frozenset({"apply", "import", "release", "rollback", "delete"})


async def diagnose_engines(agent: AgentContext, request: admin.DiagnoseRequest) -> admin.Diagnosis:
    """Return what is wrong with the selected engines; with ``at`` what was wrong then."""
    since = _seconds(request.since, "since") if request.HasField("since") else _SINCE
    baseline = _seconds(request.baseline, "baseline") if request.HasField("baseline") else _BASELINE
    if request.HasField("at"):
        return await past_diagnosis(agent, request, since, baseline)
    selection = selection_of(request.selector)
    if selection.keys:
        check_engine_names(agent, selection)
    fields = await _asked(agent, request.selector, since)
    # Of one moment, after all that was waited for.
    views = selected_views(agent, selection)
    keys = {view.key for view in views}
    question = WindowQuestion(
        now=int(agent.clock() * 1e9),
        since=since,
        baseline=baseline,
        wanted=lambda key: selection.everything or key in keys,
        roles={view.key: view.role for view in views},
        ahead=clock_offsets(views),
        policies=agent.policies,
    )
    known = partial(Facts, now=question.now, **_of(fields, views), **_seen(agent, views))

    def run(reader: Reader) -> admin.Diagnosis:
        read = read_windows(reader, question)
        facts = known(
            present=read.fold.present,
            before=read.fold.before,
            policies=read.policies,
            unreadable=read.unreadable,
            log_begins=read.log_begins,
        )
        return diagnosis_message(diagnose(facts), facts)

    return await read_in_turn(agent, run)


async def _asked(agent: AgentContext, selector: EngineSelector, since: float) -> dict[str, Any]:
    """Return what other calls say of the selected engines: fields of the facts."""
    engines = await list_engines(agent, admin.ListEnginesRequest(selector=selector, without_counters=True))
    peers = await suspected_peers(agent, selector)
    drills = await list_drills(agent, admin.ListDrillsRequest())
    orders = await list_quarantines(agent, admin.ListQuarantinesRequest(selector=selector))
    pairs = await list_pairs_of(agent, admin.ListPairsRequest())
    asked = admin.ListSuspectsRequest(selector=selector, limit=MAX_SUSPECTS)
    asked.since.FromNanoseconds(int(since * 1e9))
    suspects = await list_suspects(agent, asked)
    changes = await agent.store.changes("", _CHANGES)
    return {
        "engines": list(engines.engines),
        "peers": list(peers.peers),
        "quiet_peers": peers.total - len(peers.peers),
        "drills": list(drills.drills),
        "quarantines": list(orders.quarantines),
        "pairs": list(pairs.pairs),
        "suspects": list(suspects.suspects),
        "suspects_cut": suspects.truncated,
        "cleared_late_reads": frozenset(suspects.cleared_late_request_ids),
        "policy_changes": {
            each.change.name: each.time_unix_nano
            for each in reversed(changes)
            if each.change.action in _OF_POLICIES
        },
    }


def _of(fields: dict[str, Any], views: Sequence[EngineView]) -> dict[str, Any]:
    """Return *fields* without the drills and pairs of other engines."""
    names = {(view.key.server, view.key.engine) for view in views}
    return {
        **fields,
        "drills": [
            each
            for each in fields["drills"]
            if any((engine.key.server, engine.key.engine) in names for engine in each.engines)
        ],
        "pairs": [pair for pair in fields["pairs"] if (pair.key.server, pair.key.engine) in names],
    }


def _seen(agent: AgentContext, views: Sequence[EngineView]) -> dict[str, Any]:
    """Return what the agent itself sees of the selected engines now: fields of the facts."""
    return {
        "awaited": {
            view.key for view in views if any(agent.is_awaited(live.source.epoch) for live in view.sources)
        },
        "held": _held(views),
        "queues": {view.key: queue for view in views if (queue := queue_of(view)) is not None},
        "look_seconds": agent.look_seconds(),
        "blind": agent.blind,
    }


def _held(views: Sequence[EngineView]) -> list[Held]:
    return [
        Held(view.key, row)
        for view in views
        for live in view.sources
        if live.snapshot is not None
        for row in live.snapshot.held
    ]


async def judgement(agent: AgentContext) -> admin.Diagnosis | None:
    """Return the newest diagnosis of all engines, for answers that quote it; None where the log cannot be read."""
    return await agent.judge.judgement(partial(diagnose_engines, agent, admin.DiagnoseRequest()))


async def keep_judging(agent: AgentContext) -> None:
    """Keep the judgement young, for the metrics, which only look; until cancelled."""
    await agent.judge.keep_judging(partial(diagnose_engines, agent, admin.DiagnoseRequest()))


def _seconds(duration: Duration, name: str) -> float:
    """Return a duration in seconds.

    Raises:
        ContractError: it is not between a second and a week.

    """
    seconds = duration.ToNanoseconds() / 1e9
    if not 1 <= seconds <= LONGEST:
        raise ContractError(f"{name} is {seconds:g} seconds; give one second to 7 days")
    return seconds
