"""Sends one request through prefill and decode, as a router does: ``python -m demo.send PREFILL DECODE [PROMPT]``."""

from __future__ import annotations

import argparse

from demo.common.agent import AGENTCTL
from demo.common.client import prefill_decode
from demo.common.steps import PROMPT


def main() -> None:
    """Send it, and print the answer and how to look at its trace."""
    parser = argparse.ArgumentParser(prog="python -m demo.send", description=__doc__)
    parser.add_argument("prefill", help="address of the prefill server, such as http://127.0.0.1:8000")
    parser.add_argument("decode", help="that of the decode server")
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    options = parser.parse_args()
    _, answer = prefill_decode(options.prefill, options.decode, options.prompt)
    print(f"HTTP {answer.status}: {answer.completion!r} (random weights say nothing that makes sense)")
    print(f"{AGENTCTL} trace {answer.body['id']}")


if __name__ == "__main__":
    main()
