"""What a change of policies does in the engines that are known, and what it will not do."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from penstock.agent.admin import convert
from penstock.agent.admin.targets import targets
from penstock.agent.errors import ManifestError
from penstock.agent.policy.merge import effective
from penstock.agent.selector import select

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.agent.admin.context import AgentContext
    from penstock.agent.model import EngineKey
    from penstock.agent.policy.merge import Given, Merged
    from penstock.agent.policy.model import Manifest
    from penstock.agent.selector import Target
    from penstock.proto.v1 import admin_pb2 as admin

# What only decides where the action leaves it open.
_ONLY_WITH_AUTO = {
    "kvLoadFailure": frozenset(
        {
            "kvLoadFailure.maxRecomputeTokens",
            "kvLoadFailure.recomputeBudget.tokensPerSecond",
            "kvLoadFailure.overBudget",
        }
    ),
    "ecLoadFailure": frozenset({"ecLoadFailure.maxRecomputeItems"}),
}
_OWN_ACTION = {"kvLoadFailure": "vLLM's own", "ecLoadFailure": "the connector's own"}

# A quarantine changes the very failures that it is decided by; telemetry decides about no request.
_NOT_OBSERVED = frozenset({"peerQuarantine", "telemetry"})


def confirm(manifest: Manifest, confirmed: bool) -> None:
    """Let a policy that makes every engine fail loads pass only if that is *confirmed*.

    Raises:
        ManifestError: it is not.

    """
    if not confirmed and manifest.fails_everywhere:
        raise ManifestError(
            "spec.selector is empty, so action fail would hold in every engine; "
            "give a selector (--selector, --model), or confirm with --all",
            "spec.selector",
        )


def engine_changes(
    agent: AgentContext, before: Sequence[Manifest], after: Sequence[Manifest]
) -> Iterator[admin.EngineChange]:
    """Yield what changes in each engine, field by field."""
    now = agent.now
    for _, target in sorted(targets(agent).items()):
        old = effective(before, target, now)[0].merged
        new = effective(after, target, now)[0].merged
        change = convert.engine_change(target, old, new)
        if change is not None:
            yield change


def warnings(agent: AgentContext, manifests: Iterable[Manifest], after: Sequence[Manifest]) -> Iterator[str]:
    """Yield what *manifests* will not do, as some of *after*."""
    known = targets(agent)
    # Each engine's merge is made once: an import may bring as many policies as there can be.
    merged = cache(lambda key: effective(after, known[key], agent.now)[0].merged)
    for manifest in manifests:
        yield from _warnings(agent, manifest, known, merged)


def _warnings(
    agent: AgentContext,
    manifest: Manifest,
    known: Mapping[EngineKey, Target],
    merged: Callable[[EngineKey], Merged],
) -> Iterator[str]:
    if manifest.spec.mode == "observe":
        for section in sorted(_NOT_OBSERVED & {path.partition(".")[0] for path in manifest.leaves}):
            yield f"spec.{section} does nothing in mode observe: it is not simulated; try it with mode enforce on one engine"
    selected = select(known.values(), manifest.spec.selector.selection())
    if not selected:
        yield f"policy {manifest.name} selects no engine that is known now; it waits for one"
    for target in selected:
        yield from _unsupported(agent, manifest, target)
        found = merged(target.key)
        given = (found.observed if manifest.spec.mode == "observe" else found.body) or {}
        yield from _without_effect(manifest, target, given)
        for path in manifest.leaves:
            winner = given[path].policy if path in given else manifest.name
            if winner != manifest.name:
                yield f"engine {target.key}: spec.{path} is given by policy {winner}, which ranks higher"


def _without_effect(manifest: Manifest, target: Target, given: Mapping[str, Given]) -> Iterator[str]:
    for section, paths in _ONLY_WITH_AUTO.items():
        action = given.get(f"{section}.action")
        idle = sorted(paths & manifest.leaves.keys())
        if idle and (action is None or action.value != "auto"):
            present = _OWN_ACTION[section] if action is None else action.value
            yield (
                f"engine {target.key}: spec.{idle[0]} has no effect while the action is {present}; "
                f"set {section}.action to auto"
            )


def _unsupported(agent: AgentContext, manifest: Manifest, target: Target) -> Iterator[str]:
    subscriber = agent.feed.subscriber(target.key)
    if subscriber is None or not subscriber.supported:
        return
    for section in sorted({path.partition(".")[0] for path in manifest.leaves}):
        if _snake(section) not in subscriber.supported:
            yield f"engine {target.key} does not know spec.{section} and will refuse the policy"


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
