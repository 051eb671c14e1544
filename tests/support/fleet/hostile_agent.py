"""An agent that answers a relay, or ``agentctl``, with whatever bytes a test likes, over a real socket."""

from __future__ import annotations

import time
from concurrent import futures
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

METHODS = admin.DESCRIPTOR.services_by_name["Admin"].methods_by_name


def healthy_status() -> admin.AgentStatus:
    """Return what an agent says of itself that was started a second ago."""
    status = admin.AgentStatus(version="9", state_dir="/x")
    status.now.FromNanoseconds(time.time_ns())
    status.start_time.FromNanoseconds(time.time_ns() - 10**9)
    return status


class HostileAgent(grpc.GenericRpcHandler):
    """Answers each method of the admin service.

    Attributes:
        answers: what it says by the name of the method; a method that is not in it has an empty message.
        streams: what the streams of a method say instead.
        error: the code and the words that every call ends with instead; None for an answer.
        trailing: metadata at the end of every call.
        refusals: the status and the text with which a method is refused.
        asked: the methods that were called, in their order.

    """

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.streams: dict[str, Iterable[bytes]] = {}
        self.error: tuple[grpc.StatusCode, str] | None = None
        self.trailing: tuple[tuple[str, str | bytes], ...] = ()
        self.refusals: dict[str, tuple[grpc.StatusCode, str]] = {}
        self.asked: list[str] = []

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return what answers *call*."""
        name = call.method.rsplit("/", 1)[1]
        if name not in METHODS:
            return None
        if METHODS[name].server_streaming:
            return grpc.unary_stream_rpc_method_handler(lambda _, context: self._many(name, context))
        return grpc.unary_unary_rpc_method_handler(lambda _, context: self._one(name, context))

    def _one(self, name: str, context: grpc.ServicerContext) -> bytes:
        self.asked.append(name)
        context.set_trailing_metadata(self.trailing)
        if self.error is not None:
            context.abort(*self.error)
        if name in self.refusals:
            context.abort(*self.refusals[name])
        if name in self.answers:
            return self.answers[name]
        if name == "GetStatus":
            return healthy_status().SerializeToString()
        return GetMessageClass(METHODS[name].output_type)().SerializeToString()

    def _many(self, name: str, context: grpc.ServicerContext) -> Iterator[bytes]:
        if name not in self.streams:
            yield self._one(name, context)
            return
        self.asked.append(name)
        yield from self.streams[name]


@contextmanager
def running_hostile_agent(address: str) -> Iterator[HostileAgent]:
    """Serve one at *address*."""
    agent = HostileAgent()
    server = grpc.server(
        futures.ThreadPoolExecutor(16),
        options=[("grpc.max_send_message_length", -1)],
    )
    server.add_generic_rpc_handlers((agent,))
    server.add_insecure_port(address)
    server.start()
    try:
        yield agent
    finally:
        server.stop(None).wait()
