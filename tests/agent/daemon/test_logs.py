"""Logs on standard error, and their bounds."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import grpc
import pytest
from penstock.agent.daemon import logs
from penstock.agent.daemon.logs import BURST, LogLimit

PROGRAM = """
import logging, structlog
from penstock.agent.daemon.logs import configure_logging
configure_logging({format!r}, "warning")
log = structlog.get_logger("x")
log.info("not shown")
log.warning("shown", engine="0")
logging.getLogger("library").warning("from a library")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("broken")
"""


def lines(log_format: str) -> list[str]:
    """Return what a process with this format writes."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(format=log_format)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert result.stdout == ""
    return result.stderr.splitlines()


def test_json_is_one_object_a_line():
    """Ours and those of libraries, an exception included."""
    records = [json.loads(line) for line in lines("json")]
    assert [(record["event"], record["level"]) for record in records] == [
        ("shown", "warning"),
        ("from a library", "warning"),
        ("broken", "error"),
    ]
    assert records[0]["engine"] == "0"
    assert "ZeroDivisionError" in records[2]["exception"]
    assert all("timestamp" in record for record in records)


def test_console_is_for_people():
    """The same in words, without colours where there is no terminal, and without local variables."""
    output = "\n".join(lines("console"))
    for text in ("shown", "from a library", "ZeroDivisionError"):
        assert text in output
    assert "not shown" not in output
    assert "locals" not in output
    assert "\x1b[" not in output


@pytest.mark.parametrize("log_format", ["json", pytest.param("console", marks=pytest.mark.long)])
@pytest.mark.parametrize("outlet", ["full disk", "reader gone"])
def test_what_cannot_be_written_is_lost_and_nothing_fails_of_it(log_format: str, outlet: str):
    """A log line that cannot be written raises nothing in the thread that logs it."""
    program = PROGRAM.format(format=log_format) + "print('still here', flush=True)\nimport os\nos._exit(0)\n"
    if outlet == "full disk":
        errors = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, errors = os.pipe()
        os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
            timeout=120,
        )
    finally:
        os.close(errors)
    assert (result.returncode, result.stdout) == (0, "still here\n")


FLOOD = """
import logging, structlog
from penstock.agent.daemon import logs
from penstock.agent.daemon.logs import configure_logging
now = 0.0
logs.time.monotonic = lambda: now
logs.LogLimit.__init__.__defaults__ = (lambda: now,)
configure_logging("json", "info")
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
    monkeypatch.setattr(logs, "_MAX_SENTENCES", 2)
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


def test_an_answer_to_a_caller_that_has_hung_up_is_no_news() -> None:
    """What gRPC says of it, with a traceback for each, is left out; any other error of a method is told."""

    def record(error: Exception) -> logging.LogRecord:
        said = (type(error), error, None)
        return logging.LogRecord("grpc", logging.ERROR, "", 0, "raised in core by %s", ("/x",), said)

    assert not logs._is_news(record(grpc.aio.InternalError()))
    assert logs._is_news(record(ValueError("x")))
    assert logs._is_news(logging.LogRecord("asyncio", logging.ERROR, "", 0, "x", (), None))
