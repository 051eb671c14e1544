"""The gRPC status of every error."""

from __future__ import annotations

import grpc
from penstock.agent import errors
from penstock.agent.server.status_codes import _CODES, code_of


def test_every_error_has_a_status() -> None:
    """Each error class has a line in the mapping; the base class alone has none."""
    ours = {
        item
        for item in vars(errors).values()
        if isinstance(item, type) and issubclass(item, errors.PenstockError)
    } - {errors.PenstockError}
    assert ours == set(_CODES)


def test_a_subclass_has_the_status_of_its_class() -> None:
    """A class without a mapping is INTERNAL."""

    class Special(errors.NotFoundError):
        pass

    assert code_of(Special("x")) is grpc.StatusCode.NOT_FOUND
    assert code_of(errors.ManifestError("x", "spec")) is grpc.StatusCode.INVALID_ARGUMENT
    assert code_of(errors.PenstockError("x")) is grpc.StatusCode.INTERNAL
