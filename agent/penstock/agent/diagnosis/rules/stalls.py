"""What should go on in an engine and does not: loads that never begin, calls and steps that do not return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent import limits
from penstock.agent.diagnosis.facts import (
    FAILED_SECONDS,
    KV,
    RECOMPUTED_SECONDS,
    Confidence,
    Evidence,
    FoundCause,
    sane,
    words,
)
from penstock.agent.diagnosis.rules.scheduler import (
    SCHEDULER_KINDS,
    blamed_kinds,
    is_sure,
    queue_evidence,
    waited_seconds,
)
from penstock.proto.names import NANOS
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.diagnosis.facts import Attribution, Facts
    from penstock.agent.model import EngineKey
    from penstock.proto.v1 import admin_pb2 as admin

# What an engine counts for that stands still, beside its requests, seconds.
_STANDS_SECONDS = 30.0
_STACKS: Final = "agentctl debug stacks {engine}"
_DESCRIBE: Final = "agentctl describe engine {engine}"
_QUEUED: Final = "agentctl get requests --queued"


class _StallWords(NamedTuple):
    """One kind of stall.

    Attributes:
        alternatives: what else it could be.
        commands: what to run next; ``{engine}`` stands for the engine's name, ``{window}`` and ``{both}`` for times that were
            looked at.
        stands: requests of the engine wait until it is over.

    """

    alternatives: tuple[str, ...]
    commands: tuple[str, ...]
    stands: bool = True


_KINDS: Final[dict[str, _StallWords]] = {
    "load_not_started": _StallWords(
        (
            "the router's kv_transfer_params lack an address or are for another connector: the engine's log names 'KVTransferParams'",
            "a peer that pushes and never does: ask the agent of the prefill engine",
        ),
        ("agentctl get requests --deferred", _DESCRIBE),
    ),
    "load_missing": _StallWords(
        (
            "the connector of this engine is not the one that the parameters are for",
            "the store or the peer no longer has the blocks",
        ),
        ("agentctl get requests --slow --since {window}", _DESCRIBE),
        stands=False,
    ),
    "call_stuck": _StallWords(
        ("a store that is slow and not stuck", "a peer or a disk that the connector waits for"),
        (_STACKS, _DESCRIBE),
    ),
    "step_stuck": _StallWords(
        ("one rank that others wait for", "a step that compiles kernels: the first ones of an engine"),
        (_STACKS, _DESCRIBE),
    ),
    "thread_dead": _StallWords(
        (
            "an exception of the connector: the engine's log has it, and only a restart starts that thread again",
        ),
        (_STACKS, _DESCRIBE),
    ),
    "worker_silent": _StallWords(
        ("its process is stopped or starved of CPU", "a collective that waits for another rank"),
        (_STACKS, _DESCRIBE),
    ),
    "no_capacity": _StallWords(
        (
            "its readers or peers are slow and not gone: the age of what they hold tells",
            "one prompt that needs almost all of the cache, and that waits for the last holder",
        ),
        (_QUEUED, _DESCRIBE),
    ),
    "scheduler_paused": _StallWords(
        ("somebody sleeps the engine or updates its weights, and is not done: who calls /pause or /sleep?",),
        (_QUEUED, _DESCRIBE),
    ),
    "steps_without_tokens": _StallWords(
        ("a reason to wait that this Penstock does not know: the engine's log and vLLM's version tell",),
        (_STACKS, _QUEUED, _DESCRIBE),
    ),
    "no_steps": _StallWords(
        (
            "a call that the engine carries out between two steps, such as loading an adapter",
            "another data-parallel rank that it waits for",
        ),
        (_STACKS, _QUEUED, _DESCRIBE),
    ),
    "rebalance_overdue": _StallWords(
        ("one rank has left the balancer's collectives: compare the ranks' logs",),
        (_STACKS, "agentctl get events --channel eplb --since {both}"),
        stands=False,
    ),
    "rebalance_unfinished": _StallWords(
        ("one rank that the others wait for: agentctl describe engine names it",),
        (_STACKS, _DESCRIBE),
        stands=False,
    ),
}


def stall_causes(facts: Facts, shares: Attribution) -> Iterator[FoundCause]:
    """Yield a cause for each stall; a router that sends no parameters has a rule of its own."""
    for engine in facts.engines:
        for stall in engine.stalls:
            kind = _KINDS.get(stall.kind)
            if kind is not None:
                yield _cause(facts, shares, engine, stall, kind)
        for stall in engine.ended_stalls:
            kind = _KINDS.get(stall.kind)
            if kind is not None and stall.until.ToNanoseconds() >= facts.now - facts.present.seconds * NANOS:
                yield _ended(facts, engine, stall, kind)


def _commands(facts: Facts, key: EngineKey, kind: _StallWords) -> tuple[str, ...]:
    window, both = facts.present.seconds, facts.present.seconds + facts.before.seconds
    times = {"window": words.window(window), "both": words.window(both)}
    return tuple(command.format(engine=key, **times) for command in kind.commands)


def _may_be_late(stall: admin.Stall, age: float) -> bool:
    """Return whether a worker that says nothing may only be short of CPU time, or an engine without room gets some at once."""
    return (stall.kind == "worker_silent" and age < limits.SILENT_SURE_SECONDS) or not is_sure(stall, age)


def _readers(shares: Attribution, engine: admin.Engine) -> tuple[int, float]:
    """Return how many requests of other engines that read from *engine* failed, and the seconds that they waited too long."""
    trouble = shares.peers.get((KV, engine.facts.side_channel))
    if trouble is None or not engine.facts.side_channel:
        return 0, 0.0
    if any(each.error_type == common.ERROR_TYPE_WRONG_ENGINE for each in trouble.failures):
        # Who asks it for another engine's blocks does not fail because it stands still.
        return 0, 0.0
    failed = sum(each.outcome == common.OUTCOME_FAILED for each in trouble.load_ends)
    late = sum(each.excess for each in (*trouble.slow, *trouble.delayed))
    return failed, late + sum(each.age * each.number for each in trouble.present)


def _ended(facts: Facts, engine: admin.Engine, stall: admin.Stall, kind: _StallWords) -> FoundCause:
    """Return the cause about a stall that is over: what it did to requests is not known any more."""
    key = words.key_of(engine.key)
    until = stall.until.ToNanoseconds()
    with_it = not engine.connected and abs(engine.last_seen.ToNanoseconds() - until) < NANOS
    goodbye = (Evidence(f"engine {key} said goodbye and ended then"),) if with_it else ()
    return FoundCause(
        stall.kind,
        f"engine {key}: {words.cut(stall.sentence)}",
        (key,),
        (Evidence(f"for {words.span(_seconds(stall))}"), *goodbye),
        peer="" if stall.peer == "unknown" else stall.peer,
        since=sane(facts, stall.since.ToNanoseconds()),
        until=sane(facts, until) or facts.now,
        other_harm=_STANDS_SECONDS,
        confidence=Confidence.CERTAIN,
        alternatives=kind.alternatives,
        commands=(_DESCRIBE.format(engine=key),),
    )


def _seconds(stall: admin.Stall) -> float:
    return max(1.0, (stall.until.ToNanoseconds() - stall.since.ToNanoseconds()) / NANOS)


def _cause(
    facts: Facts, shares: Attribution, engine: admin.Engine, stall: admin.Stall, kind: _StallWords
) -> FoundCause:
    key = words.key_of(engine.key)
    age = max(0.0, (facts.now - stall.since.ToNanoseconds()) / NANOS)
    waiting = sum(row.count for row in engine.deferred)
    of_queue = stall.kind in SCHEDULER_KINDS
    requests = stall.count if of_queue or stall.kind in {"load_not_started", "load_missing"} else waiting
    seconds = (
        waited_seconds(facts, key, stall) if of_queue else age * max(1, requests) if kind.stands else 0.0
    )
    evidence = [Evidence(f"since {words.span(max(1.0, age))}")]
    if of_queue:
        evidence += queue_evidence(facts, key, stall, engine)
    elif waiting and kind.stands:
        evidence.append(
            Evidence(f"{words.count(waiting, 'request waits', 'requests wait')} in this engine now")
        )
    failed, late = _readers(shares, engine) if kind.stands else (0, 0.0)
    if failed or late:
        waited = f", requests waited {words.span(late)} longer than usual" if late else ""
        evidence.append(
            Evidence(f"in the engines that read from it: {words.count(failed, 'request')} failed{waited}")
        )
    # What may only be late has done nothing to others.
    late_only = _may_be_late(stall, age)
    standing = _STANDS_SECONDS + (0.0 if late_only else FAILED_SECONDS * failed + late)
    return FoundCause(
        stall.kind,
        f"engine {key}: {words.cut(stall.sentence)}",
        (key,),
        tuple(evidence),
        peer="" if stall.peer == "unknown" else stall.peer,
        since=sane(facts, stall.since.ToNanoseconds()),
        requests=requests,
        seconds=seconds,
        other_harm=standing if kind.stands else RECOMPUTED_SECONDS * max(1, stall.count),
        confidence=Confidence.POSSIBLE if late_only else Confidence.CERTAIN,
        alternatives=kind.alternatives,
        commands=_commands(facts, key, kind),
        blamed=blamed_kinds(facts, key, stall, engine) if of_queue else frozenset(),
    )
