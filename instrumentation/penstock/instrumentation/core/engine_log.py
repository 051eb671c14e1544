"""The logger of the engine side, a child of vLLM's: vLLM's handler writes its lines, with level, time and process.

It has no handler of its own and imports nothing of vLLM. Where vLLM has not configured its logging,
Python's own rules for a logger without handlers hold.
"""

from __future__ import annotations

import logging
from typing import Final

logger: Final = logging.getLogger("vllm.penstock")
