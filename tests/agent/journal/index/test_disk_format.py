"""The format of request keys on disk: every stored key is found, and no other."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.journal.index.disk_format import (
    batches_in,
    bucket_of,
    make_run,
    pack_keys,
    passes,
    places,
    unpack_keys,
)

# Few of them, near each other and at both ends, so that keys repeat and share buckets and bits of the filter.
KEYS = st.sampled_from([0, 1, 255, 256, 1 << 16, 0x01010101, 0x7FFFFFFF, 1 << 31, 0xFFFFFFFE, 0xFFFFFFFF])
ANY_KEY = KEYS | st.integers(0, (1 << 32) - 1)
BATCHES = st.dictionaries(st.integers(0, 65_535), st.sets(ANY_KEY, max_size=8), min_size=1, max_size=30)


@given(st.lists(ANY_KEY, max_size=20))
def test_packed_keys_come_back(keys):
    """Unpacking returns the keys in order."""
    assert list(unpack_keys(pack_keys(keys))) == keys


@given(st.lists(KEYS, max_size=20), KEYS)
def test_a_key_is_found_in_its_places(keys, wanted):
    """A match across two neighbouring keys is not reported."""
    assert list(places(pack_keys(keys), wanted)) == [at for at, key in enumerate(keys) if key == wanted]


@given(BATCHES, st.integers(1, 1 << 54), ANY_KEY)
def test_a_run_knows_the_batches_of_each_key(batches, first, other):
    """A run returns all batches of a key, at any batch number; its filter passes every stored key."""
    begin = min(batches)
    rows = [(first + number - begin, pack_keys(batches[number])) for number in sorted(batches)]
    expected = defaultdict(set)
    for number, keys in batches.items():
        for key in keys:
            expected[key].add(first + number - begin)
    run = make_run(rows)
    assert (run.first, run.last) == (rows[0][0], rows[-1][0])
    buckets = dict(run.buckets)
    for key in {*expected, other}:
        found = list(batches_in(run.first, buckets.get(bucket_of(key), b""), key))
        assert sorted(found) == sorted(expected.get(key, ()))
        assert passes(run.passing, key) or not found


def test_a_filter_keeps_most_others_out():
    """The filter rejects most keys that are not stored."""
    step = 1 << 20
    run = make_run([(1, pack_keys(range(0, 1 << 32, step)))])
    assert all(passes(run.passing, key) for key in range(0, 1 << 32, step))
    others = range(step // 2, 1 << 32, step)
    assert sum(passes(run.passing, key) for key in others) == 0


@given(st.binary(max_size=40), KEYS)
def test_what_a_bad_disk_has_cut_raises_nothing(spoilt, key):
    """Cut data never raises; false matches are allowed, since the caller checks the batch."""
    list(unpack_keys(spoilt))
    list(batches_in(1, spoilt, key))
