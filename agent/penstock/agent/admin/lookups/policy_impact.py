"""Effect of policy changes in the known engines: field changes, and warnings about what has no effect."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.agent.admin.lookups import messages
from penstock.agent.errors import ManifestError
from penstock.agent.parsing import select
from penstock.agent.policy.manifest import is_of_the_fleet, merge_policies, policies_selecting
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from penstock.agent.admin.lookups.context import AgentContext
    from penstock.agent.model import EngineKey
    from penstock.agent.parsing import Target
    from penstock.agent.policy.manifest import FieldSource, Manifest, Merged
    from penstock.agent.sources import EngineView
    from penstock.proto.v1.snapshot_pb2 import EngineFacts

# Fields that matter only with action auto.
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

# Not simulated: a quarantine changes the failures it is based on; telemetry decides nothing.
_NOT_OBSERVED = frozenset({"peerQuarantine", "telemetry"})


_NIXL = frozenset({"NixlConnector", "NixlPullConnector", "NixlPushConnector"})

# Requests always wait for their loads, so none runs on blocks that failed.
_ALWAYS_WAIT = _NIXL | {"MooncakeConnector"}

# No request waits for their loads.
_IN_STEP = frozenset({"DecodeBenchConnector", "ExampleConnector"})

# May have a NIXL child; the facts do not say.
_PERHAPS = "MultiConnector"

_DEADLINES = ("deferral.maxStartWait", "deferral.maxTransferWait")

Selected = tuple[str, ...]
"""Texts of the policies that select an engine, each in the version that it has, in their order in the store."""


_EC_PRODUCER: Final = "ec_producer"
# They name a peer before they ask it.
_GATED_EC: Final = frozenset({"ECCPUConnector", "ZmqECConnector"})
_WHY_NOT_EC: Final[Mapping[str, str]] = {
    "ECExampleConnector": "its items lie in a directory and have no peer",
    "ECMooncakeConnector": "encoders push their items to it, and it asks none",
}
_NO_PEER_ASKED: Final = "it does not say which peer it would ask"


class MergedPolicies:
    """Merges of policies, computed once for all engines that the same policies select."""

    def __init__(self, policies: Iterable[Manifest], now: datetime) -> None:
        self._alive = [policy for policy in policies if not policy.expired(now)]
        self._versions = {each.canonical: each for policy in self._alive for each in policy.versions}
        self._merged: dict[Selected, Merged] = {}

    def selected(self, target: Target) -> Selected:
        """Return the policies that select *target*."""
        return tuple(policy.canonical for policy in policies_selecting(self._alive, target))

    def merged(self, selected: Selected) -> Merged:
        """Return the merge for engines selected by *selected*."""
        if selected not in self._merged:
            self._merged[selected] = merge_policies(self._versions[text] for text in selected)
        return self._merged[selected]


def check_confirmed(manifest: Manifest, confirmed: bool) -> None:
    """Require *confirmed* for a policy that selects every engine.

    Raises:
        ManifestError: it is not confirmed.

    """
    if not confirmed and manifest.spec.selector.selection.everything:
        raise ManifestError(
            "spec.selector is empty: the policy would apply to every engine, including later ones; "
            "give a selector (--selector, --model), or confirm with --all",
            "spec.selector",
        )


def engine_changes(
    agent: AgentContext,
    known: Mapping[EngineKey, Target],
    before: Sequence[Manifest],
    after: Sequence[Manifest],
) -> Iterator[admin.EngineChange]:
    """Yield the field changes in each *known* engine."""
    changed = _changed(before, after)
    old, new = MergedPolicies(before, agent.now), MergedPolicies(after, agent.now)
    # Most engines share their policies, and so their changes.
    found: dict[tuple[Selected, Selected], admin.EngineChange | None] = {}
    for key, target in sorted(known.items()):
        if not any(policy.selects(target) for policy in changed):
            continue
        pair = old.selected(target), new.selected(target)
        if pair not in found:
            found[pair] = messages.engine_change(old.merged(pair[0]), new.merged(pair[1]))
        change = found[pair]
        if change is not None:
            message = admin.EngineChange(key=messages.key_message(key))
            message.MergeFrom(change)
            yield message


def _changed(before: Sequence[Manifest], after: Sequence[Manifest]) -> list[Manifest]:
    """Return the versions of policies that only one side has: only engines that one of them selects can change."""
    same = {policy.canonical for policy in before} & {policy.canonical for policy in after}
    return [policy for policy in (*before, *after) if policy.canonical not in same]


def policy_warnings(
    agent: AgentContext,
    views: Iterable[EngineView],
    known: Mapping[EngineKey, Target],
    manifests: Iterable[Manifest],
    after: Sequence[Manifest],
) -> Iterator[str]:
    """Yield warnings about *manifests*, which are part of *after*, in the *known* engines.

    *views* are the registry's engines.
    """
    merges = MergedPolicies(after, agent.now)
    # Merge once an engine: an import may have 256 policies.
    merged = cache(lambda key: merges.merged(merges.selected(known[key])))
    facts = {view.key: view.facts for view in views if view.facts is not None}
    manifests = [version for manifest in manifests for version in manifest.versions]
    yield from _paused(agent, known, manifests)
    for manifest in manifests:
        yield from _warnings(agent, manifest, known, merged, facts)


def share_words(manifest: Manifest, known: Iterable[Target]) -> str:
    """Return what ``spec.rollout`` means in the *known* engines: ``5 % of the engines: 3 of 60 here``."""
    matched = select(known, manifest.spec.selector.selection)
    selected = sum(manifest.in_rollout(target) for target in matched)
    what = "" if manifest.candidate is None else "its candidate in "
    return f"{what}{manifest.percent} % of the engines: {selected} of {len(matched)} here"


def shares(manifests: Iterable[Manifest], known: Mapping[EngineKey, Target]) -> Iterator[str]:
    """Yield the words of :func:`share_words` for each policy that has ``spec.rollout``."""
    for manifest in manifests:
        if manifest.spec.rollout is not None:
            yield f"policy {manifest.name}: {share_words(manifest, known.values())}"


def _paused(
    agent: AgentContext, known: Mapping[EngineKey, Target], manifests: Iterable[Manifest]
) -> Iterator[str]:
    """Yield one warning that names the selected engines that are paused."""
    manifests = list(manifests)
    paused = [
        str(key)
        for key, target in sorted(known.items())
        if agent.pauses.is_paused(key) and any(manifest.selects(target) for manifest in manifests)
    ]
    if paused:
        subject = f"engines {', '.join(paused)} are" if len(paused) > 1 else f"engine {paused[0]} is"
        yield f"{subject} paused: not in force there until 'agentctl resume'"


def _warnings(
    agent: AgentContext,
    manifest: Manifest,
    known: Mapping[EngineKey, Target],
    merged: Callable[[EngineKey], Merged],
    facts: Mapping[EngineKey, EngineFacts],
) -> Iterator[str]:
    if manifest.spec.mode == "observe":
        for section in sorted(_NOT_OBSERVED & {path.partition(".")[0] for path in manifest.leaves}):
            yield f"spec.{section} has no effect in mode observe, which does not simulate it; try mode enforce on one engine"
    if any(map(is_of_the_fleet, manifest.leaves)):
        yield "spec.ejection has no effect here: a relay goes by the policies of its --policy-source; write it there"
    matched = select(known.values(), manifest.spec.selector.selection)
    if not matched:
        yield f"policy {manifest.name} selects no known engine; it applies when one connects"
    for target in (target for target in matched if manifest.selects(target)):
        yield from _unsupported(agent, manifest, target)
        found = merged(target.key)
        given = (found.observed if manifest.spec.mode == "observe" else found.body) or {}
        yield from _without_effect(manifest, target, given)
        if target.key in facts:
            holding = given.get("kvLoadFailure.action")
            action = str(holding.value) if holding is not None else ""
            for shortfall in (
                *connector_shortfalls(manifest.leaves.keys(), action, facts[target.key]),
                *ec_shortfalls(manifest.leaves.keys(), facts[target.key]),
            ):
                yield f"engine {target.key}: {shortfall}"
        for path in manifest.leaves:
            winner = given[path].policy if path in given else manifest.name
            if winner != manifest.name:
                yield f"engine {target.key}: spec.{path} is set by policy {winner}, which ranks higher"


def connector_shortfalls(paths: Collection[str], action: str, facts: EngineFacts) -> Iterator[str]:
    """Yield a sentence for each policy field that the engine's KV connector cannot apply.

    Args:
        paths: the fields that the policy sets, such as ``kvLoadFailure.action``.
        action: the effective ``kvLoadFailure.action``; empty for none.
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
    if connector not in _NIXL and any(path.startswith("integrity.") for path in paths):
        those = (
            "what other connectors than NIXL's bring" if connector == _PERHAPS else f"what {connector} brings"
        )
        yield f"spec.integrity verifies no KV here: {those} is counted as unverified"
    deadlines = [path for path in _DEADLINES if path in paths]
    if deadlines and connector in _IN_STEP:
        yield f"spec.{deadlines[0]} ends no loads of {connector}: it loads in the step, and no request waits for it"
    elif deadlines and connector not in _NIXL:
        those, reporter = (
            ("loads of its children that are not NIXL's", "the child")
            if connector == _PERHAPS
            else (f"loads of {connector}", "it")
        )
        yield (
            f"spec.{deadlines[0]} ends requests that wait for {those}, not the loads: the blocks stay pinned until {reporter} "
            f"reports the end, and such a request fails even where it is to be recomputed"
        )


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
    for section in sorted({path.partition(".")[0] for path in manifest.leaves if not is_of_the_fleet(path)}):
        if _snake(section) not in subscriber.supported:
            yield f"engine {target.key} does not support spec.{section} and will refuse the policy"


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def ec_shortfalls(paths: Collection[str], facts: EngineFacts) -> Iterator[str]:
    """Yield a sentence for each of the fields *paths* that the EC connector in *facts* cannot apply."""
    connector = facts.ec_connector
    if not connector or facts.ec_role == _EC_PRODUCER or connector in _GATED_EC:
        return
    if any(path.startswith("peerQuarantine.") for path in paths):
        yield (
            f"spec.peerQuarantine keeps {connector} from no encoder: {_WHY_NOT_EC.get(connector, _NO_PEER_ASKED)}; "
            f"KV loads are quarantined as usual"
        )
