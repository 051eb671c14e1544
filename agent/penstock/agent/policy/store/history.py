"""The policies of the store over time, to name those that an effective policy was merged from.

Read from the audit log, so that it survives a restart and the deletion of a policy. Bounded: the newest 256 changes.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.errors import ManifestError
from penstock.agent.model import PolicySource
from penstock.agent.policy.manifest import build_schedule, parse_manifest, policies_selecting
from penstock.agent.policy.store.interface import StoredPolicy
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping

    from penstock.agent.parsing import Target
    from penstock.agent.policy.manifest import Merged

MAX_CHANGES = 256
# Of the manifests of the changes that are read at the start.
_MAX_BYTES = 4 << 20
_MAX_ANSWERS = 1024
# The old generation has an entry of its own, unless that was trimmed.
_CHANGES = """
SELECT a.time_unix_nano, a.name, a.old_generation, a.old_manifest, b.author, b.time_unix_nano
FROM audit a LEFT JOIN audit b ON b.id = (
  SELECT max(id) FROM audit WHERE name = a.name AND new_generation = a.old_generation
  AND action IN ('apply', 'import', 'release', 'rollback'))
WHERE a.action IN ('apply', 'import', 'release', 'rollback', 'delete')
ORDER BY a.id DESC LIMIT ?
"""


class _State(NamedTuple):
    """The policies from a change on; the first one since ever."""

    since_unix_nano: int
    policies: Mapping[str, StoredPolicy]


class PolicyHistory:
    """The policies after each of the newest changes. One writer; reads from any thread."""

    def __init__(self, states: Iterable[_State]) -> None:
        # The states with the answers found in them; replaced as a whole, since other threads read meanwhile.
        self._known: tuple[tuple[_State, ...], dict[object, tuple[PolicySource, ...]]] = (tuple(states), {})

    @classmethod
    def load(cls, connection: sqlite3.Connection, present: Mapping[str, StoredPolicy]) -> PolicyHistory:
        """Return the history that led to *present*: the audit log, undone from its end."""
        state, size = dict(present), 0
        states: list[_State] = []
        for time, name, generation, text, author, changed in connection.execute(_CHANGES, (MAX_CHANGES,)):
            size += len(text)
            if size > _MAX_BYTES:
                break
            states.append(_State(time, dict(state)))
            state.pop(name, None)
            try:
                if text:
                    manifest = parse_manifest(text)
                    state[name] = StoredPolicy(manifest, generation, "", author or "", changed or 0)
            except ManifestError:
                # Of another version: that policy has no name here.
                continue
        return cls([_State(0, state), *reversed(states)])

    def add(self, policies: Mapping[str, StoredPolicy], unix_nano: int) -> None:
        """Add the policies after a change."""
        states, _ = self._known
        self._known = ((*states[-MAX_CHANGES:], _State(unix_nano, policies)), {})

    def sources(self, hash_: str, target: Target, unix_nano: int) -> tuple[PolicySource, ...]:
        """Return what the effective policy *hash_* of *target* was merged from; as :meth:`Store.sources`."""
        states, answers = self._known
        at = max(bisect_right(states, unix_nano, key=lambda state: state.since_unix_nano), 1)
        key = (hash_, at, target.key, target.model, frozenset(target.labels.items()))
        found = answers.get(key)
        if found is None:
            if len(answers) >= _MAX_ANSWERS:
                answers.clear()
            found = answers[key] = _find(states, at, hash_, target, unix_nano) if hash_ else ()
        return found


def policy_sources(merged: Merged, policies: Mapping[str, StoredPolicy]) -> tuple[PolicySource, ...]:
    """Return what *merged* has from each of *policies*, the highest rank first."""
    fields: dict[str, list[str]] = {}
    for path, given in merged.body.items():
        fields.setdefault(given.policy, []).append(path)
    for path, given in (merged.observed or {}).items():
        if merged.body.get(path) != given:
            fields.setdefault(given.policy, []).append(f"observed.{path}")
    ranked = sorted(
        (policies[name] for name in fields if name in policies),
        key=lambda policy: (-policy.manifest.spec.priority, policy.manifest.name),
    )
    return tuple(
        PolicySource(
            policy.manifest.name,
            policy.generation,
            policy.author,
            policy.changed_unix_nano,
            tuple(fields[policy.manifest.name]),
        )
        for policy in ranked
    )


def _find(
    states: tuple[_State, ...], at: int, hash_: str, target: Target, unix_nano: int
) -> tuple[PolicySource, ...]:
    """Search from the state of that time back, as an engine takes a policy late; then onwards, for a clock that is behind."""
    tried: set[tuple[str, ...]] = set()
    for index in (*range(at - 1, -1, -1), *range(at, len(states))):
        state = states[index]
        selecting = policies_selecting((each.manifest for each in state.policies.values()), target)
        texts = tuple(sorted(policy.canonical for policy in selecting))
        if not texts or texts in tried:
            continue
        tried.add(texts)
        # The step of that time first: an expiry need not change the hash.
        moments = [unix_nano, state.since_unix_nano] if index == at - 1 else [state.since_unix_nano]
        for moment in moments:
            for step in build_schedule(selecting, datetime.fromtimestamp(moment / NANOS, UTC)):
                if step.merged.hash == hash_:
                    return policy_sources(step.merged, state.policies)
    return ()
