"""The interface of a policy store; :mod:`penstock.agent.policy.store.sqlite_store` implements it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from penstock.agent.model import PolicySource
    from penstock.agent.parsing import Target
    from penstock.agent.policy.manifest import Manifest
    from penstock.agent.policy.store.audit import AuditEntry

MAX_POLICIES = 256
IMPERATIVE = "imperative"
FILE_PREFIX = "file:"

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """A policy in the store.

    Attributes:
        generation: from 1 for each name; counts on after a deletion.
        owner: ``imperative``, ``file:NAME`` for a policy of a file, or the name of another policy source.

    """

    manifest: Manifest
    generation: int
    owner: str
    author: str
    changed_unix_nano: int


@dataclass(frozen=True, slots=True)
class OwnedManifest:
    """A policy of a source; the owner is ``file:NAME``, or the name of the source."""

    manifest: Manifest
    owner: str


@dataclass(frozen=True, slots=True)
class Result:
    """The result for one policy: ``created``, ``changed``, ``unchanged`` or ``deleted``; and its generation."""

    name: str
    result: str
    generation: int


@dataclass(frozen=True, slots=True)
class AppliedAll:
    """The result of a change of several policies, or of its dry run; as :class:`Applied`."""

    results: tuple[Result, ...]
    store_generation: int
    before: tuple[Manifest, ...]
    after: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of a change, or of its dry run.

    Attributes:
        result: ``created``, ``changed``, ``unchanged`` or ``deleted``.
        generation: of the policy, after the change.
        store_generation: after the change; unchanged by a dry run.
        before: all manifests before the change.
        after: all manifests after the change.

    """

    name: str
    result: str
    generation: int
    store_generation: int
    before: tuple[Manifest, ...]
    after: tuple[Manifest, ...]


class Store(Protocol):
    """Stores policies. Listeners are called once a change is durable."""

    @property
    def generation(self) -> int:
        """Incremented by every change, of one policy or of several at once."""

    def policies(self) -> Sequence[StoredPolicy]:
        """Return all policies, ordered by name."""

    async def apply(
        self, manifest: Manifest, *, author: str, if_generation: int | None = None, dry_run: bool = False
    ) -> Applied:
        """Create or replace a policy.

        Raises:
            ManifestError: it has expired, or lasts too long.
            OwnedError: a policy source owns the name; so in every edit here but :meth:`replace_files`.
            ConflictError: the policy is not at *if_generation* (0: does not exist).
            FullError: there are too many policies.

        """

    async def delete(
        self,
        name: str,
        *,
        author: str,
        reason: str = "",
        if_generation: int | None = None,
        dry_run: bool = False,
    ) -> Applied:
        """Delete a policy.

        Raises:
            NotFoundError: no such policy.
            ConflictError: it is not at *if_generation*.

        """

    async def rollback(
        self, name: str, *, to_generation: int = 0, author: str, reason: str = "", dry_run: bool = False
    ) -> Applied:
        """Apply an earlier generation again, as a new one; 0 is the previous one.

        Raises:
            NotFoundError: the policy never had that generation.
            ManifestError: that manifest has expired since.

        """

    async def apply_all(
        self, manifests: Sequence[Manifest], *, author: str, reason: str = "", dry_run: bool = False
    ) -> AppliedAll:
        """Create or replace several policies, all or none; others are unchanged.

        Raises:
            ManifestError: a name comes twice, or a policy has expired or lasts too long.
            FullError: there would be too many policies.

        """

    async def replace_files(self, policies: Sequence[OwnedManifest]) -> AppliedAll:
        """Replace the policies of files and other sources by *policies*, all or none; those left out are deleted.

        Takes over imperative policies of the same name. Does not check expiry. ``results`` has no unchanged ones.

        Raises:
            FullError: there would be too many policies.

        """

    async def release_files(self, kept: Callable[[str], bool] = lambda _: False) -> AppliedAll:
        """Make the policies of files and other sources imperative, but those whose owner is *kept*."""

    async def changes(self, name: str, limit: int, actions: Iterable[str] = ()) -> list[AuditEntry]:
        """Return the newest entries of the log, newest first; of all names if *name* is empty, of all without *actions*."""

    def clock_steps(self) -> int:
        """Return how often the time of day was set so far: each time the ends of policies may have moved. Any thread."""

    def end_of(self, manifest: Manifest) -> datetime | None:
        """Return when a policy ends by the time of day, None for never; its time to live grows by no step. Any thread."""

    def sources(self, hash_: str, target: Target, unix_nano: int) -> tuple[PolicySource, ...]:
        """Return the policies that an effective policy of *target* was merged from, the highest rank first. Any thread.

        Args:
            hash_: of the effective policy.
            target: the engine.
            unix_nano: when it was in force, nanoseconds; of several generations with one content, that of this time counts.

        Returns:
            Empty if *hash_* is empty, or if none of the newest 256 changes gives such a policy.

        """

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* on the loop after every change; return a function that unsubscribes."""
