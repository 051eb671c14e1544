"""What the tests of failed KV loads do to a running stack, and what they look at: client, events, metrics, traces."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from demo.client import complete, prefill
from demo.processes import free_port
from demo.servers import LOOPBACK
from demo.steps import PROMPT, until
from tests.support.kv_client import stream
from tests.support.policies import document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.proto.v1.events_pb2 import Event, LoadOutcome, TransferFailure

    from demo.client import Answer
    from demo.servers import Server
    from demo.stack import Stack
    from tests.support.kv_client import Streamed

POLICY = "kv-tests"
DECODE = "role=decode"
TOKENS = 12
_CALL_SECONDS = 60
_MOST_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt that a prefill server has computed, and what decode is told about it.

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


class Bench:
    """A running stack and a client of its agent."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.agent = stack.agent
        self._channel = grpc.insecure_channel(stack.agent.admin)
        self.admin = AdminStub(self._channel)

    # Requests

    def prefilled(self, times: int = 2, *, server: Server | None = None, prompt: str = "") -> Prefilled:
        """Compute a prompt of its own, *times* a sentence long, on *server* (the stack's prefill)."""
        name = _name()
        prompt = prompt or f"{name} {PROMPT * times}"
        server = server or self.stack.prefill
        # First without a reader: the lease of the second is as young as can be.
        plain = complete(self.stack.prefill.url, prompt, max_tokens=TOKENS)
        params = prefill(server.url, prompt).kv_transfer_params
        return Prefilled(name, prompt, params, plain.completion, plain.body["usage"]["prompt_tokens"])

    def misled(self, times: int = 2, *, port: int = 0, engine_id: str = "") -> Prefilled:
        """Compute a prompt and point decode to a closed port, or to *port*, for an engine that it has never met."""
        engine_id = engine_id or str(uuid.uuid4())
        return self.prefilled(times).redirected(
            remote_host=LOOPBACK, remote_port=port or free_port(), remote_engine_id=engine_id
        )

    def decode(self, request: Prefilled, *, timeout: float = 120.0) -> Answer:
        """Send *request* to decode."""
        return complete(
            self.stack.decode.url,
            request.prompt,
            max_tokens=TOKENS,
            kv_transfer_params=request.params,
            headers={"X-Request-Id": request.name},
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

    def events(self, kind: str, name: str = "") -> list[Event]:
        """Return the events of a kind, oldest first; of requests whose id contains *name*, if it is given."""
        listed = self.admin.ListEvents(
            admin.ListEventsRequest(kinds=[kind], limit=_MOST_EVENTS), timeout=_CALL_SECONDS
        )
        return [entry.event for entry in listed.events if name in entry.event.request_id]

    def event(self, kind: str, name: str = "", **fields: Any) -> Event:
        """Wait for an event whose body has these *fields*, and return the newest."""

        def look() -> Event | None:
            found = [event for event in self.events(kind, name) if _has(getattr(event, kind), fields)]
            return found[-1] if found else None

        return until(look, f"No {kind} of {name or 'any request'} with {fields}")

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

    def value(self, metric: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels, in decode."""
        return self.agent.metrics().value(metric, **{"server": "decode", **labels})

    def wait_value(self, expected: float, metric: str, **labels: str) -> None:
        """Wait until :meth:`value` is *expected*."""
        until(lambda: self.value(metric, **labels) == expected, f"{metric} with {labels} is not {expected:g}")

    def guard_errors(self) -> list[str]:
        """Return what the engines contained of our own errors."""
        return [str(sample) for sample in self.agent.metrics().select("penstock_guard_errors_total")]

    def span(self, request: Prefilled, name: str) -> admin.Span:
        """Wait for decode's span *name* of *request*'s trace, and return it."""

        def look() -> admin.Span | None:
            try:
                trace = self.admin.GetTrace(
                    admin.GetTraceRequest(request_id=request.name), timeout=_CALL_SECONDS
                )
            except grpc.RpcError:
                return None
            found = [span for span in trace.spans if span.name == name and request.name in span.request_id]
            return found[0] if found else None

        return until(look, f"The trace of {request.name} has no span {name}")

    # Policies, orders

    def enforce(self, **spec: Any) -> None:
        """Set the one policy of these tests for decode, and wait until it is in force."""
        manifest = document(POLICY, **{"selector": {"matchLabels": {"role": "decode"}}, **spec})
        applied = self.admin.ApplyPolicy(
            admin.ApplyPolicyRequest(manifest_json=json.dumps(manifest), author="tests", all=True),
            timeout=_CALL_SECONDS,
        )
        self._settle(applied.store_generation)

    def ctl(self, *arguments: str) -> str:
        """Run agentctl and return what it said; it must succeed."""
        ran = self.agent.ctl(*arguments)
        assert ran.code == 0, f"{ran.line}: {ran.output}"
        return ran.output

    @contextmanager
    def drill(self, mode: str, *options: str, rate: float = 1.0) -> Iterator[str]:
        """Rehearse a fault in a share of decode's attempts by ``agentctl inject-fault``; yields the drill's id."""
        said = self.ctl(
            *("inject-fault", "--selector", DECODE, "--mode", mode, "--rate", str(rate), "--ttl", "5m"),
            *options,
        )
        identity = said.split()[1]
        try:
            yield identity
        finally:
            self.ctl("drill", "stop", identity)

    def forget(self) -> None:
        """Let vLLM's own configuration hold again."""
        present = self.admin.ListPolicies(admin.ListPoliciesRequest(), timeout=_CALL_SECONDS)
        if any(policy.name == POLICY for policy in present.policies):
            deleted = self.admin.DeletePolicy(
                admin.DeletePolicyRequest(name=POLICY, author="tests"), timeout=_CALL_SECONDS
            )
            self._settle(deleted.store_generation)

    def close(self) -> None:
        """Close the client."""
        self._channel.close()

    def _settle(self, generation: int) -> None:
        request = admin.WatchRolloutRequest(
            store_generation=generation, selector=admin.EngineSelector(labels=DECODE)
        )
        request.timeout.seconds = _CALL_SECONDS
        *_, last = self.admin.WatchRollout(request, timeout=_CALL_SECONDS)
        assert {engine.state for engine in last.engines} == {"acknowledged"}, last


def _name() -> str:
    return f"kv{uuid.uuid4().hex[:12]}"


def _has(body: Any, fields: Mapping[str, Any]) -> bool:
    return all(
        (body.peer.address if name == "peer" else getattr(body, name)) == value
        for name, value in fields.items()
    )
