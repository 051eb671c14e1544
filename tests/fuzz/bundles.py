"""Fuzzing of bundles: ``python -m tests.fuzz.bundles [libFuzzer's options]``.

Whatever the bytes are, the file is refused with a sentence, or opened, asked and shown.
"""

from __future__ import annotations

import logging
import sys

import atheris
import structlog

with atheris.instrument_imports(include=["penstock.agent"]):
    from tests.fuzz.bundle_target import take


def main() -> None:
    """Fuzz until told to stop."""

    def taken(body: bytes) -> None:
        take(body)

    # Each damaged batch would be a line.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    atheris.Setup(sys.argv, taken)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
