"""Policies in a bucket of NATS."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import nats
from nats.js.api import KeyValueConfig

from demo.common.processes import free_port
from demo.common.steps import StepError, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from demo.common.agent import CommandResult
    from demo.fleet.place import Commands, Run

BUCKET = "policies"


class NatsPlace:
    """One NATS server with a bucket."""

    def __init__(self, choice: str) -> None:
        """Start nothing yet; *choice* says why it was taken."""
        self.choice = choice
        self.change = (
            "The relay writes the policy to the bucket that all agents follow, and waits for each engine."
        )
        self._url = ""

    def start(self, directory: Path, run: Run) -> None:
        """Start the server, and make the bucket.

        Raises:
            StepError: there is no nats-server, or it does not answer.

        """
        program = shutil.which("nats-server")
        if program is None:
            raise StepError("nats-server is not on PATH; scripts/need-nats.sh installs it.")
        place = directory / "nats"
        place.mkdir()
        port = free_port()
        (place / "nats.conf").write_text(
            f'listen: "127.0.0.1:{port}"\njetstream: {{store_dir: "{place}/data"}}\n'
        )
        run("nats", [program, "-c", str(place / "nats.conf")], {})
        self._url = f"nats://127.0.0.1:{port}"
        until(lambda: _made(self._url), "The NATS server does not answer")

    def prepared(self) -> Iterator[CommandResult]:
        """Nothing is left to do."""
        yield from ()

    def options(self, program: str) -> tuple[str, ...]:
        """Return the address of the bucket."""
        del program
        return ("--policy-source", f"{self._url}/{BUCKET}")

    def changed(self, ctl: Commands) -> Iterator[CommandResult]:
        """Write it through the relay, which waits for each engine."""
        yield ctl.ctl(
            *("set-policy", "decode-default", "--selector", "role=decode"),
            *("--kv-load-failure", "recompute", "--reason", "demo", "--wait", "--timeout", "5m"),
        )

    def led(self) -> Iterator[CommandResult]:
        """Nothing shows it."""
        yield from ()

    def aborted(self, name: str) -> Iterator[CommandResult]:
        """Nothing but the relay shows it."""
        del name
        yield from ()

    def hint(self) -> str:
        """Return nothing: the relay shows all."""
        return ""


def _made(url: str) -> bool:
    """Make the bucket; return whether it is there."""

    async def quiet(_: Exception) -> None:
        """Print nothing: it may not listen yet."""

    async def make() -> None:
        client = await nats.connect(
            url, connect_timeout=10, max_reconnect_attempts=0, allow_reconnect=False, error_cb=quiet
        )
        try:
            await client.jetstream().create_key_value(KeyValueConfig(bucket=BUCKET, history=64))
        finally:
            await client.close()

    try:
        asyncio.run(make())
    except (OSError, nats.errors.Error):
        return False
    return True
