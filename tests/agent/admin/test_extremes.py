"""Requests that are well-formed and absurd: each is answered, and no answer is an error of the agent's own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from penstock.agent.parsing.label_selector import MAX_GLOB, MAX_GLOBS
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.agent.batches import transfer_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.agent.admin_server import AdminHarness

_SERVICE = admin.DESCRIPTOR.services_by_name["Admin"]
# What can be called without an end to wait for, and without a file that comes of it.
_METHODS = [method for method in _SERVICE.methods if not method.server_streaming and method.name != "Backup"]
_GOOD: dict[str, dict[str, Any]] = {
    "SetQuarantine": {"peer": "a:1", "state": 2, "ttl": {"seconds": 10}},
    "SetEjection": {"selector": {"engines": [{"engine": "0"}]}, "ttl": {"seconds": 10}},
    "StartDrill": {"channel": 1, "mode": 1, "rate": 0.5, "ttl": {"seconds": 10}},
    "GetTrace": {"request_id": "r"},
    "Explain": {"request_id": "r"},
}
_TEXTS = ("\0", "x" * 20_000, "é" * 20_000, "\u202e\n", "*", "{}", "[", '{"metadata": []}', "1" * 5_000)
_VALUES: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.TYPE_UINT64: (2**64 - 1,),
    FieldDescriptor.TYPE_INT64: (2**63 - 1, -(2**63)),
    FieldDescriptor.TYPE_UINT32: (2**32 - 1,),
    FieldDescriptor.TYPE_INT32: (2**31 - 1, -(2**31)),
    FieldDescriptor.TYPE_BOOL: (True,),
    FieldDescriptor.TYPE_DOUBLE: (math.nan, math.inf, -1e308),
    FieldDescriptor.TYPE_STRING: _TEXTS,
    FieldDescriptor.TYPE_ENUM: (2**31 - 1, -1, 1),
}


def _fillings(descriptor: Any) -> Iterator[Callable[..., None]]:
    """Yield functions that each set one field of a message, at any depth, to an extreme."""
    for field in descriptor.fields:
        repeated = isinstance(field.default_value, list)
        if field.message_type is None:
            for value in _VALUES[field.type]:
                yield (
                    lambda message, name=field.name, value=value, repeated=repeated: (
                        getattr(message, name).append(value) if repeated else setattr(message, name, value)
                    )
                )
            continue
        for inner in _fillings(field.message_type):
            yield lambda message, name=field.name, inner=inner, repeated=repeated: inner(
                getattr(message, name).add() if repeated else getattr(message, name)
            )


def _code(call: Any, request: Any) -> grpc.StatusCode:
    try:
        call(request, timeout=60)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


@pytest.mark.parametrize("method", _METHODS, ids=lambda method: method.name)
def test_a_field_at_its_extreme(harness: AdminHarness, method: Any) -> None:
    """Each field in turn takes its extreme value in an otherwise valid request."""
    harness.append(harness.source("0"), transfer_failure("r"))
    harness.engine("0", supported=("kv_load_failure", "peer_quarantine"), faults_allowed=True)
    kind = getattr(admin, method.input_type.name)
    for fill in _fillings(method.input_type):
        request = kind(**_GOOD.get(method.name, {}))
        fill(request)
        code = _code(getattr(harness.stub, method.name), request)
        # Only so many may run at a time.
        for drill in harness.stub.ListDrills(admin.ListDrillsRequest()).drills:
            harness.stub.StopDrill(admin.StopDrillRequest(id=drill.id))
        assert code in {
            grpc.StatusCode.OK,
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.NOT_FOUND,
            grpc.StatusCode.ABORTED,
            grpc.StatusCode.FAILED_PRECONDITION,
        }, (request, code)


@pytest.mark.parametrize("globs", [["[" * 20_000], ["a"] * (MAX_GLOBS + 1), ["a" * (MAX_GLOB + 1)]])
def test_models_that_take_long_to_match(harness: AdminHarness, globs: list[str]) -> None:
    """A reader of the admin service must not keep the agent busy for minutes."""
    harness.source("0")
    request = admin.ListEnginesRequest(selector={"models": globs})
    assert _code(harness.stub.ListEngines, request) is grpc.StatusCode.INVALID_ARGUMENT
    fits = admin.ListEnginesRequest(selector={"models": ["[" * MAX_GLOB] * MAX_GLOBS})
    assert _code(harness.stub.ListEngines, fits) is grpc.StatusCode.OK
