"""Arize Phoenix, a trace backend of another project, as a process: ``make setup-trace-backend``."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from demo.common.client import fetch
from demo.common.processes import Child, free_port
from demo.servers import LOOPBACK, ROOT
from tests.support.ports import listens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOME = ROOT / ".cache" / "trace-backend"
PROJECT = "openinference.project.name"
"""The resource attribute that names the project in which Phoenix keeps a span."""

needs_phoenix = pytest.mark.skipif(
    not (HOME / "bin" / "phoenix").exists(),
    reason=f"there is no {HOME}; make setup-trace-backend installs Arize Phoenix",
)

_START_SECONDS = 180.0
_PAGE = 500


class Phoenix:
    """A running Phoenix, by its addresses.

    Attributes:
        endpoints: where it takes OTLP, by protocol.

    """

    def __init__(self, port: int, grpc_port: int) -> None:
        self._url = f"http://{LOOPBACK}:{port}"
        self.endpoints = {"grpc": f"http://{LOOPBACK}:{grpc_port}", "http/protobuf": self._url}

    def spans(self, project: str) -> list[dict[str, Any]]:
        """Return what it has stored of a project, oldest and newest; empty before the first span."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            place = f"{self._url}/v1/projects/{quote(project)}/spans?limit={_PAGE}"
            answer = fetch(f"{place}&cursor={quote(cursor)}" if cursor else place)
            if answer.status == 404:
                return found
            page = json.loads(answer.text)
            found += page["data"]
            cursor = page.get("next_cursor") or ""
            if not cursor:
                return found


@contextmanager
def running_phoenix(directory: Path) -> Iterator[Phoenix]:
    """Run it until the end of the block, with its database in *directory*."""
    port, grpc_port = free_port(), free_port()
    env = {
        **os.environ,
        "PHOENIX_HOST": LOOPBACK,
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_WORKING_DIR": str(directory),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
        "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
    }
    command = [str(HOME / "bin" / "phoenix"), "serve"]
    child = Child("phoenix", command, env=env, cwd=directory, log=directory / "phoenix.log")
    try:
        child.wait_until(
            lambda: listens(port) and listens(grpc_port), seconds=_START_SECONDS, what="listening"
        )
        yield Phoenix(port, grpc_port)
    finally:
        child.stop()
