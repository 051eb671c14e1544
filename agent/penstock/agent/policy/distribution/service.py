"""The ``PolicyFeed`` service: one task a stream, so that a hung engine blocks no other.

Reports arrive as bytes: their size is checked before they are parsed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from penstock.agent.aio import TokenBucket
from penstock.agent.errors import ContractError, HeldError, PenstockError
from penstock.agent.server.status_codes import abort_with
from penstock.proto.v1.policy_pb2 import DESCRIPTOR, Report

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from penstock.agent.policy.distribution.feed import PolicyFeed
    from penstock.agent.policy.distribution.subscriber import Subscriber

    Context: TypeAlias = grpc.aio.ServicerContext[bytes, bytes]

# Seconds until Subscribe must arrive.
_HELLO_DEADLINE = 10.0
# Room for a refusal of every order. Parsed, such a body takes at most 35 MiB for a moment.
MAX_REPORT_BYTES = 512 << 10
# An engine answers one push at a time; faster reports are delayed.
_REPORTS_PER_SECOND, _REPORTS_BURST = 50.0, 500.0
# Seconds that an acknowledgement waits for others; a change reaches all engines of a pod in less.
ANSWER_LOG_SECONDS = 0.5
_MAX_ENGINES_NAMED = 16

_log = structlog.get_logger(__name__)


class PolicyFeedService:
    """Carries pushes and answers between a feed and its engines."""

    def __init__(self, feed: PolicyFeed, count_refused: Callable[[str], None] = lambda _: None) -> None:
        """Serve *feed*; *count_refused* is called with the reason for a refused subscription."""
        self._feed = feed
        self._count_refused = count_refused
        self._answers = AnswerLog(feed.policy_names)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the gRPC handler: bytes in, serialized pushes out."""
        watch: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(self.watch)
        name = DESCRIPTOR.services_by_name["PolicyFeed"].full_name
        return grpc.method_handlers_generic_handler(name, {"Watch": watch})

    async def watch(self, _: object, context: Context) -> None:
        """Serve the stream of one EngineCore."""
        try:
            subscriber = await self._enter(context)
        except PenstockError as error:
            if isinstance(error, HeldError):
                self._count_refused("held")
                _log.warning("subscription refused", error=str(error))
            await abort_with(context, error)
        reader = asyncio.ensure_future(self._read(subscriber, context))
        log = _log.bind(engine=str(subscriber.target.key))
        name = self._feed.policy_names(subscriber, subscriber.hash_in_force)
        log.info("engine subscribed", policy_in_force=name, hash_in_force=subscriber.hash_in_force)
        try:
            await self._push(subscriber, reader, context)
        finally:
            self._feed.end_stream(subscriber)
            self._answers.flush()
            log.info("engine left the policy feed")
            reader.cancel()
            await asyncio.wait([reader])
            broken = None if reader.cancelled() else reader.exception()
        if isinstance(broken, PenstockError):
            await abort_with(context, broken)
        if not self._feed.is_current(subscriber):
            await context.abort(grpc.StatusCode.ABORTED, "replaced by a newer stream of the same engine")

    async def _enter(self, context: Context) -> Subscriber:
        try:
            async with asyncio.timeout(_HELLO_DEADLINE):
                body: object = await context.read()
        except TimeoutError:
            body = grpc.aio.EOF
        if not isinstance(body, bytes):
            raise ContractError("no Subscribe received; send it first")
        first = _parse(body)
        if first.WhichOneof("message") != "subscribe":
            raise ContractError(f"the first report is {first.WhichOneof('message')}; send Subscribe first")
        return self._feed.add_stream(first.subscribe)

    async def _push(self, subscriber: Subscriber, reader: asyncio.Future[None], context: Context) -> None:
        while not (self._feed.closing or reader.done()) and self._feed.is_current(subscriber):
            seen = subscriber.wake.version
            push = self._feed.next_push(subscriber)
            if push is not None:
                await context.write(push)
            # Returns at once if something changed meanwhile.
            await subscriber.wake.wait(seen, self._feed.seconds_until_due(subscriber))

    async def _read(self, subscriber: Subscriber, context: Context) -> None:
        pace = TokenBucket(_REPORTS_PER_SECOND, _REPORTS_BURST)
        try:
            while isinstance(body := await context.read(), bytes):
                report = _parse(body)
                self._feed.on_report(subscriber, report)
                if report.HasField("ack") and subscriber.settled:
                    self._answers.add(subscriber)
                if (pause := pace.debt(1)) > 0:
                    await asyncio.sleep(pause)
        finally:
            subscriber.wake.notify()


class AnswerLog:
    """Logs one line for all engines that acknowledge the same policy within 0.5 s. One loop."""

    def __init__(self, name: Callable[[Subscriber, str], str]) -> None:
        """Log with the policies that *name* gives for an engine and the hash that it acknowledged."""
        self._name = name
        self._engines: dict[tuple[str, bool], dict[str, Subscriber]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, subscriber: Subscriber) -> None:
        """Add the engine's last answer; a refusal is not logged here."""
        answer = subscriber.answer
        if answer is None or answer.error:
            return
        self._engines.setdefault((answer.hash, answer.paused), {})[str(subscriber.target.key)] = subscriber
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ANSWER_LOG_SECONDS, self.flush)

    def flush(self) -> None:
        """Write the lines that are due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        engines, self._engines = self._engines, {}
        # Different policies may come to the same.
        named: dict[tuple[str, str, bool], list[str]] = {}
        for (hash_, paused), subscribers in engines.items():
            for key, subscriber in subscribers.items():
                named.setdefault((self._name(subscriber, hash_), hash_, paused), []).append(key)
        for (name, hash_, paused), names in named.items():
            more = {"more": len(names) - _MAX_ENGINES_NAMED} if len(names) > _MAX_ENGINES_NAMED else {}
            what = "pause acknowledged; the policy is held back" if paused else "policy acknowledged"
            shown = names[:_MAX_ENGINES_NAMED]
            _log.info(what, engines=shown, policy=name, hash=hash_, paused=paused, **more)


def _parse(body: bytes) -> Report:
    if len(body) > MAX_REPORT_BYTES:
        raise ContractError(
            f"the report has {len(body)} bytes, the limit is {MAX_REPORT_BYTES}; cut its texts"
        )
    try:
        return Report.FromString(body)
    except DecodeError as error:
        raise ContractError("the report is not a penstock.v1.Report") from error
