"""What the tests of failed KV loads do to a running stack, and what they look at: client, events, metrics, traces."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from demo.common.client import complete, prefill
from demo.common.processes import free_port
from demo.common.steps import PROMPT
from demo.servers import LOOPBACK
from tests.support.engine.bench import AgentBench, new_name
from tests.support.kv.client import stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.proto.v1 import admin_pb2 as admin
    from penstock.proto.v1.events_pb2 import Event, LoadOutcome, TransferFailure

    from demo.common.client import Answer
    from demo.servers import Server
    from demo.stack import Stack
    from tests.support.kv.client import Streamed

POLICY = "kv-tests"
DECODE = "role=decode"
TOKENS = 12
# For engines to answer on a busy machine.
_PATIENTLY = ("--timeout", "80s")


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt that a prefill server has computed, and decode's parameters about it.

    Attributes:
        name: the client's name for the request; part of vLLM's internal id of it.
        text: what greedy decoding makes of the prompt where no KV is moved.
        tokens: of the prompt.

    """

    name: str
    prompt: str
    params: Mapping[str, Any]
    text: str
    tokens: int

    def redirected(self, **fields: object) -> Prefilled:
        """Return it with other ``kv_transfer_params``, under a name of its own."""
        return Prefilled(_name(), self.prompt, {**self.params, **fields}, self.text, self.tokens)

    @property
    def engine_id(self) -> str:
        """The connector's own id of the engine that has the blocks."""
        return str(self.params["remote_engine_id"])

    @property
    def remote_request_id(self) -> str:
        """The prefill server's internal id."""
        return str(self.params["remote_request_id"])

    @property
    def peer(self) -> str:
        """Where decode is sent."""
        return f"{self.params['remote_host']}:{self.params['remote_port']}"


class Bench(AgentBench):
    """A running stack and a client of its agent that looks at decode."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack.agent, "decode", labels={"role": "decode"}, policy=POLICY)
        self.stack = stack

    # Requests

    def prefilled(
        self, times: int = 2, *, server: Server | None = None, prompt: str = "", engine: int | None = None
    ) -> Prefilled:
        """Compute a prompt of its own, *times* a sentence long, on *server* (the stack's prefill).

        *engine* is the data-parallel index of the engine; None lets the server choose.
        """
        name = _name()
        prompt = prompt or f"{name} {PROMPT * times}"
        server = server or self.stack.prefill
        # First without a reader: the lease of the second is as young as can be.
        plain = complete(self.stack.prefill.url, prompt, max_tokens=TOKENS)
        params = prefill(server.url, prompt, headers=_route(engine)).kv_transfer_params
        return Prefilled(name, prompt, params, plain.completion, plain.body["usage"]["prompt_tokens"])

    def misled(self, times: int = 2, *, port: int = 0, engine_id: str = "") -> Prefilled:
        """Compute a prompt and point decode to a closed port, or to *port*, for an engine that it has never met."""
        engine_id = engine_id or str(uuid.uuid4())
        return self.prefilled(times).redirected(
            remote_host=LOOPBACK, remote_port=port or free_port(), remote_engine_id=engine_id
        )

    def decode(self, request: Prefilled, *, timeout: float = 120.0, engine: int | None = None) -> Answer:
        """Send *request* to decode; *engine* as of :meth:`prefilled`."""
        return complete(
            self.stack.decode.url,
            request.prompt,
            max_tokens=TOKENS,
            kv_transfer_params=request.params,
            headers={"X-Request-Id": request.name, **_route(engine)},
            timeout=timeout,
        )

    def decode_streaming(self, request: Prefilled) -> Streamed:
        """Send *request* to decode and have it stream."""
        return stream(
            self.stack.decode.url,
            request.prompt,
            max_tokens=TOKENS,
            kv_transfer_params=request.params,
            headers={"X-Request-Id": request.name},
        )

    # What was recorded

    def closed(self, request: Prefilled) -> Event:
        """Wait until decode has let *request* go: nothing is decided about it any more."""
        return self.event("request_closed", request.name)

    def failure(self, request: Prefilled) -> TransferFailure:
        """Return the one failure of *request*'s load."""
        self.event("transfer_failure", request.name)
        self.closed(request)
        (event,) = self.events("transfer_failure", request.name)
        return event.transfer_failure

    def outcome(self, request: Prefilled) -> LoadOutcome:
        """Return the one outcome of *request*'s load."""
        self.event("load_outcome", request.name)
        self.closed(request)
        (event,) = self.events("load_outcome", request.name)
        return event.load_outcome

    def span(self, request: Prefilled, name: str) -> admin.Span:
        """Wait for decode's span *name* of *request*'s trace, and return it."""
        return self.span_of(request.name, name)

    # Orders

    @contextmanager
    def drill(self, mode: str, *options: str, rate: float = 1.0) -> Iterator[str]:
        """Rehearse a fault in a share of decode's attempts by ``agentctl inject-fault``; yields the drill's id."""
        said = self.ctl(
            *("inject-fault", "--selector", DECODE, "--mode", mode, "--rate", str(rate), "--ttl", "5m"),
            *_PATIENTLY,
            *options,
        )
        identity = said.split()[1]
        try:
            yield identity
        finally:
            self.ctl("drill", "stop", identity, *_PATIENTLY)


def _route(engine: int | None) -> dict[str, str]:
    """Return the header that chooses an engine of a data-parallel server."""
    return {} if engine is None else {"X-data-parallel-rank": str(engine)}


def _name() -> str:
    return new_name("kv")
