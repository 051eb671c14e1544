"""Fuzzing of all that one message of an engine goes through: ``python -m tests.fuzz.ingest [libFuzzer's options]``.

Whatever the bytes are, they are refused with a ContractError, or everything behind the door can deal with them.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["penstock.agent"]):
    from tests.fuzz.target import Target


def main() -> None:
    """Fuzz until told to stop."""
    target = Target()

    def take(body: bytes) -> None:
        target.take(body)

    atheris.Setup(sys.argv, take)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
