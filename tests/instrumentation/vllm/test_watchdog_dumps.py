"""What vLLM's own watchdog dumps is what a bundle takes, from vLLM 0.33 on."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from penstock.agent.bundle import read_watchdog_dumps

from tests.support.engine.versions import from_version

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = from_version(0, 33, "it has no watchdog")


def test_a_dump_of_vllm(tmp_path: Path) -> None:
    """Its name and its stacks are found."""
    from vllm.config import WatchdogConfig
    from vllm.utils.watch_dog import ThreadedWatchDog

    directory = tmp_path / "dumps"
    dog = ThreadedWatchDog(
        "engine_0", WatchdogConfig(dump_dir=str(directory)), logging.getLogger("tests.watchdog")
    )
    dog.handle_failure("feed timeout")
    dog.handle_failure("SIGTERM")
    text, taken, found = read_watchdog_dumps(directory)
    assert (taken, found) == (1, 1)
    said = text.decode()
    assert f"===== VLLM_STACK_DUMP_for_engine_0_{os.getpid()}.log: " in said
    assert "Call stack dump #2 at" in said
    assert "in test_a_dump_of_vllm" in said
