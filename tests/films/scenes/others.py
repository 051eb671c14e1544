"""Faults of the agent, and of engines that are no pair over NIXL."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self
from unittest import mock

from demo.common.agent import Agent
from demo.common.client import complete
from demo.common.model import tiny_model
from demo.ec.stack import start_ec_stack
from demo.ec.steps import new_encoder
from demo.eplb.__main__ import run_ranks
from demo.servers import ROOT, Server
from tests.films.scenes.base import PairScene, Scene
from tests.support.agent.agent import short_directory
from tests.support.agent.disk import full_disk
from tests.support.ec.bench import ask
from tests.support.ec.zmq_server import ZmqBench
from tests.support.kv.connector_trial import PROMPTS, SETUPS, TOKENS, Trial, trial

if TYPE_CHECKING:
    from collections.abc import Iterator

_RANKS_REST_SECONDS = 15.0


class DiskFull(PairScene):
    """The agent's disk is full; engines serve on."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._full = ExitStack()

    def begin(self) -> None:
        """Let no file grow."""
        self._full.enter_context(full_disk(self.agent))

    def remedy(self) -> None:
        """Let them."""
        self._full.close()

    def close(self) -> None:
        """Do so, whatever happened."""
        self.remedy()


class EncoderDies(Scene):
    """An encoder is killed; requests with pictures fail until there is a new one."""

    def __init__(self, ec: ZmqBench) -> None:
        super().__init__(ec.agent)
        self._ec = ec
        self._there = True

    @classmethod
    @contextmanager
    def running(cls, logs: Path) -> Iterator[Self]:
        """Start an encoder and a language model."""
        del logs
        with short_directory() as directory, ExitStack() as parts:
            stack = start_ec_stack(directory, parts, lambda _: None)
            bench = ZmqBench(stack, stack.language, stack.link)
            parts.callback(bench.close)
            yield cls(bench)

    def well(self) -> None:
        """Send a request with a picture; the encoder encodes it first, where there is one."""
        self.sent += 1
        request = ask()
        if self._there:
            self._ec.encode(request)
        self._ec.send(request)

    def begin(self) -> None:
        """Kill it."""
        self._there = False
        self._ec.stack.encoder.kill()

    def remedy(self) -> None:
        """Start a new one."""
        new_encoder(self._ec.stack)
        self._there = True


class RebalancesStall(Scene):
    """Experts are rebalanced every few steps, and from some moment on a rank is late for each layer."""

    def __init__(self, agent: Agent, directory: Path) -> None:
        super().__init__(agent)
        self._directory = directory
        self._late: int | None = None

    @classmethod
    @contextmanager
    def running(cls, logs: Path) -> Iterator[Self]:
        """Start an agent."""
        del logs
        with short_directory() as directory, tempfile.TemporaryDirectory() as out:
            agent = Agent(directory, engines=1)
            try:
                agent.start()
                yield cls(agent, Path(out))
            finally:
                agent.stop()

    def well(self) -> None:
        """Run two ranks for some steps."""
        self.sent += 1
        # One rebalance a run, and a pause: more would take a hundredth of the time, which is told, even if none is late.
        time.sleep(_RANKS_REST_SECONDS)
        out = self._directory / f"{self.sent}"
        run_ranks(self.agent, out, "--steps", "20", "--interval", "24", late=self._late)

    def begin(self) -> None:
        """Delay one."""
        self._late = 1

    def remedy(self) -> None:
        """Delay none."""
        self._late = None


class StuckLoad(Scene):
    """The store of a connector hangs, and a call into it with it; five minutes later vLLM ends its engine.

    The remedy is a store that answers, and a new engine.
    """

    def __init__(self, found: Trial) -> None:
        super().__init__(found.agent)
        self._found = found
        self._hung = ExitStack()
        # The last one is in the store alone until the fault: others are soon in the engine's own cache.
        self._prompts = PROMPTS[:-1]
        self._new: Server | None = None

    @classmethod
    @contextmanager
    def running(cls, logs: Path) -> Iterator[Self]:
        """Start an engine on such a store."""
        from tests.support.kv.hanging_connector import hanging  # imports vLLM, which takes seconds

        del logs
        with (
            tempfile.TemporaryDirectory() as directory,
            mock.patch.dict(SETUPS, {"hanging": hanging}),
            trial("hanging", directory=Path(directory)) as found,
        ):
            yield cls(found)

    def well(self) -> None:
        """Load a prompt from the store; clients wait for ten seconds."""
        self.sent += 1
        with suppress(OSError):
            prompt = self._prompts[self.sent % len(self._prompts)]
            complete(self._found.engine.url, prompt, max_tokens=TOKENS, timeout=10.0)

    def begin(self) -> None:
        """Let it hang."""
        from tests.support.kv.hanging_connector import hung

        self._hung.enter_context(hung(self._found.store))
        self._prompts = PROMPTS[-1:]

    def remedy(self) -> None:
        """Let it answer, and start the engine anew."""
        self._hung.close()
        old = self._found.engine
        old.stop()
        self._prompts = PROMPTS[:-1]
        self._new = Server(old.spec, model=tiny_model(ROOT / ".cache" / "models"), logs=old.child.log.parent)
        self._new.wait_ready()
        self._found.engine = self._new

    def close(self) -> None:
        """Let the store answer, whatever happened, and end the new engine."""
        self._hung.close()
        if self._new is not None:
            self._new.stop()
