"""The map of all tabs: told when it says something else, not lost to an answer that fails, made less often where it costs."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from google.protobuf.message_factory import GetMessageClass
from penstock.agent.page.live import fleet_map
from penstock.agent.page.live.fleet_map import MapTeller
from penstock.agent.page.wire import AdminCalls, AnswerError
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminServicer

if TYPE_CHECKING:
    import pytest
    from google.protobuf.message import Message
    from penstock.agent.page.live.entries import Message as PageMessage

_METHODS = admin.DESCRIPTOR.services_by_name["Admin"].methods_by_name


class _Calls(AdminCalls):
    """An agent that fails at first, whose engines come and whose clock a test sets."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        super().__init__(AdminServicer(), clock=lambda: self.now)
        self.failures = 1
        self.engines: list[admin.Engine] = []

    async def call(self, method: str, request: Message, seconds: float = 0.0) -> Any:
        """Return the engines, or an empty answer."""
        assert isinstance(request, GetMessageClass(_METHODS[method].input_type))
        assert not seconds
        if self.failures:
            self.failures -= 1
            raise AnswerError(503, "nobody answers")
        if method == "ListEngines":
            return admin.ListEnginesResponse(engines=self.engines)
        return GetMessageClass(_METHODS[method].output_type)()


async def test_a_map_is_told_again_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails is made again; the same one is not sent twice; the newest waits for a tab that joins."""
    monkeypatch.setattr(fleet_map, "_EVERY_SECONDS", 0.01)
    calls = _Calls()
    told: asyncio.Queue[PageMessage] = asyncio.Queue()
    teller = MapTeller(calls, told.put_nowait)
    task = asyncio.ensure_future(teller.keep_telling())
    try:
        async with asyncio.timeout(60):
            first = await told.get()
            assert (first.event, json.loads(first.data)["columns"]) == ("map", [])
            calls.engines = [admin.Engine(key={"engine": "0"}, connected=True)]
            second = await told.get()
            assert json.loads(second.data)["columns"][0]["boxes"][0]["engines"] == ["0"]
            calls.now += 1
            third = await told.get()
            assert json.loads(third.data)["now"] == json.loads(second.data)["now"] + 1_000
            assert told.empty()
            assert teller.message == third
    finally:
        task.cancel()
        await asyncio.wait([task])
