"""What the digest of verified KV transfers costs, against copying the same memory and against CRC-32: ``make bench ONLY=integrity``.

Blocks as a model of 8 billion parameters has them, on one thread; without an engine.
"""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness.interleave import Run, take_turns, without_gc
from benchmarks.harness.results import Row, Section, Spread, against

if TYPE_CHECKING:
    from collections.abc import Callable

AREA: Final = "integrity"
TITLE: Final = "Integrity"
MEANING: Final = (
    "A digest of the blocks of a sampled request, computed where the blocks are. It costs the share of "
    "requests that the policy samples, and nothing without a policy."
)
_NOTES: Final = (
    (
        "The digest of a request's KV blocks, which the policy's `integrity` has both sides compute, on one thread of the CPU: 32 layers, 8 KV heads, blocks of "
        "16 tokens, 128 KiB a token (bfloat16). *copy* writes the same bytes to other memory (`memcpy`), *CRC-32* is zlib's over the same blocks without a value "
        "for each head. The time by prompt token is what a sampled request adds to the step that ends its prefill, and to the one that receives it; the mean "
        "over all requests is that times the sample ratio, since the others cost nothing. The share is that over the 100 µs which a token takes in a prefill of 10,000 tokens/s. On a GPU the same expression runs on the device; that was not measured."
    ),
)
_LAYERS, _HEADS, _BLOCK, _CONTENT = 32, 8, 16, 256
_BLOCKS, _TOKENS = 256, 512
_ROUNDS, _QUICK_ROUNDS = 40, 12
_RATIOS: Final = (1, 10, 100)
_GROUP: Final = "Digest of the blocks of 512 tokens"
# Of a prefill that computes 10,000 tokens a second.
_STEP_TOKEN_US: Final = 100.0


def measure(run: Run) -> Section:
    """Measure the area."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(run)
    finally:
        torch.set_num_threads(threads)


def _measure(run: Run) -> Section:
    subjects, size = _subjects()
    for once in subjects.values():
        once()
    with without_gc():
        found = take_turns(subjects, _QUICK_ROUNDS if run.quick else _ROUNDS, run.say)
    speeds = {name: [size / seconds / 1e9 for seconds in found[name]] for name in found}
    rows = [
        against("speed", "GB/s", speeds["ours"], peer, speeds[peer], group=_GROUP, better="higher")
        for peer in ("copy", "CRC-32")
    ]
    by_token = [seconds / _TOKENS * 1e6 for seconds in found["ours"]]
    rows += [
        Row(
            f"mean by prompt token, {ratio} % of the requests sampled",
            "µs",
            Spread.of([value * ratio / 100 for value in by_token]),
            _GROUP,
        )
        for ratio in _RATIOS
    ]
    rows += [
        Row(
            f"share of a prefill of 10,000 tokens/s, {ratio} % of the requests sampled",
            "%",
            Spread.of([value * ratio / _STEP_TOKEN_US for value in by_token]),
            _GROUP,
        )
        for ratio in _RATIOS
    ]
    return Section(AREA, TITLE, _NOTES, rows)


def _subjects() -> tuple[dict[str, Callable[[], float]], int]:
    """Return what is timed, each call giving its seconds, and the bytes that it reads."""
    import torch
    from penstock.instrumentation.vllm.kv.integrity import BlockDigests, layout_of
    from penstock.instrumentation.vllm.messages import GroupBlocks

    caches: dict[str, Any] = {
        f"layers.{number}": torch.randn(_BLOCKS, _HEADS, _BLOCK, _CONTENT).to(torch.bfloat16)
        for number in range(_LAYERS)
    }
    layout = layout_of(
        caches, dict.fromkeys(caches, 0), block_size=_BLOCK, total_heads=_HEADS, rank=0, ranks=1
    )
    count = _TOKENS // _BLOCK
    ids = tuple(range(1, 8 * count, 8))
    digests, blocks = BlockDigests(layout), GroupBlocks(ids, _BLOCK)
    pieces = [cache[block] for cache in caches.values() for block in ids]
    targets = [torch.empty_like(piece) for piece in pieces]
    views = [memoryview(piece.view(torch.uint8).numpy()).cast("B") for piece in pieces]

    def copy() -> None:
        for target, piece in zip(targets, pieces, strict=True):
            target.copy_(piece)

    def crc() -> None:
        for view in views:
            zlib.crc32(view)

    work = {"ours": lambda: digests.compute(0, blocks), "copy": copy, "CRC-32": crc}
    size = sum(piece.nbytes for piece in pieces)
    return {name: _timed(once) for name, once in work.items()}, size


def _timed(once: Callable[[], object]) -> Callable[[], float]:
    def timed() -> float:
        began = time.perf_counter()
        once()
        return time.perf_counter() - began

    return timed
