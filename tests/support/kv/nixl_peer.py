"""A prefill engine's NIXL worker in a process of its own, which can be stopped and killed: ``python -m tests.support.kv.nixl_peer DIR``.

It prints its side channel's port and its engine id as JSON, and lives until its standard input ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.kv.nixl_pair import Engine, prepare


def main(directory: Path) -> None:
    """Serve until the reader has gone."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        prepare(monkeypatch, directory, transports="tcp")
        model = directory / "model"
        model.mkdir(exist_ok=True)
        engine = Engine(model, "kv_producer", monkeypatch)
        sys.stdout.write(json.dumps({"port": engine.port, "id": engine.id}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
        engine.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
