"""Calls to the admin service of the same process: errors that nobody expected are sentences, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from penstock.agent.admin.in_process import AdminCalls, AnswerError
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.proto.v1.admin_pb2_grpc import AdminServicer


class _Broken:
    """A service with a bug."""

    async def GetStatus(self, request: object, context: object) -> Any:  # noqa: N802
        """Fail before an answer."""
        raise ValueError("a secret")

    async def WatchEvents(self, request: object, context: object) -> AsyncIterator[Any]:  # noqa: N802
        """Fail after an event."""
        yield admin.LoggedEvent()
        raise OverflowError("a secret")


async def test_a_bug_of_the_service_is_an_error_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """It ends no task of the caller; the log has the error, the answer its class only."""
    calls = AdminCalls(cast("AdminServicer", _Broken()))
    with pytest.raises(AnswerError) as failed:
        await calls.call("GetStatus", admin.GetStatusRequest())
    assert failed.value.sentence == "GetStatus failed (ValueError); the log has more"
    events = calls.stream("WatchEvents", admin.ListEventsRequest())
    assert await anext(events) == admin.LoggedEvent()
    with pytest.raises(AnswerError) as failed:
        await anext(events)
    assert failed.value.sentence == "WatchEvents failed (OverflowError); the log has more"
    assert "a secret" in "".join(capsys.readouterr())
