"""Policies that make requests fail: one that says so, a budget that is used up, a deadline; and those an engine refuses."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from penstock.agent import limits
from penstock.agent.diagnosis.facts import Confidence, Evidence, FoundCause, ended_at, first_sign, sane, words
from penstock.proto.names import label
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.diagnosis.facts import Attribution, Facts, LoadEnd, PolicyBlame
    from penstock.agent.model import EngineKey
    from penstock.proto.v1 import admin_pb2 as admin

_FILE = "file:"
_FLAGS = {"kvLoadFailure.action": "--kv-load-failure", "ecLoadFailure.action": "--ec-load-failure"}
# What a policy that is not in force counts for, seconds.
_REFUSED_SECONDS = 5.0
# A request that the budget let fail is its peer's already; here it counts for a part, seconds.
_OVER_BUDGET_SECONDS = 10.0
_DECIDED: Final[dict[int, tuple[str, str, str]]] = {
    common.DECIDED_BY_BUDGET: (
        "recompute_budget_exhausted",
        "the recompute budget is used up",
        "raise recomputeBudget.tokensPerSecond: agentctl set-policy NAME --kv-recompute-budget TOKENS",
    ),
    common.DECIDED_BY_DEADLINE: (
        "deadline_ends_waits",
        "deferral deadlines end waits",
        "a deadline that is shorter than a healthy transfer: agentctl get peers -o wide has the p99",
    ),
}


def policy_causes(facts: Facts, shares: Attribution) -> Iterator[FoundCause]:
    """Yield the policies that are to blame for failed requests, and those that engines refuse."""
    for blame, rows in sorted(shares.policies.items()):
        yield _failing(facts, blame, rows)
    for decided_by in _DECIDED:
        rows = [
            each
            for each in facts.present.load_ends
            if each.decided_by == decided_by and each.outcome == common.OUTCOME_FAILED and not each.rehearsal
        ]
        if len(rows) >= limits.LIMITED_COUNT:
            yield _limited(facts, decided_by, rows)
    yield from _refused(facts)


def _failing(facts: Facts, blame: PolicyBlame, rows: list[LoadEnd]) -> FoundCause:
    keys = words.keys_of(each.key for each in rows)
    recomputed = sum(
        each.outcome == common.OUTCOME_RECOMPUTED and each.key in keys for each in facts.before.load_ends
    )
    earlier = sum(
        each.outcome == common.OUTCOME_FAILED and each.key in keys for each in facts.before.load_ends
    )
    until = _end(facts, blame, rows)
    since = f", changed {words.ago(blame.changed, facts.now)}" if blame.changed else ""
    says = f"{'said' if until else 'says'} {blame.field}: fail{since}"
    author = f" by {blame.author}" if blame.author else ""
    peers = {each.peer for each in rows}
    name = f"policy {blame.name} (generation {blame.generation}{author})"
    return FoundCause(
        "policy_fails_loads",
        f"{name} {says}: {words.count(len(rows), 'request')} failed because {'its' if len(rows) == 1 else 'their'} "
        f"{_load(blame)} load failed and this policy {'did' if until else 'does'} not allow recomputation",
        keys,
        (
            Evidence(
                f"{words.count(len(rows), 'request')} failed by this policy in {words.span(facts.present.seconds)}",
                f"{earlier} failed and {recomputed} recomputed in {words.span(facts.before.seconds)}",
            ),
            Evidence(f"why their loads failed at all: {words.named(peers, 'peer')}, {_errors(rows)}"),
        ),
        requests=len({each.request_id for each in rows}),
        failed=len(rows),
        confidence=Confidence.CERTAIN,
        alternatives=(
            f"the policy is meant, and {words.named(peers, 'peer')} should be repaired: see below",
        ),
        commands=(
            *(() if until else (*_undo(blame), f"agentctl describe policy {blame.name}")),
            f"agentctl get audit {blame.name}",
        ),
        until=until,
        since=sane(facts, min(blame.changed, until) if until else blame.changed)
        or first_sign(facts, (each.time for each in rows)),
    )


def _end(facts: Facts, blame: PolicyBlame, rows: list[LoadEnd]) -> int:
    """Return when the last engine left this generation, nanoseconds; 0 while one has it or none can be asked."""
    keys, hashes = {each.key for each in rows}, {each.policy_hash for each in rows}
    asked = [each for each in facts.engines if each.connected and words.key_of(each.key) in keys]
    if not asked or any(each.policy.hash in hashes or _has(each, blame) for each in asked):
        return 0
    change = facts.policy_changes.get(blame.name, 0)
    # It expired, or another policy took its place, where it was not changed itself.
    return change if change > blame.changed else max(each.time for each in rows)


def _has(engine: admin.Engine, blame: PolicyBlame) -> bool:
    return any(
        (each.name, each.generation) == (blame.name, blame.generation) and blame.field in each.fields
        for each in engine.policies
    )


def _load(blame: PolicyBlame) -> str:
    return "encoder cache" if blame.field.startswith("ec") else "KV"


def _errors(rows: list[LoadEnd]) -> str:
    found = Counter(
        f"{label(common.FailureMode, each.mode)}/{label(common.ErrorType, each.error_type)}" for each in rows
    )
    return ", ".join(f"{number} {what}" for what, number in sorted(found.items()))


def _undo(blame: PolicyBlame) -> tuple[str, ...]:
    if blame.author.startswith(_FILE):
        return (
            f"agentctl set-policy {blame.name[:50]}-now {_FLAGS[blame.field]} recompute --priority 900 --ttl 1h --reason WHY",
        )
    if blame.generation > 1:
        return (f"agentctl rollback {blame.name}",)
    return (f"agentctl delete policy {blame.name}",)


def _limited(facts: Facts, decided_by: int, rows: list[LoadEnd]) -> FoundCause:
    kind, says, other = _DECIDED[decided_by]
    before = [
        each
        for each in facts.before.load_ends
        if each.decided_by == decided_by and each.outcome == common.OUTCOME_FAILED
    ]
    keys = words.keys_of(each.key for each in rows)
    peers = {each.peer for each in rows}
    return FoundCause(
        kind,
        f"{says} on {words.engines(keys)}: {words.count(len(rows), 'request')} failed that could have been recomputed",
        keys,
        (
            Evidence(
                f"{words.count(len(rows), 'request')} failed so in {words.span(facts.present.seconds)}",
                f"{len(before)} in {words.span(facts.before.seconds)}",
            ),
            Evidence(f"of loads from {words.named(peers, 'peer')}"),
        ),
        requests=len(rows),
        other_harm=_OVER_BUDGET_SECONDS * len(rows),
        since=first_sign(facts, (each.time for each in rows), (each.time for each in before)),
        confidence=Confidence.CERTAIN,
        until=ended_at((each.time for each in rows), facts.now),
        alternatives=("the limit protects the engine and the peers are the cause", other),
        commands=(f"agentctl get policy --effective {keys[0]}", "agentctl get peers"),
    )


def _refused(facts: Facts) -> Iterator[FoundCause]:
    by_error: dict[str, list[EngineKey]] = defaultdict(list)
    for engine in facts.engines:
        if engine.connected and not engine.paused and not engine.in_sync and engine.policy.last_error:
            by_error[words.cut(engine.policy.last_error)].append(words.key_of(engine.key))
    for error, found in sorted(by_error.items()):
        keys = words.keys_of(found)
        yield FoundCause(
            "policy_refused",
            f"{words.engines(keys)} {'refuses' if len(keys) == 1 else 'refuse'} the policy: {error}",
            keys,
            (Evidence(f"refused: {error}; the last good policy stays in force"),),
            other_harm=_REFUSED_SECONDS * len(keys),
            since=_refused_since(facts, error, keys),
            confidence=Confidence.CERTAIN,
            alternatives=("a field that this version of the engine part does not know",),
            commands=(f"agentctl describe engine {keys[0]}", "agentctl get audit"),
        )


def _refused_since(facts: Facts, error: str, keys: tuple[EngineKey, ...]) -> int:
    """Return when the first of these engines refused it, nanoseconds; 0 where the log does not have that."""
    refusals = (*facts.present.refusals, *facts.before.refusals)
    return first_sign(
        facts, (each.time for each in refusals if each.key in keys and words.cut(each.error) == error)
    )
