"""What a service uses of a call, and the gRPC status of every error of the agent, mapped here only."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol
from urllib.parse import quote

import grpc
from penstock.agent.errors import (
    AccessError,
    BundleError,
    ClusterError,
    ConfigError,
    ConflictError,
    ContractError,
    DamageError,
    FilesError,
    FullError,
    GapError,
    HeldError,
    ImpossibleError,
    LimitError,
    ManifestError,
    NotFoundError,
    OwnedError,
    PenstockError,
    StateError,
    TakenError,
    UncountableError,
    UnwritableError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class Call(Protocol):
    """What the methods of the admin service use of a call: gRPC's context is one, and a call of the page in this process."""

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """End the call with a status and a sentence."""
        ...

    def set_trailing_metadata(self, trailing_metadata: Sequence[tuple[str, str | bytes]], /) -> None:
        """Send metadata behind the response."""
        ...

    def time_remaining(self) -> float | None:
        """Return the seconds that the caller still waits; None for no end."""
        ...


_CODES: dict[type[PenstockError], grpc.StatusCode] = {
    AccessError: grpc.StatusCode.PERMISSION_DENIED,
    BundleError: grpc.StatusCode.INVALID_ARGUMENT,
    ClusterError: grpc.StatusCode.UNAVAILABLE,
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    ConflictError: grpc.StatusCode.ABORTED,
    ContractError: grpc.StatusCode.INVALID_ARGUMENT,
    DamageError: grpc.StatusCode.INTERNAL,
    FilesError: grpc.StatusCode.INVALID_ARGUMENT,
    FullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    GapError: grpc.StatusCode.FAILED_PRECONDITION,
    HeldError: grpc.StatusCode.PERMISSION_DENIED,
    ImpossibleError: grpc.StatusCode.FAILED_PRECONDITION,
    LimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ManifestError: grpc.StatusCode.INVALID_ARGUMENT,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    OwnedError: grpc.StatusCode.PERMISSION_DENIED,
    StateError: grpc.StatusCode.INTERNAL,
    TakenError: grpc.StatusCode.INTERNAL,
    UncountableError: grpc.StatusCode.INTERNAL,
    UnwritableError: grpc.StatusCode.INTERNAL,
}


# gRPC takes 8 KiB of headers; what is longer ends the call with a status of its own, which says nothing.
_MAX_DETAILS = 7_000
# Characters at each end of a sentence that is cut; one may need 12 bytes.
_KEPT = 250


async def abort_with(call: Call, error: PenstockError) -> NoReturn:
    """Abort a call with the status and the sentence of *error*."""
    sentence = str(error)
    if len(quote(sentence)) > _MAX_DETAILS:
        # The end says what to do.
        sentence = f"{sentence[:_KEPT]} … {sentence[-_KEPT:]}"
    await call.abort(code_of(error), sentence)


def code_of(error: PenstockError) -> grpc.StatusCode:
    """Return the status of *error*."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), grpc.StatusCode.INTERNAL)
