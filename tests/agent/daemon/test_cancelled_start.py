"""A start that ends before the agent serves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from penstock.agent.daemon.config import resolve
from penstock.agent.daemon.daemon import Daemon
from penstock.agent.metrics.checkpoint import AggregatorCheckpoint

from tests.support.agent.agent import short_directory

if TYPE_CHECKING:
    from pathlib import Path


def _daemon(directory: Path) -> Daemon:
    flags = {
        "listen": f"unix://{directory}/ingest.sock",
        "admin-listen": f"unix://{directory}/admin.sock",
        "http": "127.0.0.1:0",
        "page": "off",
        # Of this process, with whatever other tests have in it.
        "memory-limit": "64GiB",
        "state-dir": str(directory / "state"),
    }
    return Daemon(resolve(flags, {}))


async def test_sigterm_in_the_replay_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start is cancelled; the journal stays where it is, as it is, for the next one."""
    replaying = asyncio.Event()

    async def restore(_keeper: AggregatorCheckpoint) -> int:
        replaying.set()
        await asyncio.sleep(3600)
        return 0

    with short_directory() as directory:
        with monkeypatch.context() as patched:
            patched.setattr(AggregatorCheckpoint, "restore", restore)
            daemon = _daemon(directory)
            start = asyncio.ensure_future(daemon.start())
            await replaying.wait()
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
            await daemon.stop()
        assert not list((directory / "state").glob("*corrupt*"))
        assert not list((directory / "state").glob("*.damaged"))
        again = _daemon(directory)
        await again.start()
        assert again._health.troubles() == []
        await again.stop()
