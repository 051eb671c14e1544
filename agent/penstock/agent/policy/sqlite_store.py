"""Named policies with their generations, kept in ``policy.db``.

Reads are from memory; a write is one transaction together with its audit
entry, run on a thread of its own so that a slow disk never holds the loop.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.agent.errors import ConflictError, FullError, ManifestError, NotFoundError, StateError
from penstock.agent.policy import audit
from penstock.agent.policy.completion import to_completion
from penstock.agent.policy.model import Manifest, parse_manifest
from penstock.agent.policy.notice import Listeners
from penstock.agent.policy.store import IMPERATIVE, MAX_POLICIES, Applied, Clock, Store, StoredPolicy
from typing_extensions import override

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from penstock.agent.policy.database import PolicyDatabase


class PolicyStore(Store):
    """The store of one agent, embedded."""

    def __init__(self, database: PolicyDatabase, *, clock: Clock = time.time) -> None:
        """Load all policies; *clock* gives seconds since the epoch.

        Raises:
            StateError: a stored policy cannot be read.

        """
        self._database = database
        self._clock = clock
        self._listeners = Listeners()
        # Of read, decide and write: the loop's tasks take turns.
        self._turn = asyncio.Lock()
        with database.reading() as connection:
            self._generation = int(connection.execute("SELECT generation FROM counter").fetchone()[0])
            self._policies = {policy.manifest.name: policy for policy in _load(connection)}

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
            self._check_generation(manifest.name, if_generation)
            present = self._policies.get(manifest.name)
            if present is not None and present.manifest.canonical == manifest.canonical:
                return self._applied(
                    manifest.name, "unchanged", present.generation, self._policies, self._policies
                )
            manifest.check_times(self._now())
            if present is None and len(self._policies) >= MAX_POLICIES:
                raise FullError(f"there are {MAX_POLICIES} policies already; delete one first")
            return await self._put(manifest, "apply", author, manifest.reason, dry_run=dry_run)

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
            present = self._find(name)
            self._check_generation(name, if_generation)
            change = audit.Change(
                author=author,
                action="delete",
                name=name,
                reason=reason,
                old_generation=present.generation,
                new_generation=present.generation + 1,
                old_manifest=present.manifest.canonical,
            )
            after = {key: policy for key, policy in self._policies.items() if key != name}
            return await self._commit(change, None, after, "deleted", dry_run=dry_run)

    @override
    async def rollback(
        self, name: str, *, to_generation: int = 0, author: str, reason: str = "", dry_run: bool = False
    ) -> Applied:
        async with self._turn:
            manifest = await asyncio.to_thread(self._earlier, name, to_generation)
            present = self._policies.get(name)
            if present is not None and present.manifest.canonical == manifest.canonical:
                return self._applied(name, "unchanged", present.generation, self._policies, self._policies)
            manifest.check_times(self._now())
            return await self._put(manifest, "rollback", author, reason, dry_run=dry_run)

    @override
    async def changes(self, name: str, limit: int) -> list[audit.AuditEntry]:
        def read() -> list[audit.AuditEntry]:
            with self._database.reading() as connection:
                return audit.entries(connection, name, limit)

        return await asyncio.to_thread(read)

    @override
    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._listeners.add(callback)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _find(self, name: str) -> StoredPolicy:
        present = self._policies.get(name)
        if present is None:
            raise NotFoundError(f"there is no policy {name!r}; 'agentctl get policy' lists them")
        return present

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
                raise NotFoundError(f"there never was a policy {name!r}; 'agentctl get audit' lists changes")
            wanted = generation or audit.previous_generation(connection, name, last)
            text = audit.manifest_of(connection, name, wanted)
        if not text:
            which = f"generation {generation}" if generation else "generation before the present one"
            raise NotFoundError(f"policy {name!r} has no {which}; 'agentctl get audit {name}' lists them")
        return parse_manifest(text)

    async def _put(
        self, manifest: Manifest, action: str, author: str, reason: str, *, dry_run: bool
    ) -> Applied:
        name = manifest.name
        present = self._policies.get(name)
        generation = 1 + await asyncio.to_thread(self._last_generation, name)
        change = audit.Change(
            author=author,
            action=action,
            name=name,
            reason=reason,
            old_generation=present.generation if present else 0,
            new_generation=generation,
            old_manifest=present.manifest.canonical if present else "",
            new_manifest=manifest.canonical,
        )
        stored = StoredPolicy(manifest, generation, IMPERATIVE, author, int(self._clock() * 1e9))
        after = self._policies | {name: stored}
        return await self._commit(change, stored, after, "changed" if present else "created", dry_run=dry_run)

    def _last_generation(self, name: str) -> int:
        with self._database.reading() as connection:
            return audit.last_generation(connection, name)

    async def _commit(
        self,
        change: audit.Change,
        stored: StoredPolicy | None,
        after: dict[str, StoredPolicy],
        result: str,
        *,
        dry_run: bool,
    ) -> Applied:
        before = self._policies
        if not dry_run:
            await to_completion(self._write(change, stored, after))
        return self._applied(change.name, result, change.new_generation, before, after)

    async def _write(
        self, change: audit.Change, stored: StoredPolicy | None, after: dict[str, StoredPolicy]
    ) -> None:
        def write() -> None:
            with self._database.transaction() as connection:
                connection.execute("UPDATE counter SET generation = generation + 1")
                audit.append(connection, change, int(self._clock() * 1e9))
                _store(connection, change.name, stored)

        await asyncio.to_thread(write)
        self._policies = after
        self._generation += 1
        self._listeners.call()

    def _applied(
        self,
        name: str,
        result: str,
        generation: int,
        before: dict[str, StoredPolicy],
        after: dict[str, StoredPolicy],
    ) -> Applied:
        return Applied(name, result, generation, self._generation, _manifests(before), _manifests(after))


def _manifests(policies: dict[str, StoredPolicy]) -> tuple[Manifest, ...]:
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
