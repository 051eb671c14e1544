"""What happens in each film: the traffic, the fault and its remedy."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, Self

from demo.common.client import prefill
from demo.common.steps import PROMPT
from tests.support.engine.bench import new_name
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.engine.stacks import variant_stack
from tests.support.kv.bench import Bench, Prefilled
from tests.support.kv.peers import Spare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from demo.common.agent import Agent
    from demo.servers import Server
    from tests.support.engine.pairs import Variant


# Several films run at a time: a server has 256 blocks and not a gigabyte of them.
_FEW_BLOCKS: Final = ("--num-gpu-blocks-override", "256")
FILMED: Final = replace(CPU_DEFAULTS, name="films", args=_FEW_BLOCKS)


def spare_of(kv: Bench, name: str, *arguments: str) -> Spare:
    """Return a further prefill pod, not started yet."""
    return Spare(kv.stack, name, *_FEW_BLOCKS, *arguments)


class Scene:
    """A fault and its remedy; without a fault, nothing happens.

    Attributes:
        agent: what is asked.
        request: sends the next request of the traffic; from one thread.
        sent: how many there were.

    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.sent = 0
        self.request: Callable[[], None] = self.well

    @classmethod
    @contextmanager
    def running(cls, logs: Path) -> Iterator[Self]:
        """Start its engines, whose output goes to *logs*, and end them."""
        raise NotImplementedError
        yield

    def well(self) -> None:
        """Send a request that is served."""
        raise NotImplementedError

    def open(self) -> None:
        """Start what the scene needs beside them."""

    def begin(self) -> None:
        """Cause the fault."""

    def middle(self) -> None:
        """Do what the film does in its midst, a minute after the fault."""

    def remedy(self) -> None:
        """Repair it."""

    def close(self) -> None:
        """Stop what the scene has started."""

    def ctl(self, *arguments: str) -> None:
        """Run ``agentctl``, which must succeed."""
        ran = self.agent.ctl(*arguments)
        assert ran.code == 0, ran.output


class FilmBench(Bench):
    """Sends requests at half the cost: what they should answer is not computed."""

    def prefilled(
        self, times: int = 2, *, server: Server | None = None, prompt: str = "", engine: int | None = None
    ) -> Prefilled:
        """Compute a prompt of its own on *server*; ``text`` and ``tokens`` are not known."""
        del engine
        name = new_name("film")
        prompt = prompt or f"{name} {PROMPT * times}"
        return Prefilled(
            name, prompt, prefill((server or self.stack.prefill).url, prompt).kv_transfer_params, "", 0
        )


class PairScene(Scene):
    """On a prefill and a decode server."""

    variant: ClassVar[Variant] = FILMED

    def __init__(self, kv: Bench) -> None:
        super().__init__(kv.agent)
        self.kv = kv

    @classmethod
    @contextmanager
    def running(cls, logs: Path) -> Iterator[Self]:
        """Start both."""
        with variant_stack(cls.variant, logs=logs) as stack:
            yield cls(FilmBench(stack))

    def well(self) -> None:
        """Send a request through prefill and decode."""
        self.sent += 1
        self.kv.decode(self.kv.prefilled())


class TwoPodScene(PairScene):
    """With a second prefill pod, to which every other request goes."""

    def __init__(self, kv: Bench) -> None:
        super().__init__(kv)
        self.spare = spare_of(kv, "prefill-b")
        self.server: Server | None = None
        self.last: Prefilled | None = None
        self.request = self.both

    def open(self) -> None:
        """Start it."""
        self.server = self.spare.server()

    def both(self) -> None:
        """Send a request through one of the two; through the first alone while there is no second."""
        self.sent += 1
        with suppress(OSError):
            if self.sent % 2 or self.server is None:
                self.kv.decode(self.kv.prefilled())
                return
            request = self.kv.prefilled(server=self.server)
            self.last = request
            self.kv.decode(request)

    def stale(self) -> None:
        """Send a request; one in two as if the second pod, which has gone, had computed its prompt."""
        self.sent += 1
        if self.sent % 2 or self.last is None:
            self.kv.decode(self.kv.prefilled())
        else:
            name = new_name("film")
            self.kv.decode(Prefilled(name, f"{name} {PROMPT * 2}", self.last.params, "", 0))

    def remedy(self) -> None:
        """Start a new one."""
        self.server = self.spare.server()

    def close(self) -> None:
        """End it."""
        self.spare.stop()
