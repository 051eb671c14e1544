"""A language model that takes encoder outputs over ZmqECConnector, through a link that tests hold and cut."""

from __future__ import annotations

from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from demo.common.client import chat
from demo.common.link import Link
from demo.common.steps import until
from demo.common.vision_model import tiny_vision_model
from demo.ec.servers import PICTURES_PER_REQUEST, language_spec
from demo.ec.stack import PATIENCE, environment
from demo.servers import ROOT, Server
from tests.support.ec.bench import Ask, EcBench, new_picture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor, Future
    from pathlib import Path

    from demo.common.client import Answer
    from demo.ec.stack import EcStack
    from tests.support.engine.pairs import Variant

# More than the answers to a few probes, less than one output; and more than one, less than two.
INTO_THE_FIRST, INTO_THE_SECOND = 1000, 6000


# Serve requests of tokens, too; what vLLM's cache of processed media would not take.
TOKENS_IN = ("--enable-scale-out", "--mm-processor-cache-gb", "0")


class HostCache(NamedTuple):
    """An encoder's memory for outputs: *settings* of its connector, with which it holds fewer than *items*."""

    settings: dict[str, int]
    items: int


SMALL_HOST_CACHE = HostCache({"host_cache_bytes": 1 << 18}, 36)


class ZmqBench(EcBench):
    """The language model, the encoder that it asks, and the link between them."""

    def __init__(self, stack: EcStack, server: Server, link: Link) -> None:
        super().__init__(stack.agent, server)
        self.stack = stack
        self.link = link

    @property
    def peer(self) -> str:
        """The encoder, as the language model knows it."""
        return self.link.address

    def alone(self, *requests: Ask) -> list[tuple[int, ...]]:
        """Return what the language model answers to *requests* where nothing is moved: no peer has pictures of these names."""
        return [self.send(request.disguised()).tokens for request in requests]

    def encode(self, request: Ask) -> None:
        """Have the encoder encode *request*'s pictures."""
        answer = chat(self.stack.encoder.url, request.parts, max_tokens=1)
        assert answer.status == HTTPStatus.OK, answer.text

    def evict_all(self) -> None:
        """Have the encoder encode so much else that it lets go of what it has; it must have :data:`SMALL_HOST_CACHE`."""
        for _ in range(0, SMALL_HOST_CACHE.items, PICTURES_PER_REQUEST):
            self.encode(Ask((*(new_picture() for _ in range(PICTURES_PER_REQUEST)), " And?")))

    def reach(self) -> None:
        """Wait until the encoder is asked again: after a failure it is left alone for a while."""

        def moved() -> bool:
            request = Ask((new_picture(), " And?"))
            self.encode(request)
            before = self.link.carried
            self.send(request, max_tokens=1)
            return self.link.carried - before > INTO_THE_FIRST

        until(moved, "The encoder is not asked any more")

    @contextmanager
    def held(
        self, request: Ask, senders: Executor, *, after: int = INTO_THE_FIRST
    ) -> Iterator[Future[Answer]]:
        """Send *request*, whose pictures are encoded; the link stands still in the midst of its transfer meanwhile."""
        self.reach()
        self.link.hold(after)
        try:
            sent = senders.submit(self.send, request)
            until(lambda: self.link.held, "No transfer has begun")
            yield sent
        finally:
            self.link.bring_up()

    def cut(self, request: Ask, senders: Executor, *others: Ask, after: int = INTO_THE_FIRST) -> list[Answer]:
        """Send *request* and cut the link in the midst of its transfer; then *others*, all while it is down."""
        with self.held(request, senders, after=after) as sent:
            self.link.take_down()
            rest = list(senders.map(self.send, others))
            return [sent.result(), *rest]


@contextmanager
def zmq_bench(
    stack: EcStack, variant: Variant | None, *, logs: Path, same_host: bool = False
) -> Iterator[ZmqBench]:
    """Give the stack's own language model, or run another one in *variant* beside it, which may copy on *same_host*."""
    if variant is None:
        bench = ZmqBench(stack, stack.language, stack.link)
        yield bench
        bench.close()
        return
    with Link(stack.encoder.port) as link:
        spec = language_spec(
            variant.name,
            producers=[link.address],
            extra={"load_failure": "fail", "same_host": same_host, **PATIENCE},
            module=variant.module,
            args=(*variant.args, *TOKENS_IN),
            env={**variant.env, **environment(stack.agent.endpoint, variant.name, "both")},
        )
        server = Server(spec, model=tiny_vision_model(ROOT / ".cache" / "models"), logs=logs)
        try:
            server.wait_ready()
            bench = ZmqBench(stack, server, link)
            yield bench
            bench.close()
        finally:
            server.stop()
