"""The audit log: within its limits, trims recorded, append-only otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.agent.errors import NotFoundError, StateError
from penstock.agent.policy.store.audit import AuditLimit
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore

from tests.support.policy.policies import NOW, manifest

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = AuditLimit(entries=20)


def opened(directory: Path, limit: AuditLimit = LIMIT) -> tuple[PolicyDatabase, PolicyStore]:
    """Open a database with a short audit log."""
    database = PolicyDatabase.open(directory, limit)
    return database, PolicyStore(database, clock=NOW.timestamp)


async def change(store: PolicyStore, first: int, last: int, name: str = "p") -> None:
    """Make generations *first* to *last* of a policy; the priority is the generation."""
    for number in range(first, last + 1):
        applied = await store.apply(manifest(name, priority=number), author="me")
        assert applied.generation == number


async def test_the_oldest_entries_go_and_the_log_says_so(tmp_path):
    """A trim removes the oldest entries, is an entry itself, and is counted over restarts."""
    database, store = opened(tmp_path)
    await change(store, 1, 100)
    entries = await store.changes("", 1_000)
    assert 18 <= len(entries) <= LIMIT.entries
    assert [entry.id for entry in entries] == sorted((entry.id for entry in entries), reverse=True)
    assert entries[0].change.new_generation == 100 or entries[0].change.action == "trim"
    said = next(entry.change for entry in entries if entry.change.action == "trim")
    assert said.author == "penstock-agent"
    assert "oldest entries, to number" in said.reason
    # All that were ever written: a hundred changes, and the trims themselves.
    assert entries[0].id - len(entries) == database.audit_trimmed
    trimmed = database.audit_trimmed
    database.close()
    database, store = opened(tmp_path)
    assert database.audit_trimmed == trimmed
    await change(store, 101, 140)
    assert database.audit_trimmed > trimmed
    assert len(await store.changes("", 1_000)) <= LIMIT.entries
    database.close()


async def test_a_log_of_large_entries_is_bounded_by_its_bytes(tmp_path):
    """The log stays within its byte limit; the newest change stays, of any size."""
    database, store = opened(tmp_path, AuditLimit(bytes=4_000))
    for number in range(30):
        await store.delete("p", author="me", reason="x" * 1_000) if number % 2 else await store.apply(
            manifest("p"), author="me"
        )
        assert any(entry.change.author == "me" for entry in await store.changes("p", 1))
    with database.reading() as connection:
        (size,) = connection.execute("SELECT bytes FROM audit_extent").fetchone()
        entries = connection.execute("SELECT count(*) FROM audit").fetchone()
    assert size <= 4_000
    assert 1 <= entries[0] < 10
    database.close()


async def test_a_rollback_to_what_went(tmp_path):
    """A rollback to a trimmed generation is refused with a sentence; to a kept one it works."""
    database, store = opened(tmp_path)
    await change(store, 1, 40)
    await change(store, 1, 1, "other")
    with pytest.raises(
        NotFoundError,
        match=r"does not have its generation 3 of policy 'p'; its entries to number \d+ were deleted",
    ):
        await store.rollback("p", to_generation=3, author="me")
    assert (await store.rollback("p", to_generation=39, author="me")).generation == 41
    await change(store, 2, 42, "other")
    # Not one entry about it is left.
    assert await store.changes("p", 10) == []
    with pytest.raises(NotFoundError, match="does not have a previous generation of policy 'p'"):
        await store.rollback("p", author="me")
    assert (await store.rollback("p", to_generation=41, author="me")).result == "unchanged"
    assert (await store.apply(manifest("p", priority=7), author="me")).generation == 42
    database.close()


async def test_no_generation_comes_twice(tmp_path):
    """Generations of a name continue after its deletion and the trim of its entries."""
    database, store = opened(tmp_path)
    await change(store, 1, 5)
    assert (await store.delete("p", author="me")).generation == 6
    await change(store, 1, 60, "other")
    assert await store.changes("p", 10) == []
    assert (await store.apply(manifest("p"), author="me")).generation == 7
    database.close()


async def test_what_is_left_is_append_only(tmp_path):
    """SQL cannot change or delete entries, also after a trim."""
    database, store = opened(tmp_path)
    await change(store, 1, 40)
    before = await store.changes("", 100)
    for statement in (
        "DELETE FROM audit",
        "UPDATE audit SET author = 'you'",
        "UPDATE audit_extent SET trimmed_to = 0",
        "INSERT INTO audit VALUES (1, 0, 'you', 'apply', 'p', '', 0, 1, '', '')",
        "INSERT OR REPLACE INTO audit SELECT max(id), 0, 'you', 'apply', 'p', '', 0, 1, '', '' FROM audit",
    ):
        with (
            pytest.raises(StateError, match="the audit log is append-only"),
            database.transaction() as connection,
        ):
            connection.execute(statement)
    assert await store.changes("", 100) == before
    database.close()
