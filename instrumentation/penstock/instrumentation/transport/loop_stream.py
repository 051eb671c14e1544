"""A stream with grpc's asyncio API, on the loop that all streams of this process share."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any, Final

import grpc
from penstock.instrumentation.transport.stream import CLOSE_WAIT, OPTIONS, Stream, StreamEnd, T

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.transport.inbox import Message
    from penstock.instrumentation.transport.stream_loop import StreamLoop

_WRITER_WITHIN: Final = 1.0


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
        """Have *loop* open a channel to *endpoint* and call *method*; does not wait for the connection."""
        super().__init__(parse, inbox)
        self._endpoint = endpoint
        self._method = method
        self._closed = False
        self._connected = False
        self._gone = threading.Event()
        self._written = asyncio.Event()
        self._call: grpc.aio.StreamStreamCall[bytes, bytes] | None = None
        self._loop = loop
        loop.run(self._live)

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
        ended = StreamEnd("INTERNAL", "the loop of all streams has ended")
        try:
            ended = await self._use_channel()
        except Exception as error:  # noqa: BLE001  (an error of grpc's own)
            ended = StreamEnd("INTERNAL", f"{type(error).__name__}: {error}")
        finally:
            self._tell_end(ended)
            self._gone.set()

    async def _use_channel(self) -> StreamEnd:
        async with grpc.aio.insecure_channel(self._endpoint, options=OPTIONS) as channel:
            method: Any = channel.stream_stream(self._method)
            call = self._call = method()
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
        try:
            # One that is not closed stays with its call and its channel, until the garbage collector finds them.
            async with contextlib.aclosing(call.__aiter__()) as answers:  # type: ignore[type-var]
                async for answer in answers:
                    refused = self._deliver(answer)
                    if refused is not None:
                        return refused
        except grpc.aio.AioRpcError as error:
            return StreamEnd(error.code().name, error.details() or str(error))
        except KeyError as error:  # a code that gRPC does not define
            return StreamEnd(
                "UNKNOWN", f"the agent ended the stream with the status {error}, which gRPC does not know"
            )
        except asyncio.CancelledError:
            return StreamEnd("CANCELLED", "closed here")
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
