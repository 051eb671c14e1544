"""Checks the sets of sources and merges them: who owns which name. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.errors import ManifestError
from penstock.agent.policy.manifest import check_manifest
from penstock.agent.policy.sources.interface import MAX_SENTENCE
from penstock.agent.policy.store import FILE_PREFIX, OwnedManifest

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from datetime import datetime

    from penstock.agent.policy.manifest import Manifest
    from penstock.agent.policy.sources.interface import SourceItem, SourceSet
    from penstock.agent.policy.store import StoredPolicy


class SourceKey(NamedTuple):
    """A source in the merge."""

    name: str
    kind: str

    def owns(self, owner: str) -> bool:
        """Return whether a stored policy of *owner* came from this source, or for files from any of them."""
        return owner.startswith(FILE_PREFIX) if self.kind == "file" else owner == self.name


@dataclass(frozen=True, slots=True)
class CheckedSet:
    """The policies of a source by name, why others are refused, and the names of those that are not decoded yet."""

    policies: Mapping[str, OwnedManifest] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    waiting: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """All that the source has."""
        return self.waiting.union(self.policies, self.refused)


class ReadItem(NamedTuple):
    """An item with its manifest; None if it is refused, or waits."""

    item: SourceItem
    manifest: Manifest | None
    refusal: str


@dataclass(frozen=True, slots=True)
class MergedSets:
    """The merge of all sources.

    Attributes:
        policies: all that sources own.
        accepted: how many of them, by source.
        refused: by source, a sentence by name.

    """

    policies: tuple[OwnedManifest, ...]
    accepted: Mapping[str, int]
    refused: Mapping[str, Mapping[str, str]]


def read_items(found: SourceSet, before: Mapping[str, ReadItem]) -> dict[str, ReadItem]:
    """Validate each manifest of *found*, except those that are as *before*: a large one takes milliseconds."""
    return {
        name: known if (known := before.get(name)) is not None and known.item == item else _read(name, item)
        for name, item in found.items.items()
    }


def check_set(found: Mapping[str, ReadItem], owner: str, known: Container[str], now: datetime) -> CheckedSet:
    """Check the times of each manifest of *found*.

    Args:
        found: by name.
        owner: the source's name.
        known: canonical texts of the policies in force; their expiry is not checked again.
        now: the current time, for expiry. Expired policies are skipped.

    """
    policies: dict[str, OwnedManifest] = {}
    refused: dict[str, str] = {}
    for name, (_, manifest, refusal) in found.items():
        if refusal:
            refused[name] = refusal
        if manifest is None or manifest.expired(now):
            continue
        try:
            if manifest.canonical not in known:
                manifest.check_times(now)
            policies[name] = OwnedManifest(manifest, owner)
        except ManifestError as error:
            refused[name] = str(error)[:MAX_SENTENCE]
    return CheckedSet(policies, refused, frozenset(name for name, each in found.items() if each.item.waits))


def _read(name: str, item: SourceItem) -> ReadItem:
    if item.waits:
        return ReadItem(item, None, "")
    try:
        return ReadItem(item, _manifest(name, item), "")
    except ManifestError as error:
        return ReadItem(item, None, str(error)[:MAX_SENTENCE])


def _manifest(name: str, item: SourceItem) -> Manifest:
    if item.refusal:
        raise ManifestError(item.refusal, "")
    document = item.document
    if isinstance(document, dict):
        document = {key: value for key, value in document.items() if key != "status"}
    manifest = check_manifest(document)
    if manifest.name != name:
        raise ManifestError(
            f"metadata.name is {manifest.name!r}, but its place is {name!r}; make them the same",
            "metadata.name",
        )
    return manifest


def merge_sets(
    order: Sequence[SourceKey], sets: Mapping[str, CheckedSet], present: Sequence[StoredPolicy]
) -> MergedSets:
    """Merge the sources in their order; of two that bring one name the first holds.

    Args:
        order: all sources.
        sets: by source; one that handed nothing over yet keeps what the store has of it.
        present: what the store has; a manifest that is refused or waits keeps its last good one from there.

    """
    taken: dict[str, tuple[str, OwnedManifest]] = {}
    refused: dict[str, dict[str, str]] = {}
    from_files = {
        name for key in order if key.kind == "file" and key.name in sets for name in sets[key.name].policies
    }
    for key in order:
        stored = {
            each.manifest.name: OwnedManifest(each.manifest, each.owner)
            for each in present
            if key.owns(each.owner)
        }
        given = sets.get(key.name)
        if given is None:
            # Of several file sources the owner does not say which one it was.
            kept = {
                name: each for name, each in stored.items() if key.kind != "file" or name not in from_files
            }
            policies: Mapping[str, OwnedManifest] = {}
        else:
            kept = {
                name: each for name, each in stored.items() if name in given.refused or name in given.waiting
            }
            policies = given.policies
        sentences = refused[key.name] = dict(given.refused) if given is not None else {}
        for name, policy in sorted(policies.items()):
            if name in taken:
                sentences[name] = (
                    f"{taken[name][0]} has a policy {name!r} and comes first; rename or remove one of them"
                )
            else:
                taken[name] = (key.name, policy)
        for name, policy in sorted(kept.items()):
            taken.setdefault(name, (key.name, policy))
    owners = [source for source, _ in taken.values()]
    return MergedSets(
        tuple(policy for _, (_, policy) in sorted(taken.items())),
        {key.name: owners.count(key.name) for key in order},
        refused,
    )
