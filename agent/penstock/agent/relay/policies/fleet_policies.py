"""The interface of a fleet's policies."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.agent.errors import ManifestError
from penstock.agent.policy.manifest import check_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.policy.manifest import Manifest


@dataclass(frozen=True, slots=True)
class FleetPolicy:
    """A policy at its source.

    Attributes:
        revision: of the policy there, greater than each one before it.

    """

    manifest: Manifest
    revision: int


@dataclass(frozen=True, slots=True)
class FoundPolicies:
    """All policies of a source, read at once.

    Attributes:
        policies: by name.
        refused: what is there and is no policy: a sentence by name.
        revisions: of all that is there, policy or not, by name.

    """

    policies: Mapping[str, FleetPolicy]
    refused: Mapping[str, str]
    revisions: Mapping[str, int]


class Item(NamedTuple):
    """What is at a source under one name.

    Attributes:
        document: the decoded manifest.
        refusal: why there is no document; empty if there is one.
        revision: a number.

    """

    document: object
    refusal: str
    revision: str


class CheckedItems:
    """What is at a source, each item checked once and on a thread: a large manifest takes milliseconds; the loop's."""

    def __init__(self) -> None:
        """Begin without items."""
        # No more than the source has: those that are gone are forgotten.
        self._known: dict[str, tuple[Item, FleetPolicy | str]] = {}

    async def check(self, items: Mapping[str, Item]) -> FoundPolicies:
        """Return what of *items*, by name, are policies."""
        # A revision may be given again, to another document: all of an item is compared.
        known = {
            name: before
            for name, item in items.items()
            if (before := self._known.get(name)) is not None and before[0] == item
        }
        new = {name: item for name, item in items.items() if name not in known}
        if new:
            known |= await asyncio.to_thread(_check_each, new)
        self._known = known
        found = [(name, known[name][1]) for name in items]
        return FoundPolicies(
            {name: each for name, each in found if isinstance(each, FleetPolicy)},
            {name: each for name, each in found if isinstance(each, str)},
            {name: int(item.revision) for name, item in items.items()},
        )


def _check_each(items: Mapping[str, Item]) -> dict[str, tuple[Item, FleetPolicy | str]]:
    return {name: (item, _policy_or_refusal(name, item)) for name, item in items.items()}


def _policy_or_refusal(name: str, item: Item) -> FleetPolicy | str:
    if item.refusal:
        return item.refusal
    try:
        manifest = check_manifest(item.document)
    except ManifestError as error:
        return str(error)
    if manifest.name == name:
        return FleetPolicy(manifest, int(item.revision))
    return f"metadata.name is {manifest.name!r}; it must be {name!r}, its name at the source"


class FleetPolicies(Protocol):
    """The policies at a source. Each method asks the source anew, on the loop.

    What goes wrong at the source is an ImpossibleError (it is away, or does not allow it) with a sentence.

    Attributes:
        name: of the source, without a secret.
        kind: ``kubernetes`` or ``nats``.
        place: the namespace or the bucket.

    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def place(self) -> str: ...  # noqa: D102

    async def read(self) -> FoundPolicies:
        """Return all policies."""

    async def put(self, manifest: Manifest, if_revision: int | None = None) -> FleetPolicy:
        """Write *manifest* in the place of the policy of its name.

        Args:
            manifest: checked.
            if_revision: write only if the policy is at this one, 0 for "not there"; None for any.

        Raises:
            ConflictError: the policy is at another revision.

        """

    async def delete(self, name: str, if_revision: int | None = None) -> None:
        """Delete the policy *name*.

        Raises:
            ConflictError: the policy is at another revision.
            NotFoundError: there is no such policy.

        """
