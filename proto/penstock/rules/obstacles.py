"""Why a decision to recompute cannot be carried out: the words that end a decision's reason, for both sides."""

from __future__ import annotations

from typing import Final

EXPORTED: Final = "another connector may have passed tainted blocks on, and these cannot be called back"
"""Why a request fails whose blocks another connector may have passed on."""

PINNED: Final = (
    "a transfer is in flight and its blocks are pinned until that has ended, so the request cannot be rewound"
)
"""Why a request fails that should have been rewound, but whose load was given up after its transfer had begun."""

HELD: Final = "it waits with blocks that cannot be taken from it, so it cannot be rewound"
"""Why a request fails that should have been rewound, but waits for something else with its blocks."""

WITHOUT_MEDIA: Final = (
    "an input cannot be encoded again: vLLM left its media out when it told the workers of the request"
)
"""Why a request fails that should have been rewound, or was, on vLLM's V1 model runner."""

MEDIA_ELSEWHERE: Final = "the media is not on this engine"
"""Why a request fails that has lost encoder outputs."""
