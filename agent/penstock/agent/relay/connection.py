"""A relay's connection to one agent: whether it answers, since when, and why not."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from penstock.agent.answers import path_of, read_agents_answer
from penstock.agent.errors import ContractError, in_one_line
from penstock.agent.relay.config import credentials_of
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from google.protobuf.message import Message
    from penstock.agent.relay.config import AgentTls
    from penstock.agent.relay.discovery import AgentPlace

_log = structlog.get_logger(__name__)

CONNECTING, UP, AWAY = "connecting", "up", "away"
CLOSED = "its connection was closed"
"""Why a call failed that was open when the agent left the list, or its certificates were renewed."""
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 16 << 20),
    # A host that is gone is noticed within 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Only "identity": nothing that swells is unpacked.
    ("grpc.compression_enabled_algorithms_bitset", 1),
)
# What is read on the loop itself: that takes less time than to change to another thread.
_AT_ONCE_BYTES = 4 << 10
_FIRST_SECONDS, _LAST_SECONDS = 0.2, 5.0
# An agent that answers is asked again after this time: its clock, and whether it still does.
_STEADY_SECONDS = 30.0
_MAX_REASON = 160
# Between two lines of the log about answers of one agent that cannot be used.
_COMPLAINT_SECONDS = 60.0


class AgentConnection:
    """One agent; the loop's.

    Attributes:
        place: name and address.
        state: connecting, up or away.
        since: when that state began, seconds since the epoch.
        error: why it is away.
        clock_offset: the agent's clock minus this one, seconds.
        round_trip: of the call that showed it, seconds.

    """

    def __init__(self, place: AgentPlace, tls: AgentTls | None, deadline: float) -> None:
        """Prepare it; connects when :meth:`run` runs. *deadline*: of a call, seconds."""
        self.place = place
        self.state = CONNECTING
        self.since = time.time()
        self.error = ""
        self.clock_offset = 0.0
        self.round_trip = 0.0
        self._deadline = deadline
        self._doubted = asyncio.Event()
        self._tls = None if place.address.startswith("unix:") else tls
        self._contents = None if self._tls is None else self._tls.contents()
        self._next_complaint = 0.0
        self._open()

    async def run(self) -> None:
        """Keep the state true until cancelled."""
        attempts = 0
        while True:
            self._doubted.clear()
            error = await self._look()
            if error:
                self._set(AWAY, error)
                await self._renew()
                most = min(_FIRST_SECONDS * 2**attempts, _LAST_SECONDS)
                attempts = min(attempts + 1, 8)
                await asyncio.sleep(random.uniform(most / 2, most))  # noqa: S311  (no secret)
                continue
            attempts = 0
            self._set(UP, "")
            try:
                async with asyncio.timeout(_STEADY_SECONDS):
                    await self._doubted.wait()
            except TimeoutError:
                pass

    async def _look(self) -> str:
        """Ask for the agent's clock; return why it has no answer that can be used, empty if it has."""
        try:
            asked = time.time()
            # A copy of the channel's state is no proof: an agent's loop may hang while its sockets answer.
            body = await self._ask("GetStatus", admin.GetStatusRequest(), self._deadline)
            status = await self.read("GetStatus", body)
            answered = time.time()
        except grpc.aio.AioRpcError as error:
            return self.sentence(error)
        except ContractError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  (this task is all that brings the agent back)
            _log.exception("an agent could not be looked at; retrying", agent=self.place.name)
            return f"an error of the relay ({type(error).__name__}); its log has more"
        self.round_trip = answered - asked
        self.clock_offset = status.now.ToNanoseconds() / 1e9 - (asked + answered) / 2
        return ""

    def _open(self) -> None:
        address = self.place.address
        if self._tls is None or self._contents is None:
            self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            options = [*_OPTIONS, *self._tls.channel_options()]
            self._channel = grpc.aio.secure_channel(address, credentials_of(self._contents), options=options)

    async def _renew(self) -> None:
        """Open another channel if the certificates have been renewed: a channel keeps those that it began with."""
        if self._tls is not None and (contents := self._tls.contents()) != self._contents:
            old, self._contents = self._channel, contents
            self._open()
            await old.close()

    async def call(self, method: str, request: Message, seconds: float) -> Any:
        """Call *method* and return the response, which is what :mod:`penstock.agent.answers` lets pass.

        Raises:
            grpc.aio.AioRpcError: it does not answer, or refuses.
            ContractError: its answer cannot be used.

        """
        return await self.read(method, await self.ask(method, request, seconds))

    async def ask(self, method: str, request: Message, seconds: float, *, slow: bool = False) -> bytes:
        """Call *method* and return what it says, to be read; what goes wrong makes the agent doubtful.

        Then it is looked at at once; without an answer to a *slow* one, too, but others may call it meanwhile.

        Raises:
            grpc.aio.AioRpcError: it does not answer, or refuses.

        """
        try:
            return await self._ask(method, request, seconds)
        except grpc.aio.AioRpcError as error:
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if late and slow:
                self._doubted.set()
            elif late or error.code() is grpc.StatusCode.UNAVAILABLE:
                self._doubt(self.sentence(error, seconds))
            raise

    async def _ask(self, method: str, request: Message, seconds: float) -> bytes:
        ask: Any = self._channel.unary_unary(path_of(method), request_serializer=_bytes_of)
        body: bytes = await ask(request, timeout=seconds)
        return body

    async def stream(
        self, method: str, request: Message, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yield what a *method* that streams says; it ends after *seconds*, None for never.

        Raises:
            grpc.aio.AioRpcError: it does not answer, or refuses.
            ContractError: a message cannot be used.

        """
        ask: Any = self._channel.unary_stream(path_of(method), request_serializer=_bytes_of)
        call = ask(request, timeout=seconds)
        try:
            async for body in call:
                yield await self.read(method, body)
        finally:
            call.cancel()

    async def read(self, method: str, body: bytes) -> Any:
        """Read an answer: a large one on a thread of its own, for the loop serves others meanwhile.

        Raises:
            ContractError: it cannot be used.

        """
        try:
            if len(body) <= _AT_ONCE_BYTES:
                return read_agents_answer(method, body)
            return await asyncio.to_thread(read_agents_answer, method, body)
        except ContractError as error:
            if time.monotonic() >= self._next_complaint:
                self._next_complaint = time.monotonic() + _COMPLAINT_SECONDS
                _log.warning("an agent's answer is left out", agent=self.place.name, reason=str(error))
            raise

    def doubt(self, seconds: float) -> str:
        """Look at once whether it answers, since a call of *seconds* had no answer; return that as a reason."""
        self._doubt(_no_answer(seconds))
        return self.error

    def _doubt(self, reason: str) -> None:
        # No other call waits for it until its own task has looked.
        self._set(AWAY, reason)
        self._doubted.set()

    def sentence(self, error: grpc.aio.AioRpcError, seconds: float | None = None) -> str:
        """Return in a few words why a call failed, which had *seconds*; None for an agent's own time."""
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return _no_answer(self._deadline if seconds is None else seconds)
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return in_one_line(f"cannot be reached: {_cause(error.details() or '')}", _MAX_REASON)
        if error.code() is grpc.StatusCode.PERMISSION_DENIED:
            return in_one_line(f"refuses this relay: {error.details()}", _MAX_REASON)
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return "its version does not know this"
        return in_one_line(error.details() or error.code().name, _MAX_REASON)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    def _set(self, state: str, error: str) -> None:
        if state != self.state:
            self.state, self.since = state, time.time()
        self.error = error


def _bytes_of(request: Message) -> bytes:
    return request.SerializeToString()


def _no_answer(seconds: float) -> str:
    return f"no answer in {seconds:.2g} s"


def _cause(details: str) -> str:
    """Return what of gRPC's text a person needs: "Connection refused", "No such file or directory"."""
    text = " ".join(details.rpartition("last error: ")[2].split())
    if "SSL" in text or "handshake" in text.lower():
        return f"TLS: {text}"
    return text.rpartition("connect: ")[2].removesuffix(")").rpartition(" (")[0] or text
