"""Until 0.31: vLLM has no error that a client may retry; its error of a failed generation carries the status."""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import Any


def retryable_error() -> type[Exception]:
    """Return the class of the errors that vLLM answers with 503 and their text. Imports the API process's modules."""
    from vllm import exceptions
    from vllm.entrypoints.generate.base import serving

    newest: type[Exception] | None = getattr(exceptions, "RetryableRequestError", None)
    # Until 0.26 the error has another home; where it is raised, its name is the same.
    return newest or _with_status(vars(sys.modules[serving.__name__])["GenerationError"])


def _with_status(base: Any) -> type[Exception]:
    class RetryableRequestError(base):  # type: ignore[misc]
        """A failed generation that the client may send again."""

        def __init__(self, message: str) -> None:
            super().__init__(message)
            self.status_code = HTTPStatus.SERVICE_UNAVAILABLE

    return RetryableRequestError
