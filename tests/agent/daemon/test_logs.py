"""Logs on standard error."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import logging, structlog
from penstock.agent.daemon.logs import configure
configure({format!r}, "warning")
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


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("outlet", ["full disk", "reader gone"])
def test_what_cannot_be_written_is_lost_and_nobody_fails_of_it(log_format: str, outlet: str):
    """The thread that writes the journal logs, too: it once ended when the log's own file could not grow."""
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
