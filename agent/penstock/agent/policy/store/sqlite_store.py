"""The policy store in ``policy.db``.

Reads are from memory; a write is one transaction with its audit entries, on a thread, so that a slow disk does not
block the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.agent.aio import Listeners, to_completion
from penstock.agent.errors import (
    ConflictError,
    FullError,
    ManifestError,
    NotFoundError,
    OwnedError,
    StateError,
)
from penstock.agent.model import BREAK_GLASS_PRIORITY
from penstock.agent.policy.manifest import Manifest, parse_manifest, prefix_errors
from penstock.agent.policy.store import audit
from penstock.agent.policy.store.change_plan import ChangePlan, Edit, plan_changes
from penstock.agent.policy.store.clock_steps import ClockSteps, PolicyEnds, boot_seconds
from penstock.agent.policy.store.history import PolicyHistory
from penstock.agent.policy.store.interface import (
    FILE_PREFIX,
    IMPERATIVE,
    MAX_POLICIES,
    Applied,
    AppliedAll,
    Clock,
    Store,
    StoredPolicy,
)
from typing_extensions import override

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.agent.model import PolicySource
    from penstock.agent.parsing import Target
    from penstock.agent.policy.store.database import PolicyDatabase
    from penstock.agent.policy.store.interface import OwnedManifest


class PolicyStore(Store):
    """The store of one agent."""

    def __init__(
        self, database: PolicyDatabase, *, clock: Clock = time.time, steady: Clock = boot_seconds
    ) -> None:
        """Load all policies.

        Args:
            clock: seconds since the epoch.
            steady: seconds that nothing sets.

        Raises:
            StateError: a stored policy cannot be read.

        """
        self._database = database
        self._clock = clock
        self._listeners = Listeners()
        # Serializes read, decide and write of the loop's tasks.
        self._turn = asyncio.Lock()
        with database.reading() as connection:
            self._generation = int(connection.execute("SELECT generation FROM counter").fetchone()[0])
            self._policies = {policy.manifest.name: policy for policy in _load(connection)}
            self._history = PolicyHistory.load(connection, self._policies)
        self._ends = PolicyEnds(ClockSteps(clock, steady))
        self._ends.keep(policy.manifest for policy in self._policies.values())

    @property
    @override
    def generation(self) -> int:
        return self._generation

    @override
    def policies(self) -> tuple[StoredPolicy, ...]:
        return tuple(policy for _, policy in sorted(self._policies.items()))

    @override
    async def apply(
        self, manifest: Manifest, *, author: str, if_generation: int | None = None, dry_run: bool = False
    ) -> Applied:
        async with self._turn:
            self._check_owner(manifest.name)
            self._check_generation(manifest.name, if_generation)
            self._check_times(manifest)
            return await self._one(
                Edit(manifest.name, manifest, "apply", author, manifest.reason), dry_run=dry_run
            )

    @override
    async def delete(
        self,
        name: str,
        *,
        author: str,
        reason: str = "",
        if_generation: int | None = None,
        dry_run: bool = False,
    ) -> Applied:
        async with self._turn:
            if name not in self._policies:
                raise NotFoundError(f"policy {name!r} does not exist; 'agentctl get policy' lists policies")
            self._check_owner(name)
            self._check_generation(name, if_generation)
            return await self._one(Edit(name, None, "delete", author, reason), dry_run=dry_run)

    @override
    async def rollback(
        self, name: str, *, to_generation: int = 0, author: str, reason: str = "", dry_run: bool = False
    ) -> Applied:
        async with self._turn:
            self._check_owner(name)
            manifest = await asyncio.to_thread(self._earlier, name, to_generation)
            self._check_times(manifest)
            return await self._one(Edit(name, manifest, "rollback", author, reason), dry_run=dry_run)

    @override
    async def apply_all(
        self, manifests: Sequence[Manifest], *, author: str, reason: str = "", dry_run: bool = False
    ) -> AppliedAll:
        names = Counter(manifest.name for manifest in manifests)
        for name, count in names.items():
            if count > 1:
                raise ManifestError(f"policy {name!r} comes {count} times; keep one", "metadata.name")
        async with self._turn:
            for manifest in manifests:
                self._check_owner(manifest.name)
                with prefix_errors(manifest.name):
                    self._check_times(manifest)
            edits = [
                Edit(manifest.name, manifest, "import", author, reason or manifest.reason)
                for manifest in manifests
            ]
            return await self._change(edits, dry_run=dry_run)

    @override
    async def replace_files(self, policies: Sequence[OwnedManifest]) -> AppliedAll:
        async with self._turn:
            kept = {item.manifest.name for item in policies}
            edits = [
                Edit(name, None, "delete", old.owner, self._why_gone(old))
                for name, old in sorted(self._policies.items())
                if old.owner != IMPERATIVE and name not in kept
            ]
            edits += [
                Edit(item.manifest.name, item.manifest, "apply", item.owner, item.manifest.reason, item.owner)
                for item in policies
            ]
            applied = await self._change(edits, dry_run=False)
            changed = tuple(item for item in applied.results if item.result != "unchanged")
            return replace(applied, results=changed)

    @override
    async def release_files(self, kept: Callable[[str], bool] = lambda _: False) -> AppliedAll:
        async with self._turn:
            edits = [
                Edit(name, old.manifest, "release", old.owner, _why_released(old.owner))
                for name, old in sorted(self._policies.items())
                if old.owner != IMPERATIVE and not kept(old.owner)
            ]
            return await self._change(edits, dry_run=False)

    @override
    async def changes(self, name: str, limit: int, actions: Iterable[str] = ()) -> list[audit.AuditEntry]:
        def read() -> list[audit.AuditEntry]:
            with self._database.reading() as connection:
                return audit.entries(connection, name, limit, actions)

        return await asyncio.to_thread(read)

    @override
    def sources(self, hash_: str, target: Target, unix_nano: int) -> tuple[PolicySource, ...]:
        return self._history.sources(hash_, target, unix_nano)

    @override
    def clock_steps(self) -> int:
        return self._ends.steps_seen()

    @override
    def end_of(self, manifest: Manifest) -> datetime | None:
        return self._ends.end_of(manifest)

    @override
    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._listeners.add(callback)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _check_owner(self, name: str) -> None:
        present = self._policies.get(name)
        if present is not None and present.owner != IMPERATIVE:
            raise OwnedError(
                f"policy {name!r} belongs to {_place(present.owner)}; change it there, or override it "
                f"for a time by a policy of another name: agentctl set-policy {name[:50]}-now --priority "
                f"{BREAK_GLASS_PRIORITY} --ttl 1h --reason WHY …"
            )

    def _check_times(self, manifest: Manifest) -> None:
        """Check the expiry of a new manifest; one already in force may expire."""
        present = self._policies.get(manifest.name)
        if present is not None:
            if present.manifest.canonical == manifest.canonical:
                return
            # The clock may have been set back since; an expiry that was once good is not too late by that.
            before, after = present.manifest.spec, manifest.spec
            same = (before.expires_at, before.priority) == (after.expires_at, after.priority)
            if same and not manifest.expired(self._now()):
                return
        manifest.check_times(self._now())

    def _why_gone(self, policy: StoredPolicy) -> str:
        if policy.manifest.expired(self._now()):
            return "it has expired"
        return f"it is no longer in {_place(policy.owner)}"

    def _check_generation(self, name: str, expected: int | None) -> None:
        present = self._policies.get(name)
        actual = present.generation if present is not None else 0
        if expected is not None and expected != actual:
            state = f"is at generation {actual}" if actual else "does not exist"
            raise ConflictError(f"policy {name!r} {state}, not at {expected}; read it again and retry")

    def _earlier(self, name: str, generation: int) -> Manifest:
        with self._database.reading() as connection:
            last = audit.last_generation(connection, name)
            if not last:
                raise NotFoundError(f"policy {name!r} never existed; 'agentctl get audit' lists changes")
            wanted = generation or audit.previous_generation(connection, name, last)
            text = audit.manifest_of(connection, name, wanted)
            _, lost_to = audit.trimmed(connection)
        if not text and lost_to:
            which = f"its generation {generation}" if generation else "a previous generation"
            raise NotFoundError(
                f"the audit log does not have {which} of policy {name!r}; its entries to number {lost_to} were deleted"
                f" when it was full. 'agentctl get audit {name}' lists the rest; 'agentctl apply' takes a file"
            )
        if not text:
            which = f"generation {generation}" if generation else "previous generation"
            raise NotFoundError(f"policy {name!r} has no {which}; 'agentctl get audit {name}' lists them")
        return parse_manifest(text)

    async def _one(self, edit: Edit, *, dry_run: bool) -> Applied:
        done = await self._change([edit], dry_run=dry_run)
        (result,) = done.results
        return Applied(
            result.name, result.result, result.generation, done.store_generation, done.before, done.after
        )

    async def _change(self, edits: Sequence[Edit], *, dry_run: bool) -> AppliedAll:
        """Apply *edits* in one transaction; the caller holds the lock."""
        before = self._policies
        last = {edit.name: before[edit.name].generation for edit in edits if edit.name in before}
        others = [edit.name for edit in edits if edit.name not in before]
        if others:
            last |= await asyncio.to_thread(self._last_generations, others)
        planned = plan_changes(before, last, edits, int(self._clock() * 1e9))
        if len(planned.after) > max(MAX_POLICIES, len(before)):
            raise FullError(
                f"there would be {len(planned.after)} policies, the limit is {MAX_POLICIES}; delete some first"
            )
        if planned.writes and not dry_run:
            await to_completion(self._write(planned))
        return AppliedAll(planned.results, self._generation, _manifests(before), _manifests(planned.after))

    async def _write(self, planned: ChangePlan) -> None:
        def write() -> None:
            with self._database.transaction() as connection:
                connection.execute("UPDATE counter SET generation = generation + 1")
                for item in planned.writes:
                    audit.append(connection, item.change, int(self._clock() * 1e9))
                    _store(connection, item.change.name, item.stored)

        await asyncio.to_thread(write)
        self._policies = dict(planned.after)
        self._ends.keep(policy.manifest for policy in self._policies.values())
        self._history.add(self._policies, int(self._clock() * 1e9))
        self._generation += 1
        self._listeners.call()

    def _last_generations(self, names: Sequence[str]) -> dict[str, int]:
        with self._database.reading() as connection:
            return {name: audit.last_generation(connection, name) for name in names}


def _place(owner: str) -> str:
    if owner.startswith(FILE_PREFIX):
        return f"the file {owner.removeprefix(FILE_PREFIX)}"
    return f"the policy source {owner}"


def _why_released(owner: str) -> str:
    if owner.startswith(FILE_PREFIX):
        return "the agent reads no policy files any more"
    return f"the agent has no policy source {owner} any more"


def _manifests(policies: Mapping[str, StoredPolicy]) -> tuple[Manifest, ...]:
    return tuple(policy.manifest for _, policy in sorted(policies.items()))


def _load(connection: sqlite3.Connection) -> list[StoredPolicy]:
    rows = connection.execute(
        "SELECT manifest, generation, owner, author, changed_unix_nano, name FROM policy"
    )
    return [
        StoredPolicy(_read(name, text), generation, owner, author, changed)
        for text, generation, owner, author, changed, name in rows.fetchall()
    ]


def _read(name: str, text: str) -> Manifest:
    try:
        return parse_manifest(text)
    except ManifestError as error:
        raise StateError(
            f"policy {name!r} of the state directory is not valid for this version ({error}); "
            "run the version that wrote it and delete the policy"
        ) from error


def _store(connection: sqlite3.Connection, name: str, stored: StoredPolicy | None) -> None:
    if stored is None:
        connection.execute("DELETE FROM policy WHERE name = ?", (name,))
        return
    connection.execute(
        "INSERT OR REPLACE INTO policy VALUES (?, ?, ?, ?, ?, ?)",
        (
            name,
            stored.generation,
            stored.manifest.canonical,
            stored.owner,
            stored.author,
            stored.changed_unix_nano,
        ),
    )
