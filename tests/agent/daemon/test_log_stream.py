"""A log that nobody reads: a container's runtime that stands still stops no agent."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from typing import TYPE_CHECKING

import pytest
from penstock.agent.daemon.logs import LogStream

from tests.support.agent.agent import AgentProcess, short_directory, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIPE_BYTES = 4096


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Return a pipe that holds 4 KiB: its end that is read, and the other."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    yield ends
    os.close(ends[0])


def test_lines_that_nobody_reads(pipe: tuple[int, int]) -> None:
    """They wait in bounded memory; the first come out in their order, then how many were lost."""
    reading, writing = pipe
    stream = LogStream(os.fdopen(writing, "w"), lambda lost: f"lost {lost}\n", most_waiting=20_000)
    for number in range(1_000):
        line = f"line {number:03} {'x' * 90}\n"
        assert stream.write(line) == len(line)
    assert not stream.wait(0.0)
    found = ""

    def read() -> None:
        nonlocal found
        while "lost" not in found:
            found += os.read(reading, 65_536).decode()

    reader = threading.Thread(target=read)
    reader.start()
    reader.join()
    assert stream.wait(60.0)
    *lines, last = found.splitlines()
    assert [line.split()[1] for line in lines] == [f"{number:03}" for number in range(len(lines))]
    assert len(lines) > 200
    assert last == f"lost {1_000 - len(lines)}"
    # It goes on.
    stream.write("again\n")
    assert stream.wait(60.0)
    assert os.read(reading, 100) == b"again\n"


def test_a_stream_that_is_closed(pipe: tuple[int, int]) -> None:
    """Nobody who logs fails, and nobody waits."""
    writing = os.fdopen(pipe[1], "w")
    stream = LogStream(writing, str)
    writing.close()
    for _ in range(3):
        stream.write("line\n")
        stream.flush()
    assert stream.wait(60.0)


def test_an_agent_whose_log_nobody_reads() -> None:
    """It answers, takes in what engines send, and ends at SIGTERM; the log goes on as soon as somebody reads."""
    with short_directory() as directory:
        log = directory / "agent.log"
        os.mkfifo(log)
        reading = os.open(log, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        agent = AgentProcess(directory)
        try:
            agent.start()
            # Each is a line when it comes and when it goes.
            for number in range(40):
                with FakeEngine(agent.listen) as engine:
                    engine.publish(transfer_failure(f"cmpl-{number}"))
                assert agent.get("/healthz") == (200, "ok\n")
            found = ""

            def read() -> bool:
                nonlocal found
                try:
                    found += os.read(reading, 65_536).decode()
                except BlockingIOError:
                    return False
                return len(re.findall('"event": "source connected"', found)) == 40

            wait_until(read, "all lines come")
            assert "lost_lines" not in found
            for number in range(40):
                with FakeEngine(agent.listen) as engine:
                    engine.publish(transfer_failure(f"cmpl-{number}"))
            assert agent.stop() == 0
        finally:
            os.close(reading)
            agent.kill()
