"""A model small enough for a test: real random weights, a byte-level tokenizer, nothing downloaded.

``python -m demo.common.model DIRECTORY`` writes it, in a process of its own: callers do not import torch.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.common.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Part of the directory's name: a changed recipe makes a new model.
_RECIPE = "tiny-llama-1"
_TEXT = (
    "A penstock is the gate and gauge at the head of a channel: it measures the flow and it regulates it.",
    "The quick brown fox jumps over the lazy dog while the river runs down to the mill and turns the wheel.",
    "Disaggregated serving moves state between servers: which request, which peer, why, and what it cost?",
)

SEED = 20
# Larger than usual, so that greedy decoding does not repeat one token and wrong input changes the output.
SPREAD = 0.5


def tiny_model(cache: Path) -> Path:
    """Return the directory of the tiny Llama below *cache*; build it at the first call.

    Raises:
        RuntimeError: the build failed; the text has the builder's output.

    """
    return built(cache / _RECIPE, by="demo.common.model")


def built(target: Path, *, by: str) -> Path:
    """Return *target*, a model's directory; ``python -m BY TARGET`` writes it if it is missing.

    Raises:
        RuntimeError: the build failed; the text has the builder's output.

    """
    if (target / "config.json").exists():
        return target
    command = [sys.executable, "-m", by, str(target)]
    root = Path(__file__).resolve().parent.parent.parent
    with tempfile.TemporaryDirectory(prefix="penstock-model-", ignore_cleanup_errors=True) as logs:
        environment = {**os.environ, "TMPDIR": logs}
        builder = Child("model", command, env=environment, cwd=root, log=Path(logs) / "model.log")
        try:
            if builder.wait() != 0:
                raise RuntimeError(f"The tiny model could not be built in {target}: {builder.ended()}")
        finally:
            builder.stop()
    return target


def tokenizer(more_special: Sequence[str] = ()) -> Any:
    """Train the byte-level tokenizer, 512 tokens, with further special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    bytes_and_merges = Tokenizer(models.BPE())
    bytes_and_merges.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_and_merges.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=[*sorted(set(special.values()), reverse=True), *more_special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bytes_and_merges.train_from_iterator(_TEXT * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bytes_and_merges, additional_special_tokens=list(more_special), **special
    )


def text_config() -> Any:
    """Return the configuration of the tiny Llama."""
    from transformers import LlamaConfig  # noqa: PLC0415

    # Two attention heads of 32 dimensions: the smallest that vLLM's CPU attention takes, and enough to
    # split over two ranks.
    return LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        initializer_range=SPREAD,
    )


def write(target: Path, *save: Callable[[Path], object]) -> None:
    """Write all of *save* to *target*, atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".tiny-", dir=target.parent))
    try:
        for each in save:
            each(draft)
        draft.chmod(0o755)
        draft.replace(target)
    except OSError:
        # Another builder was faster: its model is the same.
        if not (target / "config.json").exists():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _build(target: Path) -> None:
    import torch  # noqa: PLC0415  (seconds to import, needed by the builder's process only)
    from transformers import LlamaForCausalLM  # noqa: PLC0415

    torch.manual_seed(SEED)
    model = LlamaForCausalLM(text_config()).to(torch.float32)
    write(target, model.save_pretrained, tokenizer().save_pretrained)


if __name__ == "__main__":
    _build(Path(sys.argv[1]))
