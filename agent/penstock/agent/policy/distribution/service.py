"""The ``PolicyFeed`` service: one task a stream, so that a hung engine holds nobody else.

It takes reports as bytes, so that their size is looked at before they are parsed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from penstock.agent.aio import TokenBucket
from penstock.agent.errors import ContractError, HeldError, PenstockError
from penstock.agent.policy.distribution.answer_log import AnswerLog
from penstock.agent.server import abort_with
from penstock.proto.v1.policy_pb2 import DESCRIPTOR, Report

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from penstock.agent.policy.distribution.feed import PolicyFeed
    from penstock.agent.policy.distribution.subscriber import Subscriber

    Context: TypeAlias = grpc.aio.ServicerContext[bytes, bytes]

# How long a subscriber may take to say who it is.
_HELLO_DEADLINE = 10.0
# Of an engine that says why it refuses each of its orders. The worst that a body of this size can hold is 35 MiB, for a moment.
MAX_REPORT_BYTES = 512 << 10
# An engine answers pushes, one at a time; what comes faster is read later.
_REPORTS_PER_SECOND, _REPORTS_BURST = 50.0, 500.0

_log = structlog.get_logger(__name__)


class PolicyFeedService:
    """Carries pushes and answers between a feed and its engines."""

    def __init__(self, feed: PolicyFeed, count_refused: Callable[[str], None] = lambda _: None) -> None:
        """Serve *feed*; *count_refused* takes the reason, in a word, why a process was kept out by another one."""
        self._feed = feed
        self._count_refused = count_refused
        self._answers = AnswerLog()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a server registers: bytes in, pushes out that are serialized already."""
        watch: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(self.watch)
        name = DESCRIPTOR.services_by_name["PolicyFeed"].full_name
        return grpc.method_handlers_generic_handler(name, {"Watch": watch})

    async def watch(self, _: object, context: Context) -> None:
        """Serve one EngineCore until either side ends the stream."""
        try:
            subscriber = await self._enter(context)
        except PenstockError as error:
            if isinstance(error, HeldError):
                self._count_refused("held")
                _log.warning("subscription refused", error=str(error))
            await abort_with(context, error)
        reader = asyncio.ensure_future(self._read(subscriber, context))
        log = _log.bind(engine=str(subscriber.target.key))
        log.info("engine subscribed", hash_in_force=subscriber.hash_in_force)
        try:
            await self._push(subscriber, reader, context)
        finally:
            self._feed.leave(subscriber)
            self._answers.flush()
            log.info("engine left the policy feed")
            reader.cancel()
            await asyncio.wait([reader])
            broken = None if reader.cancelled() else reader.exception()
        if isinstance(broken, PenstockError):
            await abort_with(context, broken)
        if not self._feed.holds(subscriber):
            await context.abort(grpc.StatusCode.ABORTED, "a newer stream of the same engine took over")

    async def _enter(self, context: Context) -> Subscriber:
        try:
            body: object = await asyncio.wait_for(context.read(), _HELLO_DEADLINE)
        except TimeoutError:
            body = grpc.aio.EOF
        if not isinstance(body, bytes):
            raise ContractError("no Subscribe came; send one first")
        first = _parse(body)
        if first.WhichOneof("message") != "subscribe":
            raise ContractError(f"the first report is {first.WhichOneof('message')}; send Subscribe first")
        return self._feed.enter(first.subscribe)

    async def _push(self, subscriber: Subscriber, reader: asyncio.Future[None], context: Context) -> None:
        while not (self._feed.closing or reader.done()) and self._feed.holds(subscriber):
            seen = subscriber.wake.version
            push = self._feed.next_push(subscriber)
            if push is not None:
                await context.write(push)
            # If something has changed meanwhile this returns at once.
            await subscriber.wake.wait(seen, self._feed.pause(subscriber))

    async def _read(self, subscriber: Subscriber, context: Context) -> None:
        pace = TokenBucket(_REPORTS_PER_SECOND, _REPORTS_BURST)
        try:
            while isinstance(body := await context.read(), bytes):
                report = _parse(body)
                self._feed.take(subscriber, report)
                if report.HasField("ack") and subscriber.settled:
                    self._answers.note(subscriber)
                if (pause := pace.debt(1)) > 0:
                    await asyncio.sleep(pause)
        finally:
            subscriber.wake.notify()


def _parse(body: bytes) -> Report:
    if len(body) > MAX_REPORT_BYTES:
        raise ContractError(
            f"the report has {len(body)} bytes, at most {MAX_REPORT_BYTES} are taken; cut its texts"
        )
    try:
        return Report.FromString(body)
    except DecodeError as error:
        raise ContractError("the report is not a penstock.v1.Report") from error
