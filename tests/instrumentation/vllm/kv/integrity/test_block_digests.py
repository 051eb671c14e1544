"""Digests of blocks: what they find, and that nothing else matters."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.vllm.kv.integrity.block_digests import BlockDigests, KvLayout, layout_of
from penstock.instrumentation.vllm.messages import GroupBlocks

BLOCKS, HEADS, SIZE, CONTENT, LAYERS = 12, 2, 16, 64, 3
IDS = (3, 7, 1, 9)


def _caches(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"layers.{number}": torch.randn(BLOCKS, HEADS, SIZE, CONTENT, generator=generator).to(dtype)
        for number in range(LAYERS)
    }


def _layout(caches: dict[str, torch.Tensor]) -> KvLayout:
    return layout_of(caches, dict.fromkeys(caches, 0), block_size=SIZE, total_heads=HEADS, rank=0, ranks=1)


def _digests(caches: dict[str, torch.Tensor], ids: tuple[int, ...] = IDS, tail: int = SIZE) -> torch.Tensor:
    return BlockDigests(_layout(caches)).compute(0, GroupBlocks(ids, tail))


def _words(cache: torch.Tensor) -> torch.Tensor:
    return cache.view(torch.uint8).view(torch.int64)


@given(
    layer=st.integers(0, LAYERS - 1),
    block=st.integers(0, len(IDS) - 1),
    head=st.integers(0, HEADS - 1),
    token=st.integers(0, SIZE - 1),
    word=st.integers(0, CONTENT // 2 - 1),
    bit=st.integers(0, 63),
)
def test_any_flipped_bit_changes_its_digest_only(
    layer: int, block: int, head: int, token: int, word: int, bit: int
) -> None:
    """One bit changes the digest of its block and head, and no other."""
    good, caches = _digests(_caches()), _caches()
    mask = torch.tensor(1 << bit if bit < 63 else -(1 << 63))
    _words(caches[f"layers.{layer}"])[IDS[block], head, token, word] ^= mask
    differs = _digests(caches) != good
    assert differs.nonzero().tolist() == [[block, head]]


@given(bits=st.lists(st.integers(0, CONTENT // 2 * SIZE - 1), min_size=2, max_size=40, unique=True))
def test_the_highest_bits_of_many_words(bits: list[int]) -> None:
    """Errors in the same, highest bit of an even number of words do not cancel."""
    good, caches = _digests(_caches()), _caches()
    words = _words(caches["layers.0"])[IDS[0], 0].reshape(-1)
    words[bits] ^= torch.tensor(-(1 << 63))
    assert (_digests(caches) != good).any()


@given(seed=st.integers(1, 1 << 30), first=st.integers(0, BLOCKS - 1), second=st.integers(0, BLOCKS - 1))
def test_swapped_stale_and_zeroed_blocks(seed: int, first: int, second: int) -> None:
    """A block that is another one, of another time or zero has another digest."""
    caches = _caches(seed)
    everything = tuple(range(BLOCKS))
    good = _digests(caches, everything)
    if first != second:
        assert (good[first] != good[second]).all()
    for cache in caches.values():
        cache[first] = 0
    assert (_digests(caches, everything)[first] != good[first]).all()
    assert (_digests(_caches(seed + 1), everything) != good).all()


@pytest.mark.parametrize("tail", [1, SIZE])
def test_one_block_and_none(tail: int) -> None:
    """A prompt shorter than a block has one digest, no block has none."""
    assert _digests(_caches(), IDS[:1], tail).shape == (1, HEADS)
    assert _digests(_caches(), (), tail).shape == (0, HEADS)


def test_layers_in_each_other_s_place() -> None:
    """A layer's content counts for that layer."""
    caches = _caches()
    good = _digests(caches)
    caches["layers.0"], caches["layers.2"] = caches["layers.2"], caches["layers.0"]
    assert (_digests(caches) != good).all()


@given(tail=st.integers(1, SIZE), token=st.integers(0, SIZE - 1), head=st.integers(0, HEADS - 1))
def test_only_valid_tokens_of_the_last_block_count(tail: int, token: int, head: int) -> None:
    """What is behind the prompt's last token is not compared; what is before it is."""
    good, caches = _digests(_caches(), tail=tail), _caches()
    caches["layers.1"][IDS[-1], head, token] += 1
    assert bool((_digests(caches, tail=tail) != good).any()) is (token < tail)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8])
def test_the_memory_s_layout_does_not_matter(dtype: torch.dtype) -> None:
    """Heads or tokens may come first in memory: the views have one logical order."""
    caches = _caches(dtype=dtype)
    other = {name: cache.transpose(1, 2).contiguous().transpose(1, 2) for name, cache in caches.items()}
    assert other["layers.0"].stride() != caches["layers.0"].stride()
    assert _digests(other).equal(_digests(caches))


def test_a_rank_s_heads_have_the_digests_of_the_whole() -> None:
    """The digests of a rank are those of its heads, so that unequal numbers of ranks can be compared."""
    caches = _caches()
    whole = _digests(caches)
    for rank in range(2):
        own = {name: cache[:, rank : rank + 1].contiguous() for name, cache in caches.items()}
        layout = layout_of(own, dict.fromkeys(own, 0), block_size=SIZE, total_heads=2, rank=rank, ranks=2)
        assert layout.heads == (rank,)
        assert BlockDigests(layout).compute(0, GroupBlocks(IDS, SIZE)).equal(whole[:, rank : rank + 1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda cache: cache[0], "no layout"),
        (lambda cache: cache[:, :1], "1 heads"),
        (lambda cache: cache[:, :, :8], "8 tokens"),
        (lambda cache: cache[..., :3], "multiple"),
    ],
)
def test_layouts_that_cannot_be_digested(change: object, words: str) -> None:
    """They say why."""
    caches = {name: change(cache) for name, cache in _caches().items()}  # type: ignore[operator]
    assert words in _layout(caches).problem


def test_a_layer_without_a_group_shares_another_s_cache() -> None:
    """It is left out; a group without a layer is a problem."""
    caches = _caches()
    groups = {"layers.0": 0, "layers.1": 0}
    layout = layout_of(caches, groups, block_size=SIZE, total_heads=HEADS, rank=0, ranks=1)
    assert len(layout.groups[0]) == 2
    assert layout_of({}, {}, block_size=SIZE, total_heads=1, rank=0, ranks=1).problem
