"""A multimodal model small enough for a test: Idefics3 with real random weights, several pictures a request.

``python -m demo.common.vision_model DIRECTORY`` writes it. It is one of vLLM's few multimodal models that take several pictures
and run without torchvision.
"""

from __future__ import annotations

import sys
from pathlib import Path

from demo.common.model import SEED, SPREAD, built, text_config, tokenizer, write

_RECIPE = "tiny-idefics3-1"
_FAKE_IMAGE, _IMAGE, _GLOBAL_IMAGE, _END = (
    "<fake_token_around_image>",
    "<image>",
    "<global-img>",
    "<end_of_utterance>",
)
SIDE = 64
"""Pixels of a picture's side."""
_PATCH, _SHRINK = 8, 2
_TOKENS_PER_PICTURE = (SIDE // _PATCH) ** 2 // _SHRINK**2
# A message part is text or a picture; pictures keep their position.
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tiny_vision_model(cache: Path) -> Path:
    """Return the directory of the tiny Idefics3 below *cache*; build it at the first call.

    Raises:
        RuntimeError: the build failed; the text has the builder's output.

    """
    return built(cache / _RECIPE, by="demo.common.vision_model")


def can_read_pictures() -> bool:
    """Return whether the installed transformers has what the model's pictures need."""
    from transformers.models.idefics3 import image_processing_pil_idefics3 as pil  # noqa: PLC0415

    try:
        pil.Idefics3ImageProcessorPil()
    except ImportError:
        return False
    return True


def _build(target: Path) -> None:
    import torch  # noqa: PLC0415  (seconds to import, needed by the builder's process only)
    from transformers import (  # noqa: PLC0415
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3Processor,
    )
    from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig  # noqa: PLC0415
    from transformers.models.idefics3.image_processing_pil_idefics3 import (  # noqa: PLC0415
        Idefics3ImageProcessorPil,
    )

    words = tokenizer([_FAKE_IMAGE, _IMAGE, _GLOBAL_IMAGE, _END])
    vision = Idefics3VisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=_PATCH,
        initializer_range=SPREAD,
    )
    config = Idefics3Config(
        text_config=text_config(),
        vision_config=vision,
        image_token_id=words.convert_tokens_to_ids(_IMAGE),
        scale_factor=_SHRINK,
        pad_token_id=1,
        tie_word_embeddings=False,
        initializer_range=SPREAD,
    )
    pictures = Idefics3ImageProcessorPil(
        do_image_splitting=False, size={"longest_edge": SIDE}, max_image_size={"longest_edge": SIDE}
    )
    processor = Idefics3Processor(
        pictures, words, image_seq_len=_TOKENS_PER_PICTURE, chat_template=_CHAT_TEMPLATE
    )
    torch.manual_seed(SEED)
    model = Idefics3ForConditionalGeneration(config).to(torch.float32)
    write(target, model.save_pretrained, processor.save_pretrained)


if __name__ == "__main__":
    _build(Path(sys.argv[1]))
