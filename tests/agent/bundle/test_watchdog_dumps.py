"""Dumps of vLLM's watchdog: the newest ones of a directory that others write, bounded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from penstock.agent.bundle import read_watchdog_dumps
from penstock.agent.bundle.watchdog_dumps import MOST_BYTES, MOST_DUMPS

if TYPE_CHECKING:
    from pathlib import Path


def _dump(directory: Path, name: str, content: bytes = b"stack", age: int = 0) -> Path:
    path = directory / name
    path.write_bytes(content)
    os.utime(path, (1_800_000_000 - age, 1_800_000_000 - age))
    return path


def test_the_newest_first_and_the_end_of_each(tmp_path: Path) -> None:
    """Of a long file its end; the oldest of many are left out, and it says how many."""
    for number in range(MOST_DUMPS + 3):
        _dump(tmp_path, f"VLLM_STACK_DUMP_for_worker_{number}_77.log", age=number)
    _dump(tmp_path, "VLLM_STACK_DUMP_for_engine_0_78.log", b"x" * 7 + b"y" * MOST_BYTES, age=-1)
    text, taken, found = read_watchdog_dumps(tmp_path)
    assert (taken, found) == (MOST_DUMPS, MOST_DUMPS + 4)
    lines = [line for line in text.decode().splitlines() if line.startswith("===== ")]
    assert lines[0].startswith(
        f"===== VLLM_STACK_DUMP_for_engine_0_78.log: {MOST_BYTES + 7} bytes, the first 7 left out, last written 2027-"
    )
    assert "worker_0_77" in lines[1]
    assert b"x" not in text.split(b"bytes, the first 7", 1)[1].split(b"\n", 1)[1].split(b"=====")[0]
    assert text.startswith(
        f"{MOST_DUMPS} of {MOST_DUMPS + 4} watchdog dumps in {tmp_path}, the newest first; 4 older".encode()
    )


def test_what_is_no_dump_is_left_out(tmp_path: Path) -> None:
    """Other names, links, pipes and directories; an empty directory has none."""
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    _dump(tmp_path, "VLLM_STACK_DUMP_for_worker_0.log.bak")
    (tmp_path / "VLLM_STACK_DUMP_for_worker_1_7.log").symlink_to(secret)
    (tmp_path / "VLLM_STACK_DUMP_for_worker_2_7.log").mkdir()
    os.mkfifo(tmp_path / "VLLM_STACK_DUMP_for_worker_3_7.log")
    text, taken, found = read_watchdog_dumps(tmp_path)
    assert (taken, found) == (0, 0)
    assert text == f"0 of 0 watchdog dumps in {tmp_path}, the newest first\n".encode()
    with pytest.raises(FileNotFoundError):
        read_watchdog_dumps(tmp_path / "none")
