"""A client of a running agent that looks at one server: events, metrics, traces, policies."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import grpc
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from demo.common.steps import until
from tests.support.policy.policies import document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.proto.v1.events_pb2 import Event

    from demo.common.agent import Agent

_CALL_SECONDS = 120
_MOST_EVENTS = 10_000
# The agent ends connections that are silent for five seconds, as this process can be on a busy machine.
_RETRIES = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)


def new_name(kind: str) -> str:
    """Return a client's name for a request; part of vLLM's internal id of it."""
    return f"{kind}{uuid.uuid4().hex[:12]}"


def wait_known(agent: Agent, server: str) -> None:
    """Wait until the agent knows the engine of *server*, which may serve before."""
    until(
        lambda: agent.metrics().select("penstock_engine_info", server=server),
        f"{server} is unknown to the agent",
    )


class AgentBench:
    """Looks at *server* through the agent, and sets one policy, *policy*, for the engines that have *labels*."""

    def __init__(self, agent: Agent, server: str, *, labels: Mapping[str, str], policy: str) -> None:
        self.agent = agent
        self.server = server
        self.labels = dict(labels)
        self.policy = policy
        self._channel = grpc.insecure_channel(agent.admin, [("grpc.service_config", _RETRIES)])
        self.admin = AdminStub(self._channel)

    @property
    def selector(self) -> str:
        """The labels as agentctl takes them."""
        return ",".join(f"{name}={value}" for name, value in self.labels.items())

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

    def value(self, metric: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels, in the server."""
        return self.agent.metrics().value(metric, **{"server": self.server, **labels})

    def value_after(self, name: str, metric: str, **labels: str) -> float:
        """Return :meth:`value` once the agent knows all that the engine told until the end of the request that the client named *name*."""
        self.event("request_closed", name)
        return self.value(metric, **labels)

    def wait_value(self, expected: float, metric: str, **labels: str) -> None:
        """Wait until :meth:`value` is *expected*."""
        until(lambda: self.value(metric, **labels) == expected, f"{metric} with {labels} is not {expected:g}")

    def guard_errors(self) -> list[str]:
        """Return what the engines contained of our own errors."""
        return [str(sample) for sample in self.agent.metrics().select("penstock_guard_errors_total")]

    def spans_of(self, name: str) -> list[admin.Span]:
        """Return the spans of the request that the client named *name*, as far as they are there."""
        try:
            trace = self.admin.GetTrace(admin.GetTraceRequest(request_id=name), timeout=_CALL_SECONDS)
        except grpc.RpcError:
            return []
        return [span for span in trace.spans if name in span.request_id and span.key.server == self.server]

    def span_of(self, name: str, span_name: str) -> admin.Span:
        """Wait for a span of that request, and return it."""

        def look() -> admin.Span | None:
            return next((span for span in self.spans_of(name) if span.name == span_name), None)

        return until(look, f"The trace of {name} has no span {span_name}")

    # Policies

    def enforce(self, **spec: Any) -> None:
        """Set the policy, and wait until it is in force."""
        wait_known(self.agent, self.server)
        manifest = document(self.policy, **{"selector": {"matchLabels": self.labels}, **spec})
        applied = self.admin.ApplyPolicy(
            admin.ApplyPolicyRequest(manifest_json=json.dumps(manifest), author="tests", all=True),
            timeout=_CALL_SECONDS,
        )
        self._settle(applied.store_generation)

    def forget(self) -> None:
        """Let vLLM's own configuration hold again."""
        present = self.admin.ListPolicies(admin.ListPoliciesRequest(), timeout=_CALL_SECONDS)
        if any(policy.name == self.policy for policy in present.policies):
            deleted = self.admin.DeletePolicy(
                admin.DeletePolicyRequest(name=self.policy, author="tests"), timeout=_CALL_SECONDS
            )
            self._settle(deleted.store_generation)

    def ctl(self, *arguments: str) -> str:
        """Run agentctl and return what it said; it must succeed."""
        ran = self.agent.ctl(*arguments)
        assert ran.code == 0, f"{ran.line}: {ran.output}"
        return ran.output

    def close(self) -> None:
        """Close the client."""
        self._channel.close()

    def _settle(self, generation: int) -> None:
        request = admin.WatchRolloutRequest(
            store_generation=generation, selector=admin.EngineSelector(labels=self.selector)
        )
        request.timeout.seconds = _CALL_SECONDS
        *_, last = self.admin.WatchRollout(request, timeout=_CALL_SECONDS)
        assert {engine.state for engine in last.engines} == {"acknowledged"}, last


def _has(body: Any, fields: Mapping[str, Any]) -> bool:
    return all(
        (body.peer.address if name == "peer" else getattr(body, name)) == value
        for name, value in fields.items()
    )
