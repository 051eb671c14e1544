"""Fuzzing of the values of a policy source: ``python -m tests.fuzz.policy_values [libFuzzer's options]``.

Whatever the bytes are, they are a policy with a canonical text, or are refused with a sentence.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import atheris

with atheris.instrument_imports(include=["penstock.agent.parsing", "penstock.agent.policy", "yaml"]):
    from tests.fuzz.policy_target import take


def main() -> None:
    """Fuzz until told to stop."""
    now = datetime.now(UTC)

    def taken(body: bytes) -> None:
        take(body, now)

    atheris.Setup(sys.argv, taken)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
