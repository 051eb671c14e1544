"""Sends a question about a new picture to the encoder, then to the language model: ``python -m demo.ec.send ENCODER LANGUAGE``."""

from __future__ import annotations

import argparse
import uuid
from http import HTTPStatus

from demo.common.agent import AGENTCTL
from demo.common.client import chat
from demo.common.images import Picture


def main() -> None:
    """Send it, and print the answer and how to look at its trace."""
    parser = argparse.ArgumentParser(prog="python -m demo.ec.send", description=__doc__)
    parser.add_argument("encoder", help="address of the encoder, such as http://127.0.0.1:8000")
    parser.add_argument("language", help="that of the language model")
    parser.add_argument("question", nargs="?", default="What do you see?")
    options = parser.parse_args()
    parts = (Picture(uuid.uuid4().hex), options.question)
    encoded = chat(options.encoder, parts, max_tokens=1)
    if encoded.status != HTTPStatus.OK:
        raise SystemExit(f"The encoder answered {encoded.status}: {encoded.text[:500]}")
    answer = chat(options.language, parts)
    print(f"HTTP {answer.status}: {len(answer.tokens)} tokens (random weights say nothing that makes sense)")
    print(f"{AGENTCTL} trace {answer.body['id']}")


if __name__ == "__main__":
    main()
