"""Fuzzing of agents' answers at a relay: ``python -m tests.fuzz.relay_answers [libFuzzer's options]``.

Whatever the bytes are, they are left out with a ContractError, or merged, sent and shown.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["penstock.agent"]):
    from tests.fuzz.relay_target import take


def main() -> None:
    """Fuzz until told to stop."""

    def taken(body: bytes) -> None:
        take(body)

    atheris.Setup(sys.argv, taken)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
