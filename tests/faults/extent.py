"""How long the experiments last: short where tests run all the time, long with ``FAULTS=long`` (``make chaos``)."""

from __future__ import annotations

import os

LONG = os.environ.get("FAULTS") == "long"

RECONNECTS = 10_000 if LONG else 200
LABEL_VALUES = 1_000_000 if LONG else 30_000
# Seconds for which an agent stands still: longer than any side waits for an answer.
STANDSTILL = 60.0 if LONG else 6.0
KILLS = 60 if LONG else 20
DAMAGED = 100 if LONG else 14
# Of any entries, whose spans, sentences and counters must add up.
RANDOM_LOGS = 3_000 if LONG else 100
