"""The digest among a request's transfer parameters."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.vllm.kv.integrity.transfer_digest import (
    DIGESTS_MAX,
    decode_digest,
    encode_digest,
    encode_problem,
    join_ranks,
)
from penstock.instrumentation.vllm.messages import GroupBlocks, GroupDigest, RankDigest, TransferDigest

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    heads=st.integers(1, 8),
    groups=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=3),
)
def test_it_comes_back(heads: int, groups: list[tuple[int, int]]) -> None:
    """What was encoded is decoded, over JSON."""
    digest = TransferDigest(
        16, heads, tuple(GroupDigest(c + more, 5, c, bytes(range(8)) * heads * c) for c, more in groups)
    )
    assert decode_digest(json.loads(json.dumps(encode_digest(digest)))) == digest


@given(
    value=_JSON
    | st.fixed_dictionaries({"v": st.just(1), "heads": _JSON, "block_size": _JSON, "groups": _JSON})
)
def test_anything_else_is_a_reason(value: Any) -> None:
    """A client can send anything; it raises nothing."""
    assert isinstance(decode_digest(value), str)


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"groups": []},
        {"heads": 0},
        {"block_size": True},
        {"groups": [{"blocks": 1, "tail": 16, "digests": "AAAAAAAAAAA"}]},
        {"groups": [{"blocks": 1, "tail": 17, "digests": "AAAAAAAAAAA="}]},
        {"groups": [{"blocks": 0, "tail": 16, "digests": "AAAAAAAAAAA="}]},
        {"groups": [{"blocks": 9999, "tail": 16, "digests": "AAAAAAAAAAAA" * (DIGESTS_MAX)}]},
    ],
)
def test_wrong_fields(change: dict[str, Any]) -> None:
    """A field out of its bounds makes it unreadable."""
    good = {
        "v": 1,
        "heads": 1,
        "block_size": 16,
        "groups": [{"blocks": 1, "tail": 16, "digests": "AAAAAAAAAAA="}],
    }
    assert isinstance(decode_digest(good), TransferDigest)
    assert isinstance(decode_digest(good | change), str)


def test_a_sender_that_cannot_digest_says_why() -> None:
    """Its reason arrives."""
    assert decode_digest(encode_problem("too odd")) == "the sender has no digest: too odd"


def test_ranks_are_joined_by_head() -> None:
    """Each head comes from the rank that has it; a head that nobody has, or that two have differently, leaves no digest."""

    def rank(heads: tuple[int, ...], *values: int) -> RankDigest:
        return RankDigest("r", 16, 4, heads, (struct.pack(f"<{len(values)}q", *values),))

    order = (GroupBlocks((5, 6), 3),)
    ranks = [rank((2, 3), 12, 13, 22, 23), rank((0, 1), 10, 11, 20, 21)]
    joined = join_ranks(ranks, [7], order)
    assert joined == TransferDigest(
        16, 4, (GroupDigest(7, 3, 2, struct.pack("<8q", 10, 11, 12, 13, 20, 21, 22, 23)),)
    )
    assert join_ranks(ranks[:1], [7], order) == "ranks are missing"
    assert join_ranks([*ranks, ranks[1]], [7], order) == joined
    other = rank((1, 2), 11, 12, 21, 99)
    assert join_ranks([*ranks, other], [7], order) == "the ranks' copies of a KV head differ"
