"""Clients of an agent, of a relay or of a bundle's file; a gRPC error becomes a sentence and an exit code."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from penstock.agent.answers import path_of, read_answer
from penstock.agent.ctl.connection.contexts import ClientTls, check_address
from penstock.agent.ctl.errors import (
    FailedError,
    RefusedError,
    UnknownCallError,
    UnreachableError,
    UsageError,
)
from penstock.agent.ctl.moments import current_time, freeze
from penstock.agent.ctl.printing import say
from penstock.agent.errors import ContractError, PenstockError
from penstock.agent.views import text
from penstock.agent.views.command_lines import PROGRAM, hinted
from penstock.agent.views.coverage import coverage_of, missing_agents

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click
    from google.protobuf.message import Message
    from penstock.agent.evidence.served import BundleServer
    from penstock.proto.v1.admin_pb2 import RelayCoverage

# Seconds, the default deadline of a call.
ANSWER_DEADLINE = 15.0

_OPTIONS = (
    # HTTP_PROXY is not meant for the agent.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # A stream ends if the agent hangs.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The default is a minute.
    ("grpc.http2.ping_timeout_ms", 5_000),
    # `watch` reconnects within a second.
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Only "identity": nothing that swells is unpacked.
    ("grpc.compression_enabled_algorithms_bitset", 1),
)


class Client:
    """A connection to one agent, or to a relay.

    Attributes:
        missing: which agents of a relay did not answer, in a sentence; empty for none.
        coverage: which did and did not answer the last call; None where all did, and of an agent.

    """

    def __init__(self, address: str, tls: ClientTls, program: str = PROGRAM) -> None:
        """Prepare the connection; sends nothing. *program* is the command line that reaches this agent, for hints.

        Raises:
            UsageError: the address cannot be parsed, or is TCP and *tls* is incomplete.

        """
        check_address(address)
        self.address = f"unix://{address}" if address.startswith("/") else address
        self._program = program
        self.missing = ""
        self.coverage: RelayCoverage | None = None
        self._channel = self._connect(tls)

    def _connect(self, tls: ClientTls) -> grpc.Channel:
        if self.address.startswith("unix:"):
            return grpc.insecure_channel(self.address, options=_OPTIONS)
        options = [*_OPTIONS, *tls.channel_options()]
        return grpc.secure_channel(self.address, tls.credentials(self.address), options=options)

    def call(self, method: str, request: Message, timeout: float = ANSWER_DEADLINE) -> Any:
        """Call *method* and return its response; *timeout* in seconds."""
        with self._sentences():
            ask: Any = self._channel.unary_unary(path_of(method), request_serializer=_bytes_of)
            body, call = ask.with_call(request, timeout=timeout)
            self.coverage = coverage_of(call.trailing_metadata())
            self.missing = missing_agents(self.coverage) or self.missing
            return read_answer(method, body)

    def stream(self, method: str, request: Message, timeout: float | None = None) -> Iterator[Any]:
        """Call *method* and yield its responses; *timeout* in seconds, None for no deadline."""
        with self._sentences():
            ask: Any = self._channel.unary_stream(path_of(method), request_serializer=_bytes_of)
            for body in ask(request, timeout=timeout):
                yield read_answer(method, body)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def hinted(self, text: str) -> str:
        """Return *text* with this agent's connection options in its command lines."""
        return hinted(text, self._program)

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            failure = self._failure(error.code(), error.details() or "")
            raise type(failure)(self.hinted(failure.message)) from error
        except ContractError as error:
            raise RefusedError(
                f"the agent at {self.address} answers otherwise than agents do: {error}; see what serves this address, "
                "and upgrade the older of agent and agentctl"
            ) from error

    def _failure(self, code: grpc.StatusCode, details: str) -> click.ClickException:
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            return UsageError(details)
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return UnreachableError(self._unreachable(details))
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return UnreachableError(self._late())
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return UnknownCallError(
                f"{self.address} does not know this command: it is the engines' socket (give --address the value of "
                "--admin-listen), or the agent is older than agentctl: upgrade it"
            )
        return RefusedError(details or f"the agent at {self.address} answered {code.name}; see its log")

    def _late(self) -> str:
        if self.address.startswith("unix:"):
            return f"the agent at {self.address} did not answer in time; see its log"
        # TLS 1.3 reports a refused certificate only by closing the connection: gRPC may connect again until the deadline.
        return (
            f"the agent at {self.address} did not answer in time, or a certificate was refused: "
            "see its log, and check the --tls options"
        )

    def _unreachable(self, details: str) -> str:
        if not self.address.startswith("unix:"):
            # TLS 1.3 reports a refused client certificate only by closing the connection.
            return (
                f"no agent answers at {self.address}, or a certificate was refused "
                f"({' '.join(details.split()):.200}): check the address and the --tls options"
            )
        if "Permission denied" in details:
            return f"{self.address} permission denied: run agentctl as the agent's user"
        return f"no agent answers at {self.address}: 'agentctl doctor' says why (--address names another)"


def _bytes_of(request: Message) -> bytes:
    return request.SerializeToString()


def open_bundle(context: click.Context, path: str, program: str) -> Client:
    """Open a bundle for the command of *context*, until that ends; its time is the present from now on.

    Raises:
        FailedError: the file cannot be used; the sentence says why.

    """
    return Client(_opened(context, path).address, ClientTls(), program)


def open_page(context: click.Context, path: str, program: str, *, port: int, since: float | None) -> str:
    """Serve the page of a bundle until the command of *context* ends, and return its address.

    Args:
        context: of the command.
        path: of the bundle.
        program: the beginning of a command line that reads the bundle.
        port: of loopback; 0 for a free one.
        since: seconds before the bundle that the verdict is about; None for those of ``agentctl diagnose``.

    Raises:
        FailedError: the file or the port cannot be used; the sentence says why.

    """
    server = _opened(context, path)
    from penstock.agent.evidence.served import serve_page  # noqa: PLC0415

    try:
        return serve_page(server, Path(path).name, program, port=port, since=since)
    except PenstockError as error:
        raise FailedError(str(error)) from error


def interrupt_on_signals(context: click.Context) -> None:
    """Let signals that end a process do what Ctrl-C does until *context* ends: what was unpacked is removed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        before = signal.signal(number, signal.default_int_handler)
        context.call_on_close(partial(signal.signal, number, before))


def _opened(context: click.Context, path: str) -> BundleServer:
    """Return the server of a bundle, which closes with *context*; the present is the bundle's time from now on."""
    interrupt_on_signals(context)
    # It brings the whole agent along, which a command for an agent does not need.
    from penstock.agent.evidence.served import BundleServer  # noqa: PLC0415

    try:
        server = BundleServer(Path(path))
    except PenstockError as error:
        raise FailedError(str(error)) from error
    context.call_on_close(server.close)
    if not context.resilient_parsing:
        moment = datetime.fromtimestamp(server.now, UTC).astimezone()
        age = text.age(max(0.0, current_time() - server.now))
        where = f", from {server.manifest.address}" if server.manifest.address else ""
        say(f"as of {moment:%Y-%m-%d %H:%M:%S %Z}, {age} ago{where}", err=True)
        for sentence in server.manifest.gaps():
            say(text.style(sentence, "yellow"), err=True)
    freeze(context, server.now)
    return server
