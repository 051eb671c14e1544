"""Serves the Admin service from a bundle on a private socket, in a thread of this process, to reading calls only; and its page."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import structlog
from penstock.agent.admin.authorization import READING, SERVICE
from penstock.agent.admin.service import AdminService
from penstock.agent.bundle import ScratchDirectory, unpack_bundle
from penstock.agent.errors import BundleError, PenstockError, StateError
from penstock.agent.evidence.restored import read_state, restore_context
from penstock.agent.page import PageServer, PageSource
from penstock.agent.server import TcpAddress
from penstock.agent.server.options import PageSettings
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import add_AdminServicer_to_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from penstock.agent.bundle import BundleManifest
    from penstock.proto.v1.bundle_pb2 import BundledState

_HOST = "127.0.0.1"


def serve_page(
    server: BundleServer, name: str, program: str, *, port: int = 0, since: float | None = None
) -> str:
    """Serve the page until *server* closes.

    Args:
        server: of the bundle.
        name: of the bundle, for people.
        program: the beginning of a command line of agentctl that reads the bundle.
        port: of loopback; 0 for a free one.
        since: seconds before the bundle that the verdict is about; None for those of ``agentctl diagnose``.

    Returns:
        Its address for a browser.

    Raises:
        BundleError: the port cannot be bound.

    """
    settings = PageSettings(
        TcpAddress(_HOST, port), write=False, user_header="", tls=None, allow=None, hosts=()
    )
    source = PageSource("bundle", name, clock=lambda: server.now, program=program, since=since)

    async def start(service: AdminService, parts: AsyncExitStack) -> str:
        page = PageServer(settings, service, source)
        try:
            await page.start()
        except StateError as error:
            raise BundleError(
                f"port {port} of {_HOST} cannot be bound; give another --port, or leave it out for a free one"
            ) from error
        parts.push_async_callback(page.stop)
        return page.url

    return server.add(start)


T = TypeVar("T")

# To open the databases: a replay of what the saved counters do not include.
_OPEN_SECONDS = 300.0
_CLOSE_SECONDS = 30.0
_SOCKET = "admin.sock"
# Linux takes 107 bytes, macOS 103.
_LONGEST_SOCKET_PATH = 103


class BundleServer:
    """The Admin service of one bundle, until :meth:`close`.

    Attributes:
        address: of the service.
        now: the bundle's time, seconds since the epoch.
        manifest: of the bundle.

    """

    def __init__(self, path: Path) -> None:
        """Open the bundle at *path*; blocks until it can be asked.

        Raises:
            BundleError: it cannot be used; nothing is left open.

        """
        self._scratch = [ScratchDirectory()]
        self._directory = self._socket_directory = self._scratch[0].path
        if len(os.fsencode(self._directory / _SOCKET)) > _LONGEST_SOCKET_PATH:
            # A socket's path is short, and TMPDIR may be anywhere.
            self._scratch.append(ScratchDirectory("/tmp"))  # noqa: S108  (made for this user alone)
            self._socket_directory = self._scratch[1].path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bundle", daemon=True)
        self._parts = AsyncExitStack()
        self._closed = False
        self.address = f"unix://{self._socket_directory / _SOCKET}"
        self._thread.start()
        _silence.begin()
        try:
            self.manifest = self._open(path)
        except BaseException as error:
            # A server that is stopped while it starts leaves a task that failed.
            self._loop.set_exception_handler(lambda *_: None)
            self.close()
            if isinstance(error, OSError):
                raise BundleError(f"{path}: {error.strerror}") from error
            if isinstance(error, BundleError):
                raise BundleError(f"{path} cannot be opened: {error}") from error
            if isinstance(error, Exception) and not isinstance(error, PenstockError):
                raise BundleError(f"{path} cannot be opened: it {_unlike_an_agent(error)}") from error
            raise

    def _open(self, path: Path) -> BundleManifest:
        state_dir = self._directory / "state"
        state_dir.mkdir(mode=0o700)
        manifest = unpack_bundle(path, state_dir)
        state = read_state(state_dir)
        self.now = state.time.ToNanoseconds() / 1e9
        opening = asyncio.run_coroutine_threadsafe(self._serve(state_dir, state), self._loop)
        try:
            opening.result(_OPEN_SECONDS)
        except TimeoutError as error:
            raise BundleError(
                f"its log takes longer than {_OPEN_SECONDS / 60:.0f} minutes to count; take one with --max-size or --since"
            ) from error
        finally:
            opening.cancel()
        return manifest

    async def _serve(self, directory: Path, state: BundledState) -> None:
        context = await restore_context(directory, state, self._parts)
        server = grpc.aio.server(interceptors=[_ReadOnly()])
        self._service = _BundleService(context, state)
        add_AdminServicer_to_server(self._service, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(self.address)
        await server.start()
        self._parts.push_async_callback(server.stop, 0.0)
        self._parts.callback(self._service.close)

    def add(self, start: Callable[[AdminService, AsyncExitStack], Coroutine[Any, Any, T]]) -> T:
        """Run *start* where the service runs, and return what it returns; what it pushes closes before the service."""
        return asyncio.run_coroutine_threadsafe(start(self._service, self._parts), self._loop).result()

    def close(self) -> None:
        """Stop, and remove what was unpacked. Idempotent."""
        if self._loop.is_closed():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._parts.aclose(), self._loop).result(_CLOSE_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
        except TimeoutError:
            # The thread is a daemon: it ends with the process.
            self._loop.call_soon_threadsafe(self._loop.stop)
        finally:
            if not self._closed:
                self._closed = True
                _silence.end()
            for directory in self._scratch:
                directory.cleanup()


class _BundleService(AdminService):
    """The service of an agent that is not there: what it had computed is as it was."""

    def __init__(self, context: Any, state: BundledState) -> None:
        super().__init__(context)
        self._state = state

    async def ListPolicyRollouts(  # noqa: N802  (the wire's name)
        self, request: admin.ListPolicyRolloutsRequest, _context: Any
    ) -> admin.ListPolicyRolloutsResponse:
        """Return the roll-outs with the comparisons of their leader."""
        found = [each for each in self._state.rollouts if request.name in ("", each.name)]
        return admin.ListPolicyRolloutsResponse(rollouts=found)


class _ReadOnly(grpc.aio.ServerInterceptor):
    """Refuses what would change an agent or wait for a change."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method.removeprefix(SERVICE)
        if handler is None:
            return handler
        if method in READING and not handler.response_streaming:
            return handler._replace(unary_unary=_answered(handler.unary_unary))
        sentence = (
            "a bundle does not change, so there is nothing to wait for or to copy; use 'agentctl get events' for what it holds"
            if method in READING
            else "a bundle is read only: this command changes an agent; give --address instead of --bundle"
        )

        async def refuse(_request: Any, context: Any) -> Any:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)

        async def refuse_stream(_request: Any, context: Any) -> Any:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
            yield

        if handler.response_streaming:
            return handler._replace(unary_stream=refuse_stream)
        return handler._replace(unary_unary=refuse)


def _answered(call: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return *call* with a sentence instead of an error over values that no agent writes."""

    async def answer(request: Any, context: Any) -> Any:
        try:
            return await call(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  (anybody may have made the file)
            await context.abort(grpc.StatusCode.DATA_LOSS, f"the bundle {_unlike_an_agent(error)}")

    return answer


def _unlike_an_agent(error: Exception) -> str:
    """Say that the content is damaged or made up: no check knows every value that does not fit."""
    return f"holds what no agent writes; it is damaged ({type(error).__name__}: {error!s:.100})"


class _Silence:
    """Keeps the agent's log out of a command's output while a bundle is open; any thread.

    Nothing configures logs in agentctl: an error would be told with all variables, for seconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._before: dict[str, Any] = {}

    def begin(self) -> None:
        """Begin to be silent."""
        with self._lock:
            if not self._open:
                self._before = structlog.get_config()
                structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
            self._open += 1

    def end(self) -> None:
        """Let logs be as they were, after the last bundle."""
        with self._lock:
            self._open -= 1
            if not self._open:
                structlog.configure(**self._before)


_silence = _Silence()
