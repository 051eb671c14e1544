"""The sources of an effective policy: at an event's time, after a deletion, after a restart."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.policy.manifest.merge import effective_schedule, merge_policies
from penstock.agent.policy.store import history
from penstock.agent.policy.store.audit import AuditLimit
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore

from tests.support.policy.policies import NOW, action, manifest, target

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.agent.model import PolicySource
    from penstock.agent.policy.manifest.manifest import Manifest

_ENGINE = target(role="decode")
_FAIL = manifest("calm", kvLoadFailure=action("fail"))
_HASH = merge_policies([_FAIL]).hash


class _Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = NOW.timestamp()

    def __call__(self) -> float:
        return self.now

    @property
    def nano(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture
def clock() -> _Clock:
    """Make a clock that stands still."""
    return _Clock()


@pytest.fixture
def moving(database: PolicyDatabase, clock: _Clock) -> PolicyStore:
    """Make a store with that clock."""
    return PolicyStore(database, clock=clock)


def _short(sources: tuple[PolicySource, ...]) -> list[tuple[str, int, str]]:
    return [(source.name, source.generation, source.author) for source in sources]


async def _changes(store: PolicyStore, clock: _Clock, *changes: tuple[Manifest | None, str]) -> list[int]:
    """Apply each manifest, or delete the policy, ten seconds apart; return the times just after."""
    times = []
    for content, author in changes:
        clock.now += 10
        if content is None:
            await store.delete("calm", author=author)
        else:
            await store.apply(content, author=author)
        times.append(clock.nano + 1)
    return times


async def test_the_generation_at_the_time_of_an_event(moving: PolicyStore, clock: _Clock) -> None:
    """Of generations with equal content the one at that time is returned, with tolerance for late engines."""
    other = manifest("calm", kvLoadFailure=action("recompute"))
    first, between, second, gone = await _changes(
        moving, clock, (_FAIL, "ann"), (other, "bob"), (_FAIL, "cid"), (None, "dan")
    )
    for moment, expected in (
        (first, ("calm", 1, "ann")),
        (between, ("calm", 1, "ann")),
        (second, ("calm", 3, "cid")),
        (gone, ("calm", 3, "cid")),
        (0, ("calm", 1, "ann")),
        (1 << 63, ("calm", 3, "cid")),
    ):
        assert _short(moving.sources(_HASH, _ENGINE, moment)) == [expected], moment
    assert moving.sources("", _ENGINE, first) == moving.sources("0" * 64, _ENGINE, first) == ()


async def test_it_survives_a_restart(database: PolicyDatabase, moving: PolicyStore, clock: _Clock) -> None:
    """After a restart sources have authors and times, from the audit log."""
    other = manifest("calm", kvLoadFailure=action("recompute"))
    times = await _changes(moving, clock, (_FAIL, "ann"), (other, "bob"), (_FAIL, "cid"), (None, "dan"))
    anew = PolicyStore(database, clock=clock)
    for moment in times:
        assert anew.sources(_HASH, _ENGINE, moment) == moving.sources(_HASH, _ENGINE, moment)
    (source,) = anew.sources(_HASH, _ENGINE, times[2])
    assert (source.changed_time_unix_nano, source.fields) == (times[2] - 1, ("kvLoadFailure.action",))


async def test_each_policy_of_a_merge_is_named_with_its_fields(moving: PolicyStore) -> None:
    """Sources are sorted by rank; those without an effective field or selection are absent."""
    given: list[tuple[str, dict[str, Any]]] = [
        ("base", {"kvLoadFailure": {"action": "auto", "maxRecomputeTokens": 7}}),
        ("high", {"priority": 200, "kvLoadFailure": action("fail")}),
        ("elsewhere", {"selector": {"matchLabels": {"role": "prefill"}}, "priority": 500}),
        ("hidden", {"priority": 50, "kvLoadFailure": action("recompute")}),
        ("shadow", {"priority": 300, "mode": "observe", "kvLoadFailure": action("recompute")}),
    ]
    for name, spec in given:
        await moving.apply(manifest(name, **spec), author=f"by-{name}")
    hash_ = effective_schedule((each.manifest for each in moving.policies()), _ENGINE, NOW)[0].merged.hash
    found = moving.sources(hash_, _ENGINE, int(NOW.timestamp() * 1e9))
    assert [(source.name, source.fields) for source in found] == [
        ("shadow", ("observed.kvLoadFailure.action",)),
        ("high", ("kvLoadFailure.action",)),
        ("base", ("kvLoadFailure.maxRecomputeTokens",)),
    ]
    assert moving.sources(hash_, target(role="prefill"), 0) == ()


async def test_a_step_after_an_expiry_is_named_too(moving: PolicyStore, clock: _Clock) -> None:
    """The steps of a schedule have sources."""
    end = NOW + timedelta(minutes=5)
    brief = manifest("brief", priority=200, expiresAt=end.isoformat(), kvLoadFailure=action("recompute"))
    await moving.apply(_FAIL, author="ann")
    await moving.apply(brief, author="bob")
    later = int((end.timestamp() + 60) * 1e9)
    assert _short(moving.sources(_HASH, _ENGINE, later)) == [("calm", 1, "ann")]
    both = merge_policies([_FAIL, brief]).hash
    assert _short(moving.sources(both, _ENGINE, clock.nano)) == [("brief", 1, "bob")]


async def test_what_is_kept_is_bounded(
    database: PolicyDatabase, moving: PolicyStore, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest changes are kept, over the state before them."""
    monkeypatch.setattr(history, "MAX_CHANGES", 3)
    contents = [manifest("calm", kvLoadFailure={"action": "auto", "maxRecomputeTokens": n}) for n in range(8)]
    times = await _changes(moving, clock, *((each, f"a{n}") for n, each in enumerate(contents)))
    hashes = [merge_policies([each]).hash for each in contents]
    for store in (moving, PolicyStore(database, clock=clock)):
        known = [bool(store.sources(hash_, _ENGINE, times[-1])) for hash_ in hashes]
        assert known == [False] * 4 + [True] * 4
        assert _short(store.sources(hashes[4], _ENGINE, times[-1])) == [("calm", 5, "a4")]


async def test_a_trimmed_log_costs_the_author(tmp_path: Path, clock: _Clock) -> None:
    """After a trim the content before the next change is known, without an author."""
    database = PolicyDatabase.open(tmp_path, AuditLimit(entries=2))
    store = PolicyStore(database, clock=clock)
    other = manifest("calm", kvLoadFailure=action("recompute"))
    await _changes(store, clock, (other, "ann"), (_FAIL, "bob"), (other, "cid"))
    anew = PolicyStore(database, clock=clock)
    known = [source.author for source in anew.sources(_HASH, _ENGINE, clock.nano)]
    assert known in ([""], ["bob"])
    assert [source.author for source in store.sources(_HASH, _ENGINE, clock.nano)] == ["bob"]
    database.close()
