"""What the page says instead of an answer: a status of HTTP and a sentence."""

from __future__ import annotations

import grpc

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
