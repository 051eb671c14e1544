"""The verdict about two engines: which fact differs, and whether that fails, is silently wrong, or does nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.pairs import compare_sides
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.snapshot_pb2 import EngineFacts

_FACTS: dict[str, Any] = {
    "model": "m",
    "kv_connector": "NixlConnector",
    "tensor_parallel_size": 1,
    "block_size": 16,
    "transfer_mode": "pull",
    "kv_heads": 8,
    "compatibility_hash": "same",
    "compatibility_factors": {"dtype": "bfloat16", "transfer_mode": "pull"},
    "weights": {"digest": "w", "config_digest": "c"},
}
_FAILS, _WRONG, _NONE = (
    admin.DIFFERENCE_EFFECT_FAILS,
    admin.DIFFERENCE_EFFECT_WRONG,
    admin.DIFFERENCE_EFFECT_NONE,
)
_YES, _NO, _UNKNOWN = (
    admin.PAIR_COMPATIBILITY_YES,
    admin.PAIR_COMPATIBILITY_NO,
    admin.PAIR_COMPATIBILITY_UNKNOWN,
)


def side(layout: str = "LBHNC", labels: dict[str, str] | None = None, **changed: Any) -> admin.PairEngine:
    """Build one side; *changed* are facts."""
    return admin.PairEngine(
        facts=EngineFacts(**{**_FACTS, **changed}), labels=labels or {}, transfers=[{"kv_layout": layout}]
    )


@pytest.mark.parametrize(
    ("decode", "prefill", "compatible", "differences"),
    [
        pytest.param({}, {}, _YES, [], id="equal"),
        pytest.param(
            {"compatibility_hash": "a"},
            {"compatibility_hash": "b", "compatibility_factors": {"dtype": "float16", "transfer_mode": "pull"}},
            _NO,
            [("dtype", _FAILS)],
            id="a factor of the hash",
        ),
        pytest.param(
            {"compatibility_hash": "a", "compatibility_factors": {}},
            {"compatibility_hash": "b"},
            _NO,
            [("compatibility_hash", _FAILS)],
            id="a hash whose factors are not known",
        ),
        pytest.param({"compatibility_hash": ""}, {}, _UNKNOWN, [], id="no hash yet"),
        pytest.param(
            {"compatibility_hash": "", "transfer_mode": "push"},
            {},
            _NO,
            [("transfer_mode", _FAILS)],
            id="push with pull, before the hash is known (vllm 50620)",
        ),
        pytest.param(
            {"compatibility_hash": "", "vllm_version": "0.32.0+cpu"},
            {"vllm_version": "0.31.0"},
            _NO,
            [("vllm_version", _FAILS)],
            id="two versions, before the hash is known",
        ),
        pytest.param(
            {"vllm_version": "0.32.0+cpu"}, {"vllm_version": "0.32.0"}, _YES, [], id="two builds of a version"
        ),
        pytest.param(
            {"kv_connector": "LMCacheConnectorV1"}, {}, _NO, [("kv_connector", _FAILS)], id="another connector"
        ),
        pytest.param(
            {"tensor_parallel_size": 4}, {"tensor_parallel_size": 2}, _YES, [("tensor_parallel_size", _NONE)], id="TP 2 to 4"
        ),
        pytest.param(
            {"tensor_parallel_size": 3}, {"tensor_parallel_size": 2}, _NO, [("tensor_parallel_size", _FAILS)], id="TP 2 to 3"
        ),
        pytest.param(
            {"tensor_parallel_size": 2, "kv_heads": 4},
            {"tensor_parallel_size": 8, "kv_heads": 4},
            _NO,
            [("tensor_parallel_size", _FAILS)],
            id="copied KV heads to a smaller side",
        ),
        pytest.param(
            {"tensor_parallel_size": 2, "kv_heads": 1, "latent_attention": True},
            {"tensor_parallel_size": 8, "kv_heads": 1, "latent_attention": True},
            _YES,
            [("tensor_parallel_size", _NONE)],
            id="latent attention has no heads to copy",
        ),
        pytest.param({"block_size": 32}, {}, _YES, [("block_size", _NONE)], id="blocks of 16 into 32"),
        pytest.param({}, {"block_size": 32}, _NO, [("block_size", _FAILS)], id="blocks of 32 into 16"),
        pytest.param(
            {"transfer_mode": "push"},
            {"transfer_mode": "push", "block_size": 32},
            _YES,
            [("block_size", _NONE)],
            id="pushed, prefill splits its blocks",
        ),
        pytest.param(
            {"weights": {"digest": "v"}}, {}, _YES, [("weights", _WRONG)], id="other weights (vllm 55776)"
        ),
        pytest.param(
            {"weights": {"revision": "a" * 40}},
            {"weights": {"revision": "b" * 40}},
            _YES,
            [("weights", _WRONG)],
            id="other commits",
        ),
        pytest.param(
            {"weights": {"digest": "w", "config_digest": "d"}},
            {},
            _YES,
            [("model_config", _NONE)],
            id="another configuration",
        ),
    ],
)  # fmt: skip
def test_the_fact_that_differs(
    decode: dict[str, Any], prefill: dict[str, Any], compatible: int, differences: list[tuple[str, int]]
) -> None:
    """Each is named with what it does."""
    verdict = compare_sides(side(**decode), side(**prefill))
    assert verdict.compatible == compatible, verdict.reason
    assert [(each.fact, each.effect) for each in verdict.differences] == differences


def test_layouts_and_connected_pairs() -> None:
    """Other layouts fail, unless the two have shaken hands: then vLLM permutes, or its check is off."""
    other = side(layout="LBNHC")
    assert compare_sides(side(), other).compatible == _NO
    assert compare_sides(side(), other, connected=True).compatible == _YES
    unchecked = compare_sides(side(compatibility_factors={}), side(compatibility_hash="b"), connected=True)
    assert unchecked.compatible == _YES
    assert [(each.fact, each.effect) for each in unchecked.differences] == [("compatibility_hash", _WRONG)]


def test_weights_by_the_operators_word() -> None:
    """A label stands for the files; weights of which one side tells nothing are unknown."""
    labels = {"weights": "v1"}
    assert (
        compare_sides(side(labels=labels), side(labels=labels, weights={"digest": "x"})).weights
        == admin.PAIR_WEIGHTS_SAME
    )
    differ = compare_sides(side(labels=labels), side(labels={"weights": "v2"}))
    assert differ.weights == admin.PAIR_WEIGHTS_DIFFER
    assert (differ.differences[0].value, differ.differences[0].peer_value) == ("v1", "v2")
    unknown = compare_sides(side(), side(weights={"unknown": "random weights"}))
    assert (unknown.weights, unknown.differences) == (admin.PAIR_WEIGHTS_UNKNOWN, [])


def test_a_mix_of_roll_outs_does_nothing_by_itself() -> None:
    """It is said where both have the label revision: the hashes of two Deployments always differ."""
    verdict = compare_sides(
        side(labels={"pod-template-hash": "5c", "revision": "5"}),
        side(labels={"pod-template-hash": "6d", "revision": "6"}),
    )
    assert verdict.compatible == _YES
    assert [(each.fact, each.value, each.peer_value) for each in verdict.differences] == [
        ("revision", "5", "6")
    ]
    hashes = compare_sides(side(labels={"pod-template-hash": "5c"}), side(labels={"pod-template-hash": "6d"}))
    assert hashes.differences == []


_sides = st.builds(
    side,
    layout=st.sampled_from(["", "LBHNC", "LBNHC"]),
    labels=st.dictionaries(st.sampled_from(["weights", "revision"]), st.sampled_from(["", "1", "2"])),
    kv_connector=st.sampled_from(["NixlConnector", "NixlPushConnector", "OffloadingConnector", ""]),
    tensor_parallel_size=st.integers(0, 9),
    block_size=st.sampled_from([0, 1, 16, 48]),
    transfer_mode=st.sampled_from(["", "pull", "push"]),
    kv_heads=st.integers(0, 4),
    compatibility_hash=st.sampled_from(["", "a", "b"]),
    compatibility_factors=st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12")),
    weights=st.fixed_dictionaries({"digest": st.sampled_from(["", "1", "2"]), "revision": st.sampled_from(["", "a", "b"])}),
)  # fmt: skip


@given(_sides, _sides, st.booleans())
def test_any_two_engines(decode: admin.PairEngine, prefill: admin.PairEngine, connected: bool) -> None:
    """No facts, whatever is absent, raise; the verdict follows from the differences; an engine is compatible with its equal."""
    verdict = compare_sides(decode, prefill, connected=connected)
    effects = [each.effect for each in verdict.differences]
    assert effects == sorted(effects, reverse=True)
    assert (verdict.compatible == _NO) == (_FAILS in effects)
    assert not (connected and _FAILS in effects)
    assert verdict.reason
    weights = [each for each in verdict.differences if each.fact == "weights"]
    assert bool(weights) == (verdict.weights == admin.PAIR_WEIGHTS_DIFFER)
    equal = compare_sides(decode, decode)
    assert equal.differences == []
    assert equal.compatible != _NO
