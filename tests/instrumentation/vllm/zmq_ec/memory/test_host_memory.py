"""What is left of the memory of a host and of a control group."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.zmq_ec.memory import host_memory, item_area
from penstock.instrumentation.vllm.zmq_ec.memory.item_area import ItemArea
from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import RegionError, SharedRegion

if TYPE_CHECKING:
    from pathlib import Path

HOST = "MemTotal:       1000 kB\nMemAvailable:    500 kB\nHugePages_Total:       0\n"
STAT = "anon 1\nfile 300000\ninactive_file 100000\nactive_file 50000\n"


@pytest.mark.parametrize(
    ("limit", "current", "left"),
    [
        ("max", "0", 500 << 10),
        ("400000", "300000", 250_000),
        ("300000", "450000", 0),
        ("9000000", "300000", 500 << 10),
        (None, None, 500 << 10),
    ],
)
def test_what_is_left(tmp_path: Path, limit: str | None, current: str | None, left: int) -> None:
    """The lesser of both; cached files of the group count as left, a group without a limit does not count."""
    (tmp_path / "meminfo").write_text(HOST)
    if limit is not None and current is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{current}\n")
        (tmp_path / "memory.stat").write_text(STAT)
    assert host_memory.spare(tmp_path / "meminfo", tmp_path) == left


def test_a_host_that_tells_nothing(tmp_path: Path) -> None:
    """Is believed to have enough."""
    assert host_memory.spare(tmp_path / "meminfo", tmp_path) > 1 << 50


def test_here() -> None:
    """The real files are read as they are."""
    assert 0 < host_memory.spare() < 1 << 50


def test_the_tables_of_a_producers_memory_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left must be enough for them, too."""
    capacity = 1 << 20
    tables = item_area.print_offset(capacity) + fingerprints.SIZE
    monkeypatch.setattr(host_memory, "spare", lambda: capacity + tables)
    with pytest.raises(
        host_memory.OutOfMemoryError, match=rf"and {tables} for their tables.*host_cache_bytes"
    ):
        ItemArea(capacity)
    monkeypatch.setattr(host_memory, "spare", lambda: capacity + tables + 1)
    ItemArea(capacity).close()


def test_a_system_that_refuses_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer cannot do without; it says why."""

    def refused(name: str, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    with pytest.raises(RegionError, match="Operation not permitted"):
        SharedRegion(1 << 20)
