"""What a change of policies does in the engines that are known, and what it will not do."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from penstock.agent.admin.support import messages
from penstock.agent.errors import ManifestError
from penstock.agent.parsing import select
from penstock.agent.policy.manifest import merge_policies, policies_selecting
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from penstock.agent.admin.support.context import AgentContext
    from penstock.agent.model import EngineKey
    from penstock.agent.parsing import Target
    from penstock.agent.policy.manifest import FieldSource, Manifest, Merged
    from penstock.proto.v1.snapshot_pb2 import EngineFacts

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


_NIXL = frozenset({"NixlConnector", "NixlPullConnector", "NixlPushConnector"})

# Its requests always wait for their loads, so none has run on blocks that fail.
_ALWAYS_WAIT = _NIXL | {"MooncakeConnector"}

# They have a NIXL child or not; the facts do not tell.
_PERHAPS = "MultiConnector"

_DEADLINES = ("deferral.maxStartWait", "deferral.maxTransferWait")

Selected = tuple[str, ...]
"""Names of the policies that select an engine, in their order in the store."""


class MergedPolicies:
    """What holds now under some policies, worked out once for all engines that the same ones of them select."""

    def __init__(self, policies: Iterable[Manifest], now: datetime) -> None:
        self._alive = {policy.name: policy for policy in policies if not policy.expired(now)}
        self._merged: dict[Selected, Merged] = {}

    def selected(self, target: Target) -> Selected:
        """Return by which policies *target* is selected."""
        return tuple(policy.name for policy in policies_selecting(self._alive.values(), target))

    def merged(self, selected: Selected) -> Merged:
        """Return what holds in engines that are selected so."""
        if selected not in self._merged:
            self._merged[selected] = merge_policies(self._alive[name] for name in selected)
        return self._merged[selected]


def check_confirmed(manifest: Manifest, confirmed: bool) -> None:
    """Let a policy for every engine pass only if that is *confirmed*: a selector is easily left out.

    Raises:
        ManifestError: it is not.

    """
    if not confirmed and manifest.spec.selector.selection.everything:
        raise ManifestError(
            "spec.selector is empty, so the policy would hold in every engine, those that come later included; "
            "give a selector (--selector, --model), or confirm with --all",
            "spec.selector",
        )


def engine_changes(
    agent: AgentContext,
    known: Mapping[EngineKey, Target],
    before: Sequence[Manifest],
    after: Sequence[Manifest],
) -> Iterator[admin.EngineChange]:
    """Yield what changes in each engine that is *known*, field by field."""
    old, new = MergedPolicies(before, agent.now), MergedPolicies(after, agent.now)
    # Most engines are selected by the same policies, so that the same changes in them.
    found: dict[tuple[Selected, Selected], admin.EngineChange | None] = {}
    for key, target in sorted(known.items()):
        pair = old.selected(target), new.selected(target)
        if pair not in found:
            found[pair] = messages.engine_change(old.merged(pair[0]), new.merged(pair[1]))
        change = found[pair]
        if change is not None:
            message = admin.EngineChange(key=messages.key_message(key))
            message.MergeFrom(change)
            yield message


def policy_warnings(
    agent: AgentContext,
    known: Mapping[EngineKey, Target],
    manifests: Iterable[Manifest],
    after: Sequence[Manifest],
) -> Iterator[str]:
    """Yield what *manifests* will not do in the engines that are *known*, as some of *after*."""
    merges = MergedPolicies(after, agent.now)
    # Each engine is looked at once: an import may bring as many policies as there can be.
    merged = cache(lambda key: merges.merged(merges.selected(known[key])))
    facts = {view.key: view.facts for view in agent.registry.engines() if view.facts is not None}
    manifests = list(manifests)
    yield from _paused(agent, known, manifests)
    for manifest in manifests:
        yield from _warnings(agent, manifest, known, merged, facts)


def _paused(
    agent: AgentContext, known: Mapping[EngineKey, Target], manifests: Iterable[Manifest]
) -> Iterator[str]:
    """Say in one sentence which of the engines that *manifests* select hold them back."""
    selections = [manifest.spec.selector.selection for manifest in manifests]
    paused = [
        str(key)
        for key, target in sorted(known.items())
        if agent.pauses.is_paused(key) and any(selection.matches(target) for selection in selections)
    ]
    if paused:
        many = len(paused) > 1
        subject = f"engines {', '.join(paused)} are" if many else f"engine {paused[0]} is"
        yield f"{subject} paused: {'they hold' if many else 'it holds'} this back until 'agentctl resume'"


def _warnings(
    agent: AgentContext,
    manifest: Manifest,
    known: Mapping[EngineKey, Target],
    merged: Callable[[EngineKey], Merged],
    facts: Mapping[EngineKey, EngineFacts],
) -> Iterator[str]:
    if manifest.spec.mode == "observe":
        for section in sorted(_NOT_OBSERVED & {path.partition(".")[0] for path in manifest.leaves}):
            yield f"spec.{section} does nothing in mode observe: it is not simulated; try it with mode enforce on one engine"
    selected = select(known.values(), manifest.spec.selector.selection)
    if not selected:
        yield f"policy {manifest.name} selects no engine that is known now; it waits for one"
    for target in selected:
        yield from _unsupported(agent, manifest, target)
        found = merged(target.key)
        given = (found.observed if manifest.spec.mode == "observe" else found.body) or {}
        yield from _without_effect(manifest, target, given)
        if target.key in facts:
            holding = given.get("kvLoadFailure.action")
            action = str(holding.value) if holding is not None else ""
            for shortfall in connector_shortfalls(manifest.leaves.keys(), action, facts[target.key]):
                yield f"engine {target.key}: {shortfall}"
        for path in manifest.leaves:
            winner = given[path].policy if path in given else manifest.name
            if winner != manifest.name:
                yield f"engine {target.key}: spec.{path} is given by policy {winner}, which ranks higher"


def connector_shortfalls(paths: Collection[str], action: str, facts: EngineFacts) -> Iterator[str]:
    """Yield a sentence for each thing that an engine will not do of what a policy sets.

    Args:
        paths: the fields that it sets, ``kvLoadFailure.action``.
        action: ``kvLoadFailure.action`` that holds with it; empty for none.
        facts: of the engine.

    """
    connector = facts.kv_connector
    if not connector:
        return
    saves = facts.kv_role in {"kv_both", "kv_producer"} or connector == _PERHAPS
    recomputes = "kvLoadFailure.action" in paths and action in {"recompute", "auto"}
    if recomputes and saves and connector not in _ALWAYS_WAIT:
        yield (
            f"{connector} may save in the step that loads ({facts.kv_role}): where a request has run on a load that failed, it fails "
            f"and is not recomputed; loads that requests wait for are"
        )
    deadlines = [path for path in _DEADLINES if path in paths]
    if deadlines and connector not in _NIXL:
        those = (
            "loads of its children that are not NIXL's" if connector == _PERHAPS else f"loads of {connector}"
        )
        yield f"spec.{deadlines[0]} ends no {those}: they cannot be given up, and last until the connector itself ends them"


def _without_effect(manifest: Manifest, target: Target, given: Mapping[str, FieldSource]) -> Iterator[str]:
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
