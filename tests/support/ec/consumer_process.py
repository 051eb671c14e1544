"""A consumer process: asks one producer for items until that fails, and tells how; once for each line on standard input.

python -m tests.support.ec.consumer_process ADDRESS
"""

from __future__ import annotations

import itertools
import json
import sys

from tests.support.ec.rig import Notes, feature, request, rig


def main() -> None:
    """Ask until standard input ends."""
    with rig(sys.argv[1], retries=0) as consumer:
        notes = Notes()
        consumer.consumer.observe(notes)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        numbers = itertools.count()
        for _ in sys.stdin:
            while not notes.failures:  # a producer that has failed is left alone for a moment
                consumer.wait(request("r", feature(f"i{next(numbers)}", 64)))
            failure = notes.failures.pop()
            sys.stdout.write(json.dumps([failure.error_type, failure.text]) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
