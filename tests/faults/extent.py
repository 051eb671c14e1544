"""How long the experiments last: short where tests run all the time, long with ``FAULTS=long`` (``make chaos``)."""

from __future__ import annotations

import os

LONG = os.environ.get("FAULTS") == "long"

RECONNECTS = 10_000 if LONG else 100
LABEL_VALUES = 1_000_000 if LONG else 10_000
# Batches that come again or too early.
DISORDERED = 40 if LONG else 15
# Streams that flood, and the batches of each.
FLOODERS, FLOOD_BATCHES = (24, 10) if LONG else (16, 5)
# MiB that an agent may have taken meanwhile; what floods it is 180 or 60 MiB on the wire alone.
FLOOD_PEAK = 300 if LONG else 180
# Seconds for which an agent stands still: longer than any side waits for an answer.
STANDSTILL = 60.0 if LONG else 6.0
KILLS = 60 if LONG else 4
DAMAGED = 100 if LONG else 8
# Of a state that is damaged.
LEFT_BATCHES = 300 if LONG else 120
# Of any entries, whose spans, sentences and counters must add up.
RANDOM_LOGS = 3_000 if LONG else 100
