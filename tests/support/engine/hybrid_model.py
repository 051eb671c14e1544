"""A tiny Llama whose layers attend by turns to a sliding window and to all tokens: two KV cache groups.

``python -m tests.support.engine.hybrid_model DIRECTORY`` writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from demo.common.model import SEED, built, text_config, tokenizer, write

_RECIPE = "tiny-hybrid-llama-1"
WINDOW = 64
"""Tokens of the sliding window."""


def hybrid_model(cache: Path) -> Path:
    """Return the directory of the model below *cache*; build it at the first call.

    Raises:
        RuntimeError: the build failed; the text has the builder's output.

    """
    return built(cache / _RECIPE, by=__name__)


def _build(target: Path) -> None:
    import torch
    from transformers import LlamaForCausalLM

    config = text_config()
    config.num_hidden_layers = 4
    # vLLM reads both for a Llama; transformers, which only writes the weights here, does not.
    config.sliding_window = WINDOW
    config.layer_types = ["sliding_attention", "full_attention"] * 2
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(config).to(torch.float32)
    write(target, model.save_pretrained, tokenizer().save_pretrained)


if __name__ == "__main__":
    _build(Path(sys.argv[1]))
