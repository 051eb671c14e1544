"""The store and the pauses on real SQLite."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from penstock.agent.aio import to_completion
from penstock.agent.errors import ConflictError, FullError, ManifestError, NotFoundError, StateError
from penstock.agent.model import EngineKey
from penstock.agent.policy.orders.kill_switch import Pauses, with_front_ends
from penstock.agent.policy.store.database import FILE_NAME, PolicyDatabase
from penstock.agent.policy.store.interface import MAX_POLICIES
from penstock.agent.policy.store.sqlite_store import PolicyStore

from tests.support.policy.policies import NOW, action, manifest

if TYPE_CHECKING:
    from pathlib import Path

_CLOCK = NOW.timestamp()


async def test_generations_count_the_changes_of_a_policy_and_of_the_store(store: PolicyStore) -> None:
    """Each change increments both generations, and a name's continues after a deletion."""
    results = [
        await store.apply(manifest(), author="a"),
        await store.apply(manifest(), author="b"),
        await store.apply(manifest(kvLoadFailure=action("fail")), author="c"),
        await store.delete("decode-default", author="d", reason="why"),
        await store.apply(manifest(), author="e"),
    ]
    assert [(item.result, item.generation, item.store_generation) for item in results] == [
        ("created", 1, 1),
        ("unchanged", 1, 1),
        ("changed", 2, 2),
        ("deleted", 3, 3),
        ("created", 4, 4),
    ]
    assert [policy.author for policy in store.policies()] == ["e"]
    assert store.generation == 4


async def test_a_dry_run_changes_nothing(store: PolicyStore) -> None:
    """A dry run returns the result and stores nothing."""
    planned = await store.apply(manifest(), author="a", dry_run=True)
    assert (
        planned.result,
        [item.name for item in planned.before],
        [item.name for item in planned.after],
    ) == (
        "created",
        [],
        ["decode-default"],
    )
    assert (store.generation, store.policies(), await store.changes("", 10)) == (0, (), [])


@pytest.mark.parametrize(("expected", "fits"), [(None, True), (1, True), (0, False), (2, False)])
async def test_compare_and_set(store: PolicyStore, expected: int | None, fits: bool) -> None:
    """A change based on another generation is refused with the current one."""
    await store.apply(manifest(), author="a")
    changed = manifest(kvLoadFailure=action("fail"))
    if fits:
        assert (await store.apply(changed, author="b", if_generation=expected)).generation == 2
        return
    with pytest.raises(ConflictError, match=f"'decode-default' is at generation 1, not at {expected}"):
        await store.apply(changed, author="b", if_generation=expected)
    with pytest.raises(ConflictError):
        await store.delete("decode-default", author="b", if_generation=expected)


async def test_of_two_that_change_at_once_one_loses(store: PolicyStore) -> None:
    """Of concurrent changes based on one generation one succeeds."""
    one = store.apply(manifest(), author="a", if_generation=0)
    two = store.apply(manifest(kvLoadFailure=action("fail")), author="b", if_generation=0)
    results = await asyncio.gather(one, two, return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["Applied", "ConflictError"]


async def test_rollback_is_a_new_generation_with_old_content(store: PolicyStore) -> None:
    """A rollback to the previous or any generation, also of a deleted policy, is a new generation."""
    contents = [action("recompute"), action("fail"), action("auto")]
    for content in contents:
        await store.apply(manifest(kvLoadFailure=content), author="a")
    back = await store.rollback("decode-default", author="b", reason="worse")
    assert (back.generation, store.policies()[0].manifest.leaves["kvLoadFailure.action"]) == (4, "fail")
    await store.rollback("decode-default", to_generation=1, author="b")
    assert store.policies()[0].manifest.leaves["kvLoadFailure.action"] == "recompute"
    await store.delete("decode-default", author="b")
    assert (await store.rollback("decode-default", author="b")).result == "created"
    assert [entry.change.action for entry in await store.changes("", 3)] == ["rollback", "delete", "rollback"]


@pytest.mark.parametrize(
    ("name", "generation", "sentence"),
    [
        ("never", 0, "policy 'never' never existed"),
        ("decode-default", 0, "policy 'decode-default' has no previous generation"),
        ("decode-default", 9, "policy 'decode-default' has no generation 9"),
    ],
)
async def test_a_rollback_to_nothing_is_refused(
    store: PolicyStore, name: str, generation: int, sentence: str
) -> None:
    """The error has the missing generation."""
    await store.apply(manifest(), author="a")
    with pytest.raises(NotFoundError, match=sentence):
        await store.rollback(name, to_generation=generation, author="b")


async def test_what_has_expired_does_not_come_back(database: PolicyDatabase) -> None:
    """A rollback to an expired policy is refused like its application."""
    now = [_CLOCK]
    store = PolicyStore(database, clock=lambda: now[0])
    ends = datetime.fromtimestamp(_CLOCK + 60, UTC).isoformat()
    await store.apply(manifest(expiresAt=ends), author="a")
    await store.apply(manifest(kvLoadFailure=action("fail")), author="a")
    now[0] += 61
    with pytest.raises(ManifestError, match="which is past"):
        await store.rollback("decode-default", author="b")


async def test_unknown_names_and_too_many_policies_are_refused(store: PolicyStore) -> None:
    """An unknown name raises NotFound; one policy above the limit raises Full."""
    with pytest.raises(NotFoundError, match="policy 'x' does not exist"):
        await store.delete("x", author="a")
    await store.apply_all([manifest(f"p{number}") for number in range(MAX_POLICIES)], author="a")
    with pytest.raises(FullError, match="there would be 257 policies, the limit is 256; delete some first"):
        await store.apply(manifest(), author="a")
    assert (await store.apply(manifest("p0", priority=7), author="a")).result == "changed"


async def test_everything_is_there_after_a_restart(tmp_path: Path, database: PolicyDatabase) -> None:
    """Policies, generations, audit log and pauses survive a restart."""
    store, pauses = PolicyStore(database), Pauses(database)
    await store.apply(manifest(reason="INC-42"), author="me")
    await pauses.set([EngineKey("", "1")], paused=True, author="me", which="engine 1", reason="test")
    database.close()
    reopened = PolicyDatabase.open(tmp_path)
    again = PolicyStore(reopened)
    assert again.policies() == store.policies()
    assert again.generation == 1
    assert Pauses(reopened).is_paused(EngineKey("", "1"))
    entries = await again.changes("", 10)
    assert [(e.change.action, e.change.name, e.change.author, e.change.reason) for e in entries] == [
        ("pause", "engine 1", "me", "test"),
        ("apply", "decode-default", "me", "INC-42"),
    ]
    assert json.loads(entries[1].change.new_manifest)["kind"] == "TransferPolicy"
    assert len(entries[1].new_hash) == 64
    reopened.close()


async def test_the_audit_log_cannot_be_edited(store: PolicyStore, database: PolicyDatabase) -> None:
    """No SQL statement changes or deletes an entry of the audit log."""
    await store.apply(manifest(), author="me")
    for statement in (
        "UPDATE audit SET author = 'you'",
        "DELETE FROM audit",
        "INSERT OR REPLACE INTO audit VALUES (1, 0, 'you', 'apply', 'decode-default', '', 0, 1, '', '')",
    ):
        with (
            pytest.raises(StateError, match="the audit log is append-only"),
            database.transaction() as connection,
        ):
            connection.execute(statement)
    assert [entry.change.author for entry in await store.changes("decode-default", 10)] == ["me"]


async def test_a_failed_write_changes_nothing(store: PolicyStore, database: PolicyDatabase) -> None:
    """After a failed write memory equals the database, and no listener is called."""
    calls: list[int] = []
    store.subscribe(lambda: calls.append(store.generation))
    with database.reading() as connection:
        connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StateError, match=r"cannot be written \(attempt to write a readonly database\)"):
        await store.apply(manifest(), author="me")
    assert (store.policies(), store.generation, calls) == ((), 0, [])
    database.close()
    with pytest.raises(StateError, match="cannot be read"):
        await store.apply(manifest(), author="me")


async def test_subscribers_hear_of_every_change(store: PolicyStore) -> None:
    """Listeners are called after each commit, until they unsubscribe."""
    calls: list[int] = []
    end = store.subscribe(lambda: calls.append(store.generation))
    await store.apply(manifest(), author="me")
    await store.apply(manifest(), author="me")
    await store.delete("decode-default", author="me")
    end()
    end()
    await store.apply(manifest(), author="me")
    assert calls == [1, 2]


def test_a_database_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """The error has the path of a database of another version or in no directory."""
    with pytest.raises(StateError, match=r"policy\.db cannot be used"):
        PolicyDatabase.open(tmp_path / "absent")
    other = tmp_path / "other"
    other.mkdir()
    connection = sqlite3.connect(other / FILE_NAME)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(
        StateError, match=r"has version 99 and this agent reads version 1 only; move the state"
    ):
        PolicyDatabase.open(other)


def test_a_stored_policy_that_is_no_longer_valid_stops_the_start(database: PolicyDatabase) -> None:
    """An invalid stored policy fails the start."""
    with database.transaction() as connection:
        connection.execute("INSERT INTO policy VALUES ('x', 1, '{}', 'imperative', 'me', 0)")
    with pytest.raises(StateError, match=r"policy 'x' of the state directory is not valid"):
        PolicyStore(database)


async def test_pauses_of_one_and_of_all(database: PolicyDatabase) -> None:
    """An engine's own state overrides the state of all, which applies to new engines too."""
    pauses, zero, one = Pauses(database), EngineKey("", "0"), EngineKey("", "1")
    calls: list[bool] = []
    pauses.subscribe(lambda: calls.append(pauses.is_paused(one)))

    async def put(keys: list[EngineKey] | None, paused: bool) -> tuple[bool, bool]:
        await pauses.set(keys, paused, author="me", which="test")
        return pauses.is_paused(zero), pauses.is_paused(one)

    assert await put([zero], paused=True) == (True, False)
    assert await put(None, paused=True) == (True, True)
    assert await put([zero], paused=False) == (False, True)
    assert await put([zero], paused=True) == (True, True)
    assert await put(None, paused=False) == (False, False)
    assert calls == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("selected", "paused", "already", "front_end"),
    [
        (["0"], True, [], False),
        (["0"], True, ["1"], True),
        (["0", "1"], True, [], True),
        (["0"], False, ["0", "1"], True),
    ],
)
def test_a_front_end_pauses_with_its_last_engine_and_resumes_with_its_first(
    selected: list[str], paused: bool, already: list[str], front_end: bool
) -> None:
    """A pause of all of a server's engines includes its front end, as does a resume of any."""
    engines = [EngineKey("s", "0"), EngineKey("s", "1"), EngineKey("other", "0")]
    keys = with_front_ends(
        [EngineKey("s", engine) for engine in selected], engines, paused, lambda key: key.engine in already
    )
    assert (EngineKey("s", "") in keys) is front_end
    assert keys - {EngineKey("s", "")} == {EngineKey("s", engine) for engine in selected}


async def test_work_that_has_begun_is_done_before_its_caller_ends() -> None:
    """A cancelled caller waits for its write, then raises CancelledError."""
    begun, go_on, done = asyncio.Event(), asyncio.Event(), []

    async def work() -> None:
        begun.set()
        await go_on.wait()
        done.append(True)

    caller = asyncio.ensure_future(to_completion(work()))
    await begun.wait()
    caller.cancel()
    asyncio.get_running_loop().call_soon(go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done == [True]
