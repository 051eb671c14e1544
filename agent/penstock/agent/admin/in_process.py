"""Calls to the admin service of this process, with its errors as sentences and statuses of HTTP."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import structlog
from penstock.agent.server.status_codes import Call
from penstock.agent.views.coverage import COVERAGE
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from google.protobuf.message import Message
    from penstock.proto.v1.admin_pb2_grpc import AdminServicer

_log = structlog.get_logger(__name__)

ANSWER_SECONDS = 10.0
"""Deadline of a question."""


_UNAVAILABLE = 503
_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 403,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
}


class _AbortedError(Exception):
    """The service has ended the call with a code and a sentence."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class _OwnCall(Call):
    """A call that the service answers in this process, as it answers one of gRPC."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else asyncio.get_running_loop().time() + seconds
        self.trailing: list[tuple[str, str | bytes]] = []

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise _AbortedError(code, details)

    def set_trailing_metadata(self, trailing_metadata: Sequence[tuple[str, str | bytes]], /) -> None:
        self.trailing.extend(trailing_metadata)

    def time_remaining(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - asyncio.get_running_loop().time())


class AdminCalls:
    """Asks the admin service of an agent or of a relay.

    Attributes:
        clock: returns the service's present, seconds since the epoch.
        coverage: which agents of a relay answered the last call that tells; None where all did, and of an agent.

    """

    def __init__(self, service: AdminServicer, clock: Callable[[], float] = time.time) -> None:
        self._service = service
        self.clock = clock
        self.coverage: admin.RelayCoverage | None = None

    async def call(self, method: str, request: Message, seconds: float = ANSWER_SECONDS) -> Any:
        """Call *method* and return its response, within *seconds*.

        Raises:
            AnswerError: the service refuses, fails, or does not answer in time.

        """
        call = _OwnCall(seconds)
        try:
            async with asyncio.timeout(seconds):
                response = await getattr(self._service, method)(request, call)
        except _AbortedError as error:
            raise AnswerError.of_code(error.code, error.details) from None
        except TimeoutError:
            raise AnswerError(
                503, f"no answer to {method} within {seconds:g} s; try again, or ask for less"
            ) from None
        except Exception as error:
            raise _of_bug(method, error) from error
        if method == "ListEngines":
            self.coverage = _coverage(call.trailing)
        return response

    async def stream(
        self, method: str, request: Message, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """Call *method* and yield its responses; *seconds* for all of them, None for no deadline.

        Raises:
            AnswerError: the service refuses or fails, or the time is over.

        """
        call = _OwnCall(seconds)
        try:
            async with (
                asyncio.timeout(seconds),
                aclosing(getattr(self._service, method)(request, call)) as responses,
            ):
                async for response in responses:
                    yield response
        except _AbortedError as error:
            raise AnswerError.of_code(error.code, error.details) from None
        except TimeoutError:
            raise AnswerError(503, f"{method} has not ended within {seconds:g} s") from None
        except Exception as error:
            raise _of_bug(method, error) from error


def _of_bug(method: str, error: Exception) -> AnswerError:
    """Return the error for one that the service did not expect: it is to end no task of the caller."""
    if isinstance(error, AnswerError):
        return error
    _log.error("an answer within this process failed", method=method, exc_info=error)
    return AnswerError(500, f"{method} failed ({type(error).__name__}); the log has more")


def _coverage(trailing: Iterable[tuple[str, str | bytes]]) -> admin.RelayCoverage | None:
    for key, value in trailing:
        if key == COVERAGE and isinstance(value, bytes):
            return admin.RelayCoverage.FromString(value)
    return None


class AnswerError(Exception):
    """A question that has no answer.

    Attributes:
        status: of HTTP.
        sentence: what is wrong and what to do, for people.

    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence

    @classmethod
    def of_code(cls, code: grpc.StatusCode, details: str) -> AnswerError:
        """Return the error for what the admin service said."""
        sentence = details or f"the admin service answered {code.name}; see the agent's log"
        return cls(_STATUSES.get(code, _UNAVAILABLE), sentence)
