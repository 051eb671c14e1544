"""A mixture of experts small enough for a test: Qwen3-MoE with real random weights.

``python -m tests.support.gpu.experts_model DIRECTORY`` writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from demo.common.model import SEED, SPREAD, built, tokenizer, write

_RECIPE = "tiny-qwen3-moe-1"


def tiny_experts_model(cache: Path) -> Path:
    """Return the directory of the tiny Qwen3-MoE below *cache*; build it at the first call.

    Raises:
        RuntimeError: the build failed; the text has the builder's output.

    """
    return built(cache / _RECIPE, by="tests.support.gpu.experts_model")


def _build(target: Path) -> None:
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    # Widths are multiples of 128, which every kernel for mixtures of experts takes, also split over two ranks.
    config = Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=256,
        moe_intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        initializer_range=SPREAD / 4,
    )
    torch.manual_seed(SEED)
    model = Qwen3MoeForCausalLM(config).to(torch.float32)
    write(target, model.save_pretrained, tokenizer().save_pretrained)


if __name__ == "__main__":
    _build(Path(sys.argv[1]))
