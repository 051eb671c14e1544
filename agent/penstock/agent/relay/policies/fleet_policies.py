"""The interface of a fleet's policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.agent.errors import ManifestError
from penstock.agent.policy.manifest import check_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


def check_items(items: Iterable[tuple[str, Item]]) -> FoundPolicies:
    """Return what of *items*, by name, are policies."""
    policies: dict[str, FleetPolicy] = {}
    refused: dict[str, str] = {}
    revisions: dict[str, int] = {}
    for name, item in items:
        revisions[name] = int(item.revision)
        if item.refusal:
            refused[name] = item.refusal
            continue
        try:
            manifest = check_manifest(item.document)
        except ManifestError as error:
            refused[name] = str(error)
            continue
        if manifest.name == name:
            policies[name] = FleetPolicy(manifest, revisions[name])
        else:
            refused[name] = f"metadata.name is {manifest.name!r}; it must be {name!r}, its name at the source"
    return FoundPolicies(policies, refused, revisions)


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
