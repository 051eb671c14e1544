"""A server with vLLM's ECExampleConnector, and what can become of its files."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file, save_file

from demo.common.vision_model import tiny_vision_model
from demo.ec.servers import file_spec
from demo.servers import ROOT, Server
from tests.support.ec.bench import Ask, EcBench
from tests.support.engine.pairs import penstock_env

if TYPE_CHECKING:
    from pathlib import Path

    from demo.common.agent import Agent
    from tests.support.engine.pairs import Variant

# Prompts of a few pictures are computed in several steps, and pictures lie across their borders.
CHUNKED = ("--max-num-batched-tokens", "48", "--block-size", "32")


class FileBench(EcBench):
    """The server encodes, saves and loads; a request is encoded once, then loaded from its files."""

    def __init__(self, agent: Agent, server: Server, directory: Path) -> None:
        super().__init__(agent, server)
        self.directory = directory

    def encoded(self, *requests: Ask) -> list[tuple[int, ...]]:
        """Have *requests* encoded and answered without a load; then forget all but the files. Return the tokens."""
        # Under other names: what a test looks for has its name alone.
        tokens = [self.send(request.again()).tokens for request in requests]
        self.empty()
        return tokens

    def vanish(self, file: Path) -> None:
        """Let *file* be there when the scheduler looks and gone when a worker of another process reads.

        The link leads through the looker's own process, which has a thread of EngineCore's id or has not.
        """
        file.unlink()
        file.symlink_to(f"/proc/self/task/{self._core}/comm")

    @cached_property
    def _core(self) -> int:
        (core,) = (
            source["hello"]["pid"]
            for engine in self.agent.ctl_json("get", "engines", "--selector", self.selector)["engines"]
            for source in engine["sources"]
            if source["hello"]["process"] == "engine-core"
        )
        return int(core)

    def files(self) -> set[Path]:
        """Return the files that there are."""
        return set(self.directory.glob("*/encoder_cache.safetensors"))


def truncate(file: Path) -> None:
    """Lose the end of it, as a full disk does."""
    truncate_to(file, 0.5)


def truncate_to(file: Path, share: float) -> None:
    """Keep that *share* of it, from the beginning."""
    os.truncate(file, int(file.stat().st_size * share))


def garble(file: Path) -> None:
    """Write something else."""
    file.write_bytes(b"\xff" * 64)


def fewer_rows(file: Path) -> None:
    """Save the output of another picture size."""
    save_file({"ec_cache": _output(file)[:3]}, file)


def wider(file: Path) -> None:
    """Save the output of another model."""
    save_file({"ec_cache": np.concatenate([_output(file)] * 2, axis=1)}, file)


def _output(file: Path) -> np.ndarray:
    return np.asarray(load_file(file)["ec_cache"])


def start_file_server(variant: Variant, name: str, *, endpoint: str, directory: Path, logs: Path) -> Server:
    """Start a server of its own on *directory*; it does not serve yet."""
    spec = file_spec(
        name,
        directory=str(directory),
        module=variant.module,
        args=(*variant.args, *CHUNKED),
        env={
            **penstock_env({**variant.env, "PENSTOCK_ENDPOINT": endpoint}, name),
            "PENSTOCK_LABELS": f"tier={name}",
        },
    )
    return Server(spec, model=tiny_vision_model(ROOT / ".cache" / "models"), logs=logs)
