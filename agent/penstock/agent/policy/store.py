"""What a store of policies is; :mod:`penstock.agent.policy.sqlite_store` is the embedded one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.policy.audit import AuditEntry
    from penstock.agent.policy.model import Manifest

MAX_POLICIES = 256
IMPERATIVE = "imperative"

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """A policy as the store has it.

    Attributes:
        generation: from 1 for each name; a name that comes back goes on counting.
        owner: ``imperative``, or the file that owns the name.

    """

    manifest: Manifest
    generation: int
    owner: str
    author: str
    changed_unix_nano: int


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
        """Raised by one with every change of any policy."""

    def policies(self) -> Sequence[StoredPolicy]:
        """Return all policies, ordered by name."""

    async def apply(
        self, manifest: Manifest, *, author: str, if_generation: int | None = None, dry_run: bool = False
    ) -> Applied:
        """Create or replace a policy.

        Raises:
            ManifestError: its expiry does not fit the present.
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

    async def changes(self, name: str, limit: int) -> list[AuditEntry]:
        """Return the newest entries of the log, newest first; of all names if *name* is empty."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* on the loop after every change; returns what ends that."""
