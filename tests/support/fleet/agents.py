"""Many real agents in one process, run as ``python -m``: each a daemon with its own state, sockets and servers.

``python -m tests.support.fleet.agents DIRECTORY NAME,… FLAG…`` prints one line when all are ready, and ends with its standard
input. Each agent's directory is ``DIRECTORY/NAME``; its sockets are ``admin.sock`` and ``ingest.sock`` in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

import structlog
from penstock.agent.daemon.config import resolve
from penstock.agent.daemon.daemon import Daemon

# Starts at a time; each opens two databases.
_STARTS = 8


def _flags(directory: Path, arguments: list[str]) -> dict[str, str | None]:
    own = {
        "listen": f"unix://{directory}/ingest.sock",
        "admin-listen": f"unix://{directory}/admin.sock",
        "http": "127.0.0.1:0",
        "page": "off",
        # They share this process.
        "memory-limit": "64GiB",
        "state-dir": f"{directory}/state",
    }
    given = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
    return {**own, **given}


async def _run(directory: Path, names: list[str], arguments: list[str]) -> None:
    daemons = []
    for name in names:
        (directory / name).mkdir()
        daemons.append(Daemon(resolve(_flags(directory / name, arguments), {})))
    try:
        for first in range(0, len(daemons), _STARTS):
            await asyncio.gather(*(daemon.start() for daemon in daemons[first : first + _STARTS]))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await asyncio.gather(*(daemon.stop() for daemon in daemons), return_exceptions=True)


def main() -> None:
    """Run them."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    directory, names, *arguments = sys.argv[1:]
    asyncio.run(_run(Path(directory), names.split(","), arguments))
    sys.stdout.write("stopped\n")
    sys.stdout.flush()
    # Threads of gRPC may outlive the loop.
    os._exit(0)


if __name__ == "__main__":
    main()
