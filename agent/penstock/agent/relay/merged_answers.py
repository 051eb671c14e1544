"""Makes one answer of the answers of many agents, as one agent with all engines would give it. Pure.

Each function takes the answers by agent's name, in the order of the names, and may change them. The server of an engine behind
a relay begins with its agent's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.agent.admin.lookups import DEFAULT_SLOW, ORDERS, add_waiting
from penstock.agent.bill import bounded_lines, sum_costs
from penstock.agent.diagnosis import merge_diagnoses
from penstock.agent.pairs import list_pairs
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.proto.v1.snapshot_pb2 import WaitingRequests

_SEPARATOR = "/"


def qualify(key: EngineKey, agent: str) -> None:
    """Put the agent's name before the server of *key*, which is changed."""
    key.server = f"{agent}{_SEPARATOR}{key.server}" if key.server else agent


def qualify_all(keys: Iterable[EngineKey], agent: str) -> None:
    """Put the agent's name before the server of each of *keys*."""
    for key in keys:
        qualify(key, agent)


def agent_of(key: EngineKey) -> str:
    """Return the name of the agent that a qualified *key* is of."""
    return key.server.partition(_SEPARATOR)[0]


def own_key(key: EngineKey, agent: str) -> EngineKey | None:
    """Return *key* as the agent knows it; None if it is another agent's."""
    name, _, server = key.server.partition(_SEPARATOR)
    return EngineKey(server=server, engine=key.engine) if name == agent else None


def own_selector(selector: admin.EngineSelector, agent: str) -> admin.EngineSelector | None:
    """Return *selector* for one agent; None if it names engines and all are others' engines."""
    if not selector.engines:
        return selector
    own = [found for key in selector.engines if (found := own_key(key, agent)) is not None]
    if not own:
        return None
    return admin.EngineSelector(labels=selector.labels, models=selector.models, engines=own)


_MAX_REQUESTS = 10_000
_MAX_EVENTS = 10_000
_MAX_AUDIT = 10_000
_DEFAULT = 100
# Agents without a diagnosis that are named.
_LISTED = 20
_OF_NOW = "its version answers for now only; upgrade it"
_NO_PAIRS = "what engines of two agents differed in then is not known: agents keep what engines are, and not what they were"

Named = tuple[str, Any]


_MAX_UINT32, _MAX_UINT64 = (1 << 32) - 1, (1 << 64) - 1


def engines(answers: Sequence[Named], _: admin.ListEnginesRequest) -> admin.ListEnginesResponse:
    """Return all engines, agent by agent."""
    merged = admin.ListEnginesResponse()
    for name, answer in answers:
        for engine in answer.engines:
            qualify(engine.key, name)
        merged.engines.extend(answer.engines)
    return merged


def pairs(answers: Sequence[Named], _: admin.ListPairsRequest) -> admin.ListPairsResponse:
    """Return the pairs of all engines, computed again from what each agent tells of its own."""
    found: list[admin.PairEngine] = []
    for name, answer in answers:
        for engine in answer.engines:
            qualify(engine.key, name)
        found += answer.engines
    return list_pairs(found)


def holders(answers: Sequence[Named], _: admin.ListHoldersRequest) -> admin.ListHoldersResponse:
    """Return who holds blocks, agent by agent."""
    merged = admin.ListHoldersResponse()
    for name, answer in answers:
        qualify_all((each.key for each in answer.holders), name)
        qualify_all(answer.unknown, name)
        merged.holders.extend(answer.holders)
        merged.unknown.extend(answer.unknown)
    return merged


def requests(answers: Sequence[Named], asked: admin.ListRequestsRequest) -> admin.ListRequestsResponse:
    """Return the requests of all, sorted and cut as those of one."""
    merged = admin.ListRequestsResponse()
    found: list[admin.RequestSummary] = []
    waiting: dict[int, WaitingRequests] = {}
    for name, answer in answers:
        for request in answer.requests:
            qualify(request.key, name)
        found += answer.requests
        merged.truncated |= answer.truncated
        merged.unnamed_deferred = min(merged.unnamed_deferred + answer.unnamed_deferred, _MAX_UINT32)
        merged.running = min(merged.running + answer.running, _MAX_UINT32)
        merged.unnamed_queued = min(merged.unnamed_queued + answer.unnamed_queued, _MAX_UINT32)
        for row in answer.waiting:
            add_waiting(waiting, row)
        qualify_all(answer.unknown_queues, name)
        merged.unknown_queues.extend(answer.unknown_queues)
        merged.unreadable_batches = min(merged.unreadable_batches + answer.unreadable_batches, _MAX_UINT32)
    merged.waiting.extend(waiting[reason] for reason in sorted(waiting))
    natural = "age" if asked.deferred or asked.queued else DEFAULT_SLOW if asked.slow else "time"
    limit = min(asked.limit or _DEFAULT, _MAX_REQUESTS)
    # What is cut depends on the kind of list, not on its order.
    cut = asked.sort if asked.slow and asked.sort in {"duration", "wait"} else natural
    found.sort(key=ORDERS[cut])
    merged.truncated |= len(found) > limit
    merged.requests.extend(sorted(found[:limit], key=ORDERS[asked.sort or natural]))
    return merged


def events(answers: Sequence[Named], asked: admin.ListEventsRequest) -> admin.ListEventsResponse:
    """Return the newest events of all, oldest first."""
    merged = admin.ListEventsResponse()
    found: list[admin.LoggedEvent] = []
    for name, answer in answers:
        for event in answer.events:
            name_event(event, name)
        found += answer.events
        merged.truncated |= answer.truncated
        merged.unreadable_batches = min(merged.unreadable_batches + answer.unreadable_batches, _MAX_UINT32)
    limit = min(asked.limit or _DEFAULT, _MAX_EVENTS)
    # An agent's own order stays: its clock is not another's.
    found.sort(key=lambda event: event.event.time_unix_nano)
    merged.truncated |= len(found) > limit
    merged.events.extend(found[-limit:])
    return merged


def name_event(event: admin.LoggedEvent, agent: str) -> None:
    """Name the agent of an event, which is changed."""
    qualify(event.key, agent)
    event.agent = agent


def policies(answers: Sequence[Named], _: admin.ListPoliciesRequest) -> admin.ListPoliciesResponse:
    """Return each policy once for each content that it has somewhere; its engines are summed."""
    merged: dict[tuple[str, str, str], admin.Policy] = {}
    for _name, answer in answers:
        for policy in answer.policies:
            present = merged.setdefault((policy.name, policy.manifest_json, policy.owner), policy)
            if present is policy:
                continue
            for field in ("engines_selected", "engines_in_force", "engines_paused", "engines_matched"):
                setattr(present, field, min(getattr(present, field) + getattr(policy, field), _MAX_UINT32))
            present.generation = max(present.generation, policy.generation)
            if policy.changed.ToNanoseconds() > present.changed.ToNanoseconds():
                present.changed.CopyFrom(policy.changed)
    return admin.ListPoliciesResponse(policies=[merged[key] for key in sorted(merged)])


def audit(answers: Sequence[Named], asked: admin.ListAuditRequest) -> admin.ListAuditResponse:
    """Return the newest entries of all, newest first; the author says at which agent."""
    found: list[admin.AuditEntry] = []
    for name, answer in answers:
        for entry in answer.entries:
            entry.author = f"{entry.author} at {name}" if entry.author else f"at {name}"
        found += answer.entries
    found.sort(key=lambda entry: -entry.time.ToNanoseconds())
    return admin.ListAuditResponse(entries=found[: min(asked.limit or _DEFAULT, _MAX_AUDIT)])


def quarantines(answers: Sequence[Named], _: admin.ListQuarantinesRequest) -> admin.ListQuarantinesResponse:
    """Return the quarantines of all."""
    merged = admin.ListQuarantinesResponse()
    for name, answer in answers:
        for each in answer.quarantines:
            qualify(each.key, name)
        merged.quarantines.extend(answer.quarantines)
    return merged


def diagnosis(
    answers: Sequence[Named],
    request: admin.DiagnoseRequest,
    missing: Sequence[tuple[str, str]] = (),
    between: Sequence[admin.DiagnosedCause] = (),
) -> admin.Diagnosis:
    """Return the diagnosis of all, with what is wrong *between* agents; causes of one kind about one peer are one.

    While agents are *missing*, each with the reason why, it is not known that nothing is wrong.
    """
    for name, answer in answers:
        for cause in answer.causes:
            for each in (cause, *cause.effects):
                qualify_all(each.engines, name)
    merged = merge_diagnoses(answers, between, past=request.HasField("at"))
    merged.missing.extend(f"{name}: no diagnosis: {reason}" for name, reason in missing[:_LISTED])
    if len(missing) > _LISTED:
        merged.missing.append(f"no diagnosis of {len(missing) - _LISTED} more agents")
    if missing and merged.verdict == admin.DIAGNOSIS_VERDICT_NOTHING_WRONG:
        every = len(answers) + len(missing)
        merged.verdict = admin.DIAGNOSIS_VERDICT_CANNOT_TELL
        merged.sentence = f"I cannot tell: {len(missing)} of {every} agents gave no diagnosis"
    return merged


def past_diagnosis(
    answers: Sequence[Named], request: admin.DiagnoseRequest, missing: Sequence[tuple[str, str]] = ()
) -> admin.Diagnosis:
    """Return the diagnosis of all of a moment of the past; an agent that has answered for now is missing."""
    known = [(name, answer) for name, answer in answers if answer.at == request.at]
    older = [(name, _OF_NOW) for name, answer in answers if answer.at != request.at]
    merged = diagnosis(known, request, [*missing, *older])
    merged.at.CopyFrom(request.at)
    merged.missing.append(_NO_PAIRS)
    return merged


def what_if(answers: Sequence[Named], _: admin.WhatIfRequest) -> admin.WhatIfResponse:
    """Return what each agent has replayed of its own log."""
    merged = admin.WhatIfResponse()
    for name, answer in answers:
        for engine in answer.engines:
            qualify(engine.key, name)
        merged.engines.extend(answer.engines)
        merged.entries = min(merged.entries + answer.entries, (1 << 64) - 1)
        merged.truncated |= answer.truncated
        merged.unreadable_batches = min(merged.unreadable_batches + answer.unreadable_batches, _MAX_UINT32)
    return merged


def drills(answers: Sequence[Named], _: admin.ListDrillsRequest) -> admin.ListDrillsResponse:
    """Return the drills of all; an id begins with the agent's name."""
    merged = admin.ListDrillsResponse()
    for name, answer in answers:
        for each in answer.drills:
            name_drill(each, name)
        merged.drills.extend(answer.drills)
    return merged


def name_drill(drill: admin.Drill, agent: str) -> None:
    """Name the agent of a drill, which is changed."""
    drill.id = f"{agent}/{drill.id}"
    qualify_all(drill.spec.selector.engines, agent)
    qualify_all((each.key for each in drill.engines), agent)


def rollouts(
    answers: Sequence[Named], _: admin.ListPolicyRolloutsRequest
) -> admin.ListPolicyRolloutsResponse:
    """Return the roll-outs of all; the author says at which agent."""
    merged = admin.ListPolicyRolloutsResponse()
    for name, answer in answers:
        for each in answer.rollouts:
            each.author = f"{each.author} at {name}"
        merged.rollouts.extend(answer.rollouts)
    return merged


def delivery(parts: Iterable[Named], *, missing: Iterable[tuple[str, str]] = ()) -> admin.Rollout:
    """Return the progress of all; *missing* are agents whose engines are not known."""
    merged = admin.Rollout(done=True)
    for name, part in parts:
        copy = admin.Rollout()
        copy.CopyFrom(part)
        qualify_all((each.key for each in copy.engines), name)
        merged.engines.extend(copy.engines)
        merged.store_generation = max(merged.store_generation, copy.store_generation)
        merged.done &= copy.done
    for name, reason in missing:
        engine = merged.engines.add(state="disconnected", error=f"its agent does not answer: {reason}")
        engine.key.server = name
        merged.done = False
    return merged


def trace(answers: Sequence[Named]) -> admin.Trace:
    """Return the spans of all sides of a request, parents before children, each once."""
    merged = admin.Trace(trace_id=next((answer.trace_id for _, answer in answers if answer.trace_id), ""))
    found: dict[str, admin.Span] = {}
    for name, answer in answers:
        for span in answer.spans:
            if span.HasField("key"):
                qualify(span.key, name)
            found.setdefault(span.span_id, span)
        merged.unreadable_batches = min(merged.unreadable_batches + answer.unreadable_batches, _MAX_UINT32)
    merged.spans.extend(_parents_first(sorted(found.values(), key=lambda span: span.start_time_unix_nano)))
    return merged


def _parents_first(spans: Iterable[admin.Span]) -> list[admin.Span]:
    children: dict[str, list[admin.Span]] = {}
    known = {span.span_id: span for span in spans}
    for span in known.values():
        parent = span.parent_span_id if span.parent_span_id in known else ""
        children.setdefault(parent, []).append(span)
    ordered: list[admin.Span] = []
    waiting = children.pop("", [])[::-1]
    while waiting:
        span = waiting.pop()
        ordered.append(span)
        waiting += children.pop(span.span_id, [])[::-1]
    # Spans that are each other's parents: wrong, and not lost.
    return ordered + [span for group in children.values() for span in group]


def explanation(answers: Sequence[Named], clocks: Callable[[str], tuple[float, float]]) -> admin.Explanation:
    """Return what all sides say, each once, and how far their clocks are apart.

    Args:
        answers: of the agents that know the request.
        clocks: the offset of an agent's clock and its uncertainty, seconds.

    """
    merged = admin.Explanation(
        request_id=answers[0][1].request_id,
        trace_id=next((answer.trace_id for _, answer in answers if answer.trace_id), ""),
    )
    for name, answer in answers:
        prefix = f"{name}: " if len(answers) > 1 else ""
        merged.sentences.extend(prefix + sentence for sentence in answer.sentences)
        merged.wait_parts.extend(answer.wait_parts)
        merged.unreadable_batches = min(merged.unreadable_batches + answer.unreadable_batches, _MAX_UINT32)
    first, *others = [name for name, _ in answers]
    for other in others:
        (at, one), (there, two) = clocks(first), clocks(other)
        merged.sentences.append(_apart(first, other, there - at, (one + two) / 2))
    return merged


def _apart(first: str, other: str, seconds: float, uncertainty: float) -> str:
    exact = f"(±{uncertainty * 1e3:.1f} ms)"
    if abs(seconds) <= uncertainty:
        return f"The clocks of {first} and {other} agree {exact}."
    way = "ahead of" if seconds > 0 else "behind"
    return f"The clock of {other} is {abs(seconds) * 1e3:.1f} ms {way} that of {first} {exact}."


def merge_bills(answers: Sequence[tuple[str, Any]], _: admin.GetBillRequest) -> admin.Bill:
    """Return the lines of all agents, the most expensive first; a line that sums several engines stays without one."""
    merged = admin.Bill()
    lines: list[admin.BillLine] = []
    for name, answer in answers:
        for line in answer.lines:
            if line.HasField("key"):
                qualify(line.key, name)
        qualify_all((price.key for price in answer.prices), name)
        lines += answer.lines
        merged.prices.extend(answer.prices)
        merged.entries = min(merged.entries + answer.entries, _MAX_UINT64)
        merged.unreadable_batches = min(merged.unreadable_batches + answer.unreadable_batches, _MAX_UINT32)
        merged.truncated |= answer.truncated
        # What is whole since then is whole at every agent.
        for mine, theirs in ((merged.oldest, answer.oldest), (merged.log_begins, answer.log_begins)):
            if theirs.ToNanoseconds() > mine.ToNanoseconds():
                mine.CopyFrom(theirs)
    merged.lines.extend(bounded_lines(lines))
    merged.total.CopyFrom(sum_costs(line.costs for line in merged.lines))
    return merged
