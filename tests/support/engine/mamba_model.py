"""A tiny Falcon-H1, whose layers each have full attention and a Mamba-2 mixer: two KV cache groups, one of states.

vLLM has its mixer's kernels for a CPU. ``python -m tests.support.engine.mamba_model DIRECTORY`` writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from demo.common.model import SEED, built, text_config, tokenizer, write

_RECIPE = "tiny-falcon-h1-1"


def mamba_model(cache: Path) -> Path:
    """Return the directory of the model below *cache*; build it at the first call.

    Raises:
        RuntimeError: the build failed; the text has the builder's output.

    """
    return built(cache / _RECIPE, by=__name__)


def _build(target: Path) -> None:
    import torch
    from transformers import FalconH1Config, FalconH1ForCausalLM

    text = text_config()
    # The state of a layer is smaller than a block of 32 tokens of its attention, so vLLM need not take larger blocks.
    config = FalconH1Config(
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size,
        num_hidden_layers=text.num_hidden_layers,
        num_attention_heads=text.num_attention_heads,
        num_key_value_heads=text.num_key_value_heads,
        max_position_embeddings=text.max_position_embeddings,
        bos_token_id=text.bos_token_id,
        eos_token_id=text.eos_token_id,
        pad_token_id=text.eos_token_id,
        tie_word_embeddings=False,
        initializer_range=text.initializer_range,
        head_dim=32,
        mamba_d_ssm=128,
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_d_state=16,
        mamba_chunk_size=32,
    )
    torch.manual_seed(SEED)
    model = FalconH1ForCausalLM(config).to(torch.float32)
    write(target, model.save_pretrained, tokenizer().save_pretrained)


if __name__ == "__main__":
    _build(Path(sys.argv[1]))
