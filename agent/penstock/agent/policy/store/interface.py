"""What a store of policies is; :mod:`penstock.agent.policy.store.sqlite_store` is the embedded one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.policy.manifest import Manifest
    from penstock.agent.policy.store.audit import AuditEntry

MAX_POLICIES = 256
IMPERATIVE = "imperative"
FILE_PREFIX = "file:"

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """A policy as the store has it.

    Attributes:
        generation: from 1 for each name; a name that comes back goes on counting.
        owner: ``imperative``, or ``file:NAME`` of the file that owns the name.

    """

    manifest: Manifest
    generation: int
    owner: str
    author: str
    changed_unix_nano: int


@dataclass(frozen=True, slots=True)
class OwnedManifest:
    """A policy as a file has it; the owner is ``file:NAME``."""

    manifest: Manifest
    owner: str


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one policy: ``created``, ``changed``, ``unchanged`` or ``deleted``; and its generation."""

    name: str
    result: str
    generation: int


@dataclass(frozen=True, slots=True)
class AppliedAll:
    """What a change of several policies did, or would do; as :class:`Applied`."""

    results: tuple[Result, ...]
    store_generation: int
    before: tuple[Manifest, ...]
    after: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """What a change did, or would do.

    Attributes:
        result: ``created``, ``changed``, ``unchanged`` or ``deleted``.
        generation: of the policy, after the change.
        store_generation: after the change; as before if it was a dry run.
        before: all manifests before the change, and *after* it.

    """

    name: str
    result: str
    generation: int
    store_generation: int
    before: tuple[Manifest, ...]
    after: tuple[Manifest, ...]


class Store(Protocol):
    """Where policies live. A change is announced once it is durable."""

    @property
    def generation(self) -> int:
        """Raised by one with every change, of one policy or of several at once."""

    def policies(self) -> Sequence[StoredPolicy]:
        """Return all policies, ordered by name."""

    async def apply(
        self, manifest: Manifest, *, author: str, if_generation: int | None = None, dry_run: bool = False
    ) -> Applied:
        """Create or replace a policy.

        Raises:
            ManifestError: its expiry does not fit the present.
            OwnedError: a file has the name; so with every edit here but :meth:`replace_files`.
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
        """Remove a policy.

        Raises:
            NotFoundError: there is none of that name.
            ConflictError: it is not at *if_generation*.

        """

    async def rollback(
        self, name: str, *, to_generation: int = 0, author: str, reason: str = "", dry_run: bool = False
    ) -> Applied:
        """Make an earlier content a new generation; 0 is the one before the present.

        Raises:
            NotFoundError: the policy never had that generation.
            ManifestError: that content has expired since.

        """

    async def apply_all(
        self, manifests: Sequence[Manifest], *, author: str, reason: str = "", dry_run: bool = False
    ) -> AppliedAll:
        """Create or replace several policies, all or none; others stay as they are.

        Raises:
            ManifestError: a name comes twice, or an expiry does not fit the present.
            FullError: there would be too many policies.

        """

    async def replace_files(self, policies: Sequence[OwnedManifest]) -> AppliedAll:
        """Let files have exactly *policies*, all or none: what they had besides is deleted.

        A name that was imperative goes over to the file. Whether expiries fit
        the present is the caller's business. ``results`` has no unchanged ones.

        Raises:
            FullError: there would be too many policies.

        """

    async def release_files(self) -> AppliedAll:
        """Make all policies of files imperative, because no file is read any more."""

    async def changes(self, name: str, limit: int) -> list[AuditEntry]:
        """Return the newest entries of the log, newest first; of all names if *name* is empty."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* on the loop after every change; returns what ends that."""
