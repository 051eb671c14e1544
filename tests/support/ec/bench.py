"""What the tests of encoder outputs do to a running server, and what they look at."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from demo.common.client import chat, chat_body, post_json
from demo.common.images import Picture
from demo.ec.servers import forget_all
from tests.support.engine.bench import AgentBench, new_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.proto.v1.events_pb2 import Event, LoadOutcome

    from demo.common.agent import Agent
    from demo.common.client import Answer
    from demo.servers import Server

POLICY = "ec-tests"
TOKENS = 12
# Longer than a block, so that what is computed from a picture can be in the prefix cache.
_WORDS = "The gate of a penstock regulates the flow at the head of a channel. " * 2


@dataclass(frozen=True, slots=True)
class Ask:
    """A chat request of texts and pictures.

    Attributes:
        name: the client's name for it.

    """

    parts: Sequence[str | Picture]
    name: str = field(default_factory=lambda: new_name("ec"))

    def again(self, *more: str | Picture) -> Ask:
        """Return the same request with *more* at its end, under a name of its own."""
        return replace(self, parts=(*self.parts, *more), name=new_name("ec"))

    def disguised(self) -> Ask:
        """Return the same request with pictures of other names: no server knows them, the tokens are the same."""
        parts = [
            replace(part, alias=new_name("alias")) if isinstance(part, Picture) else part
            for part in self.parts
        ]
        return Ask(parts)

    def beside(self, *parts: str | Picture) -> Ask:
        """Return a request that shares nothing with it but its pictures."""
        pictures = [part for part in self.parts if isinstance(part, Picture)]
        return Ask((f"{new_name('q')} {_WORDS}", *pictures, *parts))


def new_picture() -> Picture:
    """Return a new picture."""
    return Picture(new_name("picture"))


def ask(pictures: int = 1) -> Ask:
    """Return a request with this number of new pictures, at offsets above 0, and text behind each."""
    parts: list[str | Picture] = [f"{new_name('q')} {_WORDS}"]
    for _ in range(pictures):
        parts += [new_picture(), f" And now? {_WORDS}"]
    return Ask(parts)


class EcBench(AgentBench):
    """A server that loads encoder outputs, its agent, and a client of both."""

    def __init__(self, agent: Agent, server: Server) -> None:
        name = server.spec.name
        super().__init__(agent, name, labels={"tier": name}, policy=f"{POLICY}-{name}")
        self.engine = server

    def send(self, request: Ask, *, max_tokens: int = TOKENS, timeout: float = 120.0) -> Answer:
        """Send *request* to the server."""
        return chat(
            self.engine.url,
            request.parts,
            max_tokens=max_tokens,
            headers={"X-Request-Id": request.name},
            timeout=timeout,
        )

    def send_bare(self, request: Ask, *, max_tokens: int = TOKENS) -> Answer:
        """Send *request* as a router does that keeps the media to itself: tokens, and the names of the pictures."""
        rendered = post_json(
            f"{self.engine.url}/v1/chat/completions/render", chat_body(request.parts, max_tokens)
        )
        assert rendered.status == HTTPStatus.OK, rendered.text
        features = {key: rendered.body["features"][key] for key in ("mm_hashes", "mm_placeholders")}
        sampling = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        return post_json(
            f"{self.engine.url}/inference/v1/generate",
            {"token_ids": rendered.body["token_ids"], "features": features, "sampling_params": sampling},
            headers={"X-Request-Id": request.name},
        )

    def empty(self) -> None:
        """Empty the server's own caches of prompts and encoder outputs."""
        forget_all(self.engine)

    def closed(self, request: Ask) -> Event:
        """Wait until the engine has let *request* go: nothing is decided about it any more."""
        return self.event("request_closed", request.name)

    def outcome(self, request: Ask) -> LoadOutcome:
        """Return the one outcome of *request*'s load."""
        self.event("load_outcome", request.name)
        self.closed(request)
        (event,) = self.events("load_outcome", request.name)
        return event.load_outcome
