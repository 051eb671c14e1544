"""Records what the present version says, for the tests of the versions after it: ``python -m tests.release.record``.

A real engine part (without vLLM) and a real agent talk through a proxy that keeps each message. To be run once, from the
commit of a release; what is recorded of a release is not recorded again.
"""

from __future__ import annotations

import sys
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from penstock.proto import __version__
from penstock.proto.v1 import admin_pb2, admin_pb2_grpc

from tests.support.agent.agent import running_agent, wait_until
from tests.support.release.recording import PUBLISH, WATCH, Call, Recording
from tests.support.release.story import apply_policies, emit_all, engine_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.agent.agent import AgentProcess

HERE = Path(__file__).parent / "recorded"
_LASTING = ("_total", "_bucket", "_count", "_sum")


class Proxy(grpc.GenericRpcHandler):
    """Passes every stream on and keeps its messages; one stream a method."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.calls = {PUBLISH: Call(), WATCH: Call()}
        self._channel = channel

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a stream."""
        method = handler_call_details.method
        return grpc.stream_stream_rpc_method_handler(lambda sent, _: self._forward(method, sent))

    def _forward(self, method: str, sent: Iterator[bytes]) -> Iterator[bytes]:
        kept = self.calls[method]
        assert not kept.sent, f"a second stream of {method}: record again"

        def noted() -> Iterator[bytes]:
            for message in sent:
                kept.sent.append(message)
                yield message

        call: Any = self._channel.stream_stream(method)
        for answer in call(noted()):
            kept.answered.append(answer)
            yield answer


def lasting_metrics(agent: AgentProcess) -> dict[str, str]:
    """Return the counters and histograms of engines, which a new life of the agent restores."""
    found = {}
    for line in agent.get("/metrics")[1].splitlines():
        series, _, value = line.rpartition(" ")
        name = series.partition("{")[0]
        if (
            name.startswith("penstock_")
            and name.endswith(_LASTING)
            and not name.startswith("penstock_agent_")
        ):
            found[series] = value
    return found


def described(agent: AgentProcess) -> dict[str, Any]:
    """Return what an agent says of its state."""
    with grpc.insecure_channel(agent.admin) as channel:
        admin = admin_pb2_grpc.AdminStub(channel)
        policies = admin.ListPolicies(admin_pb2.ListPoliciesRequest(), timeout=60).policies
        events = admin.ListEvents(admin_pb2.ListEventsRequest(limit=10_000), timeout=60).events
        audit = admin.ListAudit(admin_pb2.ListAuditRequest(), timeout=60).entries
    return {
        "metrics": lasting_metrics(agent),
        "policies": sorted(policy.name for policy in policies),
        "events": sorted(str(event.event.WhichOneof("body")) for event in events),
        "audit": [f"{entry.author} {entry.action} {entry.name}" for entry in audit],
    }


def main() -> int:
    """Record."""
    recording = Recording(HERE / __version__)
    with running_agent() as agent, grpc.insecure_channel(agent.listen) as channel:
        proxy = Proxy(channel)
        server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[proxy])
        endpoint = f"unix://{agent.directory}/proxy.sock"
        server.add_insecure_port(endpoint)
        server.start()
        with grpc.insecure_channel(agent.admin) as admin_channel:
            with engine_part(endpoint) as runtime:
                emit_all(runtime)
                wait_until(lambda: proxy.calls[WATCH].answered, "the first push")
                admin = admin_pb2_grpc.AdminStub(admin_channel)
                for generation in apply_policies(admin):
                    watch = admin_pb2.WatchRolloutRequest(store_generation=generation)
                    watch.timeout.FromSeconds(60)
                    *_, rollout = admin.WatchRollout(watch, timeout=90)
                    assert {engine.state for engine in rollout.engines} == {"acknowledged"}, rollout
            server.stop(None).wait()
        recording.write(proxy.calls, described(agent))
        agent.stop()
        recording.write_state(agent.state_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
