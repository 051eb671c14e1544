"""Bounds on the log."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

from penstock.agent.daemon import log_limit
from penstock.agent.daemon.log_limit import BURST, LogLimit

FLOOD = """
import logging, structlog
from penstock.agent import log_limit
from penstock.agent.daemon.logs import configure
now = 0.0
log_limit.time.monotonic = lambda: now
log_limit.LogLimit.__init__.__defaults__ = (lambda: now,)
configure("json", "info")
log, library = structlog.get_logger("x"), logging.getLogger("library")
for number in range(1000):
    log.info("message refused", number=number)
    library.warning("bad member %s", number)
log.info("another sentence")
now = 1.5
log.info("message refused", number=1000)
library.warning("bad member %s", 1000)
"""


def test_a_flood_is_cut_and_counted():
    """Ours and libraries' alike; the next line says how many there were, and other sentences are not held up."""
    result = subprocess.run(
        [sys.executable, "-c", FLOOD], capture_output=True, text=True, check=True, timeout=120
    )
    records = [json.loads(line) for line in result.stderr.splitlines()]
    assert len(records) == 2 * BURST + 3
    assert [record["event"] for record in records[-3:]] == [
        "another sentence",
        "message refused",
        f"bad member 1000 ({1000 - BURST} like this were left out)",
    ]
    assert records[-2]["left_out"] == 1000 - BURST


def test_a_sentence_has_its_burst_and_its_rate():
    """A quiet one gets its burst back, and never more."""
    now = 0.0
    limit = LogLimit(lambda: now)
    assert [limit.admit("a") for _ in range(BURST)] == [0] * BURST
    assert [limit.admit("a") for _ in range(3)] == [None] * 3
    now = 1.0
    assert [limit.admit("a"), limit.admit("a")] == [3, None]
    now = 10_000.0
    assert [limit.admit("a") for _ in range(BURST + 1)] == [1, *[0] * (BURST - 1), None]


def test_sentences_are_bounded(monkeypatch):
    """Beyond the bound they share one bucket: texts that are made of data cost no memory."""
    monkeypatch.setattr(log_limit, "_MAX_SENTENCES", 2)
    limit = LogLimit(lambda: 0.0)
    assert [limit.admit(text) for text in ("a", "b")] == [0, 0]
    assert [limit.admit(f"c{number}") for number in range(BURST)] == [0] * BURST
    assert limit.admit("d") is None
    assert limit.admit("a") == 0


def test_a_record_without_a_flood_is_as_it_was():
    """Its text and its arguments."""
    record = logging.LogRecord("x", logging.WARNING, "", 0, "text %s", ("y",), None)
    assert LogLimit().filter(record)
    assert (record.msg, record.args) == ("text %s", ("y",))
