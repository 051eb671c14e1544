"""Plans edits: new contents, audit entries, generations. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.agent.policy.store.audit import Change
from penstock.agent.policy.store.interface import IMPERATIVE, Result, StoredPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.agent.policy.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Edit:
    """A requested change of one policy; without a manifest, a deletion.

    Attributes:
        owner: of the policy after the edit.

    """

    name: str
    manifest: Manifest | None
    action: str
    author: str
    reason: str = ""
    owner: str = IMPERATIVE


@dataclass(frozen=True, slots=True)
class Write:
    """The write of one policy; ``stored`` is None for a deletion."""

    change: Change
    stored: StoredPolicy | None


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """All writes of a change, with results and the policies afterwards."""

    writes: tuple[Write, ...]
    results: tuple[Result, ...]
    after: Mapping[str, StoredPolicy]


def plan_changes(
    present: Mapping[str, StoredPolicy],
    last_generations: Mapping[str, int],
    edits: Iterable[Edit],
    unix_nano: int,
) -> ChangePlan:
    """Plan *edits*, at most one a name, on *present*.

    Args:
        last_generations: highest generation ever of each name of *edits*; absent for none.
        unix_nano: time of the change.

    """
    after = dict(present)
    writes, results = [], []
    for edit in edits:
        old = present.get(edit.name)
        if edit.manifest is not None and old is not None and _same(old, edit):
            results.append(Result(edit.name, "unchanged", old.generation))
            continue
        generation = 1 + last_generations.get(edit.name, 0)
        writes.append(_write(edit, old, generation, unix_nano))
        stored = writes[-1].stored
        if stored is None:
            after.pop(edit.name, None)
        else:
            after[edit.name] = stored
        word = "deleted" if stored is None else "created" if old is None else "changed"
        results.append(Result(edit.name, word, generation))
    return ChangePlan(tuple(writes), tuple(results), after)


def _same(old: StoredPolicy, edit: Edit) -> bool:
    return (
        edit.manifest is not None
        and edit.manifest.canonical == old.manifest.canonical
        and edit.owner == old.owner
    )


def _write(edit: Edit, old: StoredPolicy | None, generation: int, unix_nano: int) -> Write:
    change = Change(
        author=edit.author,
        action=edit.action,
        name=edit.name,
        reason=edit.reason,
        old_generation=old.generation if old else 0,
        new_generation=generation,
        old_manifest=old.manifest.canonical if old else "",
        new_manifest=edit.manifest.canonical if edit.manifest else "",
    )
    if edit.manifest is None:
        return Write(change, None)
    return Write(change, StoredPolicy(edit.manifest, generation, edit.owner, edit.author, unix_nano))
