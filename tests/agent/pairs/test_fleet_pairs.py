"""Which engines are pairs, and what is said of one whose other side is not known."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from penstock.agent.pairs import compare_sides, list_pairs
from penstock.agent.pairs.role_pairs import Comparisons, count_pairs, may_pair, ordered, worst_pairs
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import (
    CHANNEL_EC,
    CHANNEL_KV,
    ERROR_TYPE_INCOMPATIBLE,
    ROLE_BOTH,
    ROLE_DECODE,
    ROLE_ENCODER,
    ROLE_PREFILL,
)


def engine(name: str, role: int, **fields: Any) -> admin.PairEngine:
    """Build an engine; its id and address follow from its name."""
    facts = {
        "model": "m",
        "kv_connector": "NixlConnector",
        "kv_engine_id": f"id-{name}",
        "side_channel": f"{name}:5600",
        "compatibility_hash": "h",
        **fields.pop("facts", {}),
    }
    return admin.PairEngine(key={"server": name, "engine": "0"}, role=role, facts=facts, **fields)  # type: ignore[arg-type]


def names(found: admin.ListPairsResponse) -> list[tuple[str, str]]:
    """Return the two sides of each pair, in order."""
    return [(pair.key.server, pair.peer_key.server or pair.peer.address) for pair in found.pairs]


def test_pairs_by_role() -> None:
    """Prefill with decode, both with anything but an encoder; one model, one family of connectors, one pool."""
    found = list_pairs(
        [
            engine("p", ROLE_PREFILL),
            engine("d", ROLE_DECODE),
            engine("b", ROLE_BOTH),
            engine("e", ROLE_ENCODER),
            engine("other", ROLE_PREFILL, facts={"model": "n"}),
            engine(
                "push", ROLE_PREFILL, facts={"kv_connector": "NixlPushConnector", "compatibility_hash": "x"}
            ),
            engine("away", ROLE_PREFILL, labels={"pool": "blue"}),
            engine("green", ROLE_DECODE, labels={"pool": "green"}),
        ]
    )
    both = {(pair.key.server, pair.peer_key.server): pair.compatible for pair in found.pairs}
    assert both["d", "p"] == both["b", "p"] == both["d", "b"] == admin.PAIR_COMPATIBILITY_YES
    assert both["d", "push"] == admin.PAIR_COMPATIBILITY_NO
    assert ("d", "away") in both
    assert ("green", "away") not in both
    assert not {"e", "other"} & {name for pair in both for name in pair}
    # What is wrong comes first.
    assert found.pairs[0].peer_key.server == "push"


def test_a_peer_is_found_by_id_then_by_its_own_address() -> None:
    """Roles play no part; an address that two engines have names neither."""
    met = {"status": {"peer": {"address": "p:5600", "engine_id": "id-p"}, "connected": True}}
    speed = {"channel": CHANNEL_KV, "bytes_per_second": 9.0, "count": 7}
    old = {
        "status": {"peer": {"address": "q:5600", "engine_id": "earlier"}, "connected": True},
        "speeds": [speed],
    }
    local = {"status": {"peer": {"address": "localhost:1"}, "connected": True}}
    found = list_pairs(
        [
            engine("d", 0, peers=[met, old, local]),
            engine("p", 0),
            engine("q", 0),
            engine("r", 0, facts={"side_channel": "localhost:1"}),
            engine("s", 0, facts={"side_channel": "localhost:1"}),
        ]
    )
    assert sorted(names(found)) == [("d", "localhost:1"), ("d", "p"), ("d", "q")]
    assert all(pair.connected for pair in found.pairs)
    assert [pair.speed.count for pair in found.pairs if pair.peer_key.server == "q"] == [7]


def test_a_peer_of_another_pod() -> None:
    """What its handshake has told: fits, incompatible with the factors, or nothing yet."""
    peers = [
        {
            "status": {
                "peer": {"address": "ok"},
                "connected": True,
                "tensor_parallel_size": 2,
                "block_size": 16,
            }
        },
        {
            "status": {
                "peer": {"address": "bad"},
                "handshake_error": ERROR_TYPE_INCOMPATIBLE,
                "handshake_factors": ["vllm_version"],
            }
        },
        {"status": {"peer": {"address": "enc"}}, "speeds": [{"channel": CHANNEL_EC, "count": 1}]},
    ]
    bad, encoder, good = list_pairs([engine("d", ROLE_DECODE, peers=peers)]).pairs
    assert bad.compatible == admin.PAIR_COMPATIBILITY_NO
    assert "vllm_version" in bad.reason
    assert "without a handshake" in encoder.reason
    assert good.compatible == admin.PAIR_COMPATIBILITY_YES
    assert (good.peer_geometry, good.weights) == ("TP2, 16-token blocks", admin.PAIR_WEIGHTS_UNKNOWN)


_roles = st.sampled_from([0, ROLE_PREFILL, ROLE_DECODE, ROLE_BOTH, ROLE_ENCODER])


# Two of one role that know each other were two pairs.
@example([(ROLE_PREFILL, [1]), (ROLE_PREFILL, [0])], 0)
@example([(ROLE_DECODE, [1]), (ROLE_DECODE, [0])], 0)
@given(st.lists(st.tuples(_roles, st.lists(st.integers(0, 6), max_size=3)), max_size=6), st.integers(0, 40))
def test_any_fleet(fleet: list[tuple[int, list[int]]], limit: int) -> None:
    """Two engines are one pair at most, none is its own peer, and the rest is counted."""
    engines = [
        engine(str(index), role, peers=[{"status": {"peer": {"engine_id": f"id-{peer}"}}} for peer in peers])
        for index, (role, peers) in enumerate(fleet)
    ]
    found = list_pairs(engines, limit)
    everything = list_pairs(engines)
    assert found.left_out + len(found.pairs) == len(everything.pairs)
    sides = [
        frozenset((pair.key.server, pair.peer_key.server))
        for pair in everything.pairs
        if pair.HasField("peer_key")
    ]
    assert len(sides) == len(set(sides))
    assert all(len(side) == 2 for side in sides)


_engines = st.lists(
    st.builds(
        lambda role, model, pool, weights, connector: {
            "role": role,
            "labels": {"pool": pool, "weights": weights, "pod": "x"},
            "facts": {"model": model, "kv_connector": connector},
        },
        _roles,
        st.sampled_from(["m", "m", "n"]),
        st.sampled_from(["", "", "blue", "green"]),
        st.sampled_from(["", "a", "b"]),
        st.sampled_from(["NixlConnector", "NixlPushConnector", "Other", ""]),
    ),
    max_size=12,
)


@given(_engines, st.integers(0, 30))
def test_kinds_of_engines_say_what_each_two_say(fleet: list[dict[str, Any]], limit: int) -> None:
    """The worst pairs are these of a look at each two engines, in the same order, and as many are counted."""
    engines = [engine(f"{index:02}", **each) for index, each in enumerate(fleet)]
    names = [each.key.server for each in engines]
    each_two = [ordered(engines, *two) for two in itertools.combinations(range(len(engines)), 2)]
    wanted = []
    for one, other in each_two:
        if may_pair(engines[one], engines[other]):
            verdict = compare_sides(engines[one], engines[other])
            worst = max((each.effect for each in verdict.differences), default=0)
            wanted.append((-verdict.compatible, -worst, names[one], names[other]))
    wanted.sort()
    found = itertools.islice(worst_pairs(engines, names, Comparisons(engines)), limit)
    assert [(*badness, names[one], names[other]) for badness, one, other in found] == wanted[:limit]
    assert count_pairs(engines) == len(wanted)
    listed = list_pairs(engines, limit)
    assert [(pair.key.server, pair.peer_key.server) for pair in listed.pairs] == [
        each[2:] for each in wanted[:limit]
    ]
    assert listed.left_out == max(0, len(wanted) - limit)


def test_each_engine_of_another_kind() -> None:
    """The comparisons of an agent that makes up engines have an end; others' pairs are among what is known."""
    made_up = [
        engine(f"x{index}", ROLE_BOTH, facts={"model": "x", "weights": {"digest": str(index)}})
        for index in range(2_000)
    ]
    others = [engine("p", ROLE_PREFILL), engine("d", ROLE_DECODE, facts={"compatibility_hash": "x"})]
    found = list_pairs([*made_up, *others])
    assert found.left_out + len(found.pairs) == 2_000 * 1_999 // 2 + 1
    assert len(found.pairs) == 10_000
    assert names(found)[0] == ("d", "p")
    comparisons = Comparisons(made_up, 100)
    assert len(list(worst_pairs(made_up, [each.key.server for each in made_up], comparisons))) == 5


def test_engines_that_tell_much() -> None:
    """The pairs of one answer are bounded in bytes; the worst are there."""
    many = [
        engine(
            f"{index:03}",
            ROLE_BOTH,
            facts={
                "compatibility_hash": str(index),
                "compatibility_factors": {f"{each}": f"{index} {'x' * 90}" for each in range(150)},
            },
        )
        for index in range(60)
    ]
    found = list_pairs(many)
    assert found.left_out + len(found.pairs) == 60 * 59 // 2
    assert found.left_out > 0
    assert 7 << 20 < sum(pair.ByteSize() for pair in found.pairs) < 8 << 20


@pytest.mark.parametrize("own", ["kv_engine_id", "side_channel", "num_gpu_blocks", "start_time_unix_nano"])
def test_what_is_of_no_kind(own: str) -> None:
    """What tells two engines of one deployment apart makes them no other kind; each fact that is compared does."""
    alike = {"kv_engine_id": "", "side_channel": ""}
    one, other = (
        engine("p", ROLE_PREFILL, facts=alike | {own: value})
        for value in (("a", "b") if own in alike else (1, 2))
    )
    assert len(set(Comparisons([one, other]).kinds)) == 1
    other.facts.block_size = 8
    assert len(set(Comparisons([one, other]).kinds)) == 2
