"""A stream with grpc's asyncio API, on the loop that all streams of this process share."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any, Final

import grpc
from penstock.instrumentation.core import note_grpc_object
from penstock.instrumentation.transport.stream import CLOSE_WAIT, OPTIONS, Stream, StreamEnd, T

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.transport.stream import Message
    from penstock.instrumentation.transport.stream_loop import StreamLoop

_WRITER_WITHIN: Final = 1.0
_STATUS_WITHIN: Final = 0.25
# What grpc puts in the place of a call's status when a write fails because of that (grpc#36066).
_REPLACED: Final = "Internal error from Core"
_LOST: Final = StreamEnd("INTERNAL", "the loop of all streams has ended")


class LoopStream(Stream[T]):
    """A stream whose call and channel live on the loop's thread; nothing of grpc's is touched on another."""

    def __init__(
        self,
        loop: StreamLoop,
        endpoint: str,
        method: str,
        parse: Callable[[bytes], T],
        inbox: queue.SimpleQueue[Message],
    ) -> None:
        """Have *loop* open a channel to *endpoint* and call *method*; does not wait for the connection.

        Raises:
            LoopEndedError: the loop has ended.

        """
        super().__init__(parse, inbox)
        self._endpoint = endpoint
        self._method = method
        self._closed = False
        self._connected = False
        self._gone = threading.Event()
        self._written = asyncio.Event()
        self._call: grpc.aio.StreamStreamCall[bytes, bytes] | None = None
        self._loop = loop
        loop.run(self._live, self._lose)

    def send(self, request: bytes) -> None:
        """Queue one serialized request; the caller keeps the backlog bounded."""
        super().send(request)
        self._loop.call_soon(self._written.set)

    def close(self) -> None:
        """Cancel the call and close the channel; waits at most ``CLOSE_WAIT`` seconds for their end."""
        self._closed = True
        self._loop.call_soon(self._cancel)
        self._gone.wait(CLOSE_WAIT)

    def _cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    async def _live(self) -> None:
        ended = _LOST
        try:
            ended = await self._use_channel()
        except Exception as error:  # noqa: BLE001  (an error of grpc's own)
            ended = StreamEnd("INTERNAL", f"{type(error).__name__}: {error}")
        finally:
            self._tell_end(ended)
            self._gone.set()

    def _lose(self) -> None:
        """Tell the end of a stream that the loop could not end."""
        if not self._gone.is_set():
            self._tell_end(_LOST)
            self._gone.set()

    async def _use_channel(self) -> StreamEnd:
        async with grpc.aio.insecure_channel(self._endpoint, options=OPTIONS) as channel:
            note_grpc_object(channel)
            method: Any = channel.stream_stream(self._method)
            call = self._call = method()
            note_grpc_object(call)
            if self._closed:
                call.cancel()
            writer = asyncio.ensure_future(self._write(call))
            try:
                return await self._read(call)
            finally:
                self._closed = True
                self._call = None
                call.cancel()
                self._written.set()
                if not self._connected:
                    writer.cancel()
                # Else it may wait for the core, which fails what waits of a cancelled call: the loop must live till then.
                await asyncio.wait((writer,), timeout=_WRITER_WITHIN)
                writer.cancel()

    async def _read(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> StreamEnd:
        status = _Status(call)
        ended = await self._read_answers(call)
        return ended if ended.details != _REPLACED else await status.wait() or ended

    async def _read_answers(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> StreamEnd:
        try:
            # One that is not closed stays with its call and its channel, until the garbage collector finds them.
            async with contextlib.aclosing(call.__aiter__()) as answers:  # type: ignore[type-var]
                async for answer in answers:
                    refused = self._deliver(answer)
                    if refused is not None:
                        return refused
        except grpc.aio.AioRpcError as error:
            return StreamEnd(error.code().name, error.details() or str(error))
        except KeyError as error:
            return _unknown(error)
        except asyncio.CancelledError:
            return StreamEnd("CANCELLED", "closed here") if self._closed else _LOST
        return StreamEnd("OK", "the agent ended the stream")

    async def _write(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        try:
            await call.wait_for_connection()
            self._connected = True
            while not self._closed:
                self._written.clear()
                for request in iter(self._next_request, None):
                    await call.write(request)
                await self._written.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            return  # the reader says why

    def _next_request(self) -> bytes | None:
        try:
            return self._requests.get_nowait()
        except queue.Empty:
            return None


class _Status:
    """The status with which the agent ends a call, noted before grpc replaces it, or after."""

    def __init__(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        self._noted = asyncio.Event()
        self._status: StreamEnd | None = None
        self._call: grpc.aio.StreamStreamCall[bytes, bytes] | None = call
        call.add_done_callback(self._note)

    async def wait(self) -> StreamEnd | None:
        """Return it; None if it does not come within a quarter of a second."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STATUS_WITHIN):
                await self._noted.wait()
        return self._status

    def _note(self, _: object) -> None:
        """Note the status that the call has just got; called for each that it gets."""
        call = self._call
        if call is None:
            return
        details = _at_once(call.details())
        if details == _REPLACED:
            return
        self._call = None
        try:
            self._status = StreamEnd(_at_once(call.code()).name, details or "")
        except KeyError as error:
            self._status = _unknown(error)
        self._noted.set()


def _at_once(coroutine: Any) -> Any:
    """Return what a question about a call that has ended returns: it does not wait."""
    try:
        coroutine.send(None)
    except StopIteration as answer:
        return answer.value
    coroutine.close()
    raise RuntimeError("the call has not ended")


def _unknown(error: KeyError) -> StreamEnd:
    """Return the end for a status that gRPC does not define."""
    return StreamEnd(
        "UNKNOWN", f"the agent ended the stream with the status {error}, which gRPC does not know"
    )
