"""What engines' errors say, as it is quoted to a person. Pure."""

from __future__ import annotations

import re
from typing import Final

# The mismatch of compatibility hashes of vLLM 0.32 ends so: blocks would then be read as what they are not.
_ADVICE: Final = re.compile(r"\s*Disable this check using\b.*", re.DOTALL)


def without_advice(text: str) -> str:
    """Return an error's *text* without vLLM's advice to switch its check of compatibility off."""
    return _ADVICE.sub("", text)
