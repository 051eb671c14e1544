"""Changes of several policies at once: imports, and files' names."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.errors import FullError, ManifestError, OwnedError
from penstock.agent.policy.store.change_plan import Edit, plan_changes
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.interface import MAX_POLICIES, OwnedManifest, StoredPolicy
from penstock.agent.policy.store.sqlite_store import PolicyStore

from tests.support.policy.policies import NOW, action, manifest

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.agent.policy.manifest.manifest import Manifest

_CLOCK = NOW.timestamp()


def _owned(*names: str, file: str = "a.yaml", value: str = "auto") -> list[OwnedManifest]:
    return [OwnedManifest(manifest(name, kvLoadFailure=action(value)), f"file:{file}") for name in names]


def _state(store: PolicyStore) -> list[tuple[str, int, str, str]]:
    return [(item.manifest.name, item.generation, item.owner, item.author) for item in store.policies()]


async def test_an_import_is_one_change(store: PolicyStore) -> None:
    """An import is one generation of the store, with an audit entry for each policy."""
    await store.apply(manifest("a"), author="me")
    await store.apply(manifest("stays"), author="me")
    heard: list[int] = []
    store.subscribe(lambda: heard.append(store.generation))
    done = await store.apply_all(
        [manifest("a"), manifest("b", reason="own"), manifest("stays", priority=3)], author="you", reason=""
    )
    assert [(item.name, item.result, item.generation) for item in done.results] == [
        ("a", "unchanged", 1),
        ("b", "created", 1),
        ("stays", "changed", 2),
    ]
    assert (done.store_generation, heard) == (3, [3])
    entries = await store.changes("", 2)
    assert [(e.change.action, e.change.name, e.change.author, e.change.reason) for e in entries] == [
        ("import", "stays", "you", ""),
        ("import", "b", "you", "own"),
    ]
    assert json.loads(entries[0].change.old_manifest)["spec"].get("priority") is None
    back = await store.rollback("stays", author="me")
    assert (back.generation, store.policies()[2].manifest.spec.priority) == (3, 100)


@pytest.mark.parametrize(
    ("names", "spec", "error"),
    [
        (["a", "b", "a"], {}, "policy 'a' comes 2 times; keep one"),
        (["a"], {"expiresAt": (NOW - timedelta(1)).isoformat()}, "which is past"),
        (["a"], {"priority": 900, "expiresAt": (NOW + timedelta(1)).isoformat()}, "may last at most 4h"),
        ([f"p{number}" for number in range(MAX_POLICIES)], {}, "there would be 258 policies"),
        (["mine"], {}, "policy 'mine' belongs to the file a.yaml; change it there"),
    ],
)
async def test_an_import_is_all_or_nothing(
    store: PolicyStore, names: list[str], spec: dict[str, object], error: str
) -> None:
    """One refused policy refuses the import; nothing changes."""
    await store.replace_files(_owned("mine"))
    before = (store.policies(), store.generation, await store.changes("", 1000))
    manifests = [manifest("new"), *(manifest(name, **spec) for name in names)]
    with pytest.raises((ManifestError, FullError, OwnedError), match=error):
        await store.apply_all(manifests, author="me")
    assert (store.policies(), store.generation, await store.changes("", 1000)) == before


async def test_a_dry_run_of_an_import_changes_nothing(store: PolicyStore) -> None:
    """A dry run returns the result of each policy and stores nothing."""
    planned = await store.apply_all([manifest("a"), manifest("b")], author="me", dry_run=True)
    assert [item.result for item in planned.results] == ["created", "created"]
    assert ([item.name for item in planned.after], store.policies(), store.generation) == (["a", "b"], (), 0)


async def test_files_have_exactly_what_they_say(store: PolicyStore) -> None:
    """Policies that files no longer have are deleted; imperative ones stay; an equal set is no change."""
    await store.apply(manifest("others"), author="me")
    await store.replace_files(_owned("a", "b"))
    heard: list[int] = []
    store.subscribe(lambda: heard.append(store.generation))
    done = await store.replace_files([*_owned("b"), *_owned("c", file="b.yaml")])
    assert [(item.name, item.result) for item in done.results] == [("a", "deleted"), ("c", "created")]
    assert _state(store) == [
        ("b", 1, "file:a.yaml", "file:a.yaml"),
        ("c", 1, "file:b.yaml", "file:b.yaml"),
        ("others", 1, "imperative", "me"),
    ]
    assert heard == [3]
    same = await store.replace_files([*_owned("b"), *_owned("c", file="b.yaml")])
    assert (same.results, same.store_generation, heard) == ((), 3, [3])
    (entry,) = await store.changes("a", 1)
    assert (entry.change.action, entry.change.author, entry.change.reason) == (
        "delete",
        "file:a.yaml",
        "it is no longer in the file a.yaml",
    )


async def test_an_edit_of_what_a_file_owns_is_refused_with_the_file(store: PolicyStore) -> None:
    """Each edit of a file's policy is refused with the file's path; an overlay of another name is accepted."""
    await store.apply(manifest("a"), author="me")
    await store.replace_files(_owned("a"))
    for edit in (
        store.apply(manifest("a", kvLoadFailure=action("auto")), author="me"),
        store.apply(manifest("a"), author="me", if_generation=99, dry_run=True),
        store.delete("a", author="me"),
        store.rollback("a", author="me"),
        store.apply_all([manifest("a")], author="me"),
    ):
        with pytest.raises(OwnedError) as caught:
            await edit
        assert str(caught.value) == (
            "policy 'a' belongs to the file a.yaml; change it there, or override it "
            "for a time by a policy of another name: agentctl set-policy a-now --priority 900 --ttl 1h --reason WHY …"
        )
    ends = (NOW + timedelta(hours=1)).isoformat()
    assert (await store.apply(manifest("a-now", priority=900, expiresAt=ends), author="me")).generation == 1


async def test_a_file_takes_a_name_over_and_the_log_keeps_what_it_was(store: PolicyStore) -> None:
    """A takeover is audited, also of equal content; a policy deleted with its file can be restored."""
    await store.apply(manifest("a", kvLoadFailure=action("fail")), author="me")
    await store.replace_files(_owned("a", value="fail"))
    assert _state(store) == [("a", 2, "file:a.yaml", "file:a.yaml")]
    await store.replace_files([])
    assert _state(store) == []
    assert (await store.rollback("a", to_generation=1, author="me")).generation == 4
    assert _state(store) == [("a", 4, "imperative", "me")]


async def test_files_that_are_no_longer_read_leave_their_policies_behind(
    tmp_path: Path, database: PolicyDatabase
) -> None:
    """Released policies stay in force, can be edited, keep their history, and survive a restart."""
    store = PolicyStore(database)
    await store.replace_files(_owned("a"))
    released = await store.release_files()
    assert [(item.name, item.result, item.generation) for item in released.results] == [("a", "changed", 2)]
    assert (await store.release_files()).results == ()
    database.close()
    reopened = PolicyDatabase.open(tmp_path)
    again = PolicyStore(reopened)
    assert _state(again) == [("a", 2, "imperative", "file:a.yaml")]
    assert (await again.apply(manifest("a"), author="me")).generation == 3
    assert (await again.rollback("a", author="me")).generation == 4
    reopened.close()


_NAMES = st.sampled_from("abc")
_CONTENTS = st.sampled_from(["recompute", "fail", "auto"])


def _manifest(name: str, value: str) -> Manifest:
    return manifest(name, kvLoadFailure=action(value))


@st.composite
def _edits(draw: st.DrawFn) -> list[Edit]:
    names = draw(st.lists(_NAMES, unique=True, max_size=3))
    return [
        Edit(
            name,
            draw(st.none() | _CONTENTS.map(partial(_manifest, name))),
            "apply",
            "me",
            owner=draw(st.sampled_from(["imperative", "file:x"])),
        )
        for name in names
    ]  # fmt: skip


@given(st.lists(_edits(), max_size=6))
def test_generations_never_go_back_and_the_log_tells_all(rounds: list[list[Edit]]) -> None:
    """A replay of the audit log gives the stored state; each name's generations increase by one."""
    present: dict[str, StoredPolicy] = {}
    last: dict[str, int] = {}
    replayed: dict[str, str] = {}
    for edits in rounds:
        valid = [edit for edit in edits if edit.manifest is not None or edit.name in present]
        planned = plan_changes(present, last, valid, 1)
        for write in planned.writes:
            change = write.change
            assert change.new_generation == last.get(change.name, 0) + 1
            assert change.old_manifest == replayed.get(change.name, "")
            last[change.name] = change.new_generation
            replayed[change.name] = change.new_manifest
        present = dict(planned.after)
        assert {name: policy.manifest.canonical for name, policy in present.items()} == {
            name: text for name, text in replayed.items() if text
        }
        assert {result.name for result in planned.results} == {edit.name for edit in valid}
