"""Full collections of garbage: what they look at, and when they look at everything."""

from __future__ import annotations

import gc
import weakref

from penstock.agent.server.full_collections import collect_everything, short_full_collections

_TEN_MINUTES = 600.0


class _Part:
    """One of a cycle."""

    def __init__(self) -> None:
        self.itself = self


def _is_looked_at(part: object) -> bool:
    return any(each is part for each in gc.get_objects())


def _garbage() -> weakref.ref[_Part]:
    """Return a cycle that has survived a collection and is garbage now."""
    part = _Part()
    gc.collect()
    return weakref.ref(part)


def test_what_has_survived_is_looked_at_no_more() -> None:
    """What is there at the beginning neither; after the end collections leave nothing more out."""
    first = _Part()
    with short_full_collections(lambda: 0.0):
        later = _Part()
        assert (_is_looked_at(first), _is_looked_at(later)) == (False, True)
        gc.collect()
        assert not _is_looked_at(later)
    last = _Part()
    gc.collect()
    assert _is_looked_at(last)


def test_new_garbage_is_collected() -> None:
    """As without it."""
    with short_full_collections(lambda: 0.0):
        new = weakref.ref(_Part())
        gc.collect()
        assert new() is None


def test_old_garbage_stays_for_ten_minutes() -> None:
    """A smaller collection does not look for it even then."""
    now = 0.0
    with short_full_collections(lambda: now):
        old = _garbage()
        now = _TEN_MINUTES - 1
        gc.collect()
        assert old() is not None
        now = _TEN_MINUTES
        gc.collect(1)
        assert old() is not None
        gc.collect()
        assert old() is None


def test_everything_is_collected_where_memory_is_short() -> None:
    """At once."""
    with short_full_collections(lambda: 0.0):
        old = _garbage()
        collect_everything()
        assert old() is None
