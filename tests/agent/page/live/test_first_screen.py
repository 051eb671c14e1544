"""The first screen has the verdict where the diagnosis is made at once, and does not wait for one that takes its time."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from penstock.agent.page.live.poller import ScreenPoller
from penstock.agent.page.wire import AdminCalls
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminServicer

if TYPE_CHECKING:
    from google.protobuf.message import Message

SENTENCE = "nothing is wrong in the last 10m"
_METHODS = admin.DESCRIPTOR.services_by_name["Admin"].methods_by_name


class _Calls(AdminCalls):
    """An agent without engines, whose diagnosis waits for a test."""

    def __init__(self) -> None:
        super().__init__(AdminServicer(), clock=lambda: 1_800_000_000.0)
        self.diagnosed = asyncio.Event()

    async def call(self, method: str, request: Message, seconds: float = 0.0) -> Any:
        """Return an empty answer, or the diagnosis."""
        assert isinstance(request, GetMessageClass(_METHODS[method].input_type))
        assert not seconds
        if method == "Diagnose":
            await self.diagnosed.wait()
            return admin.Diagnosis(sentence=SENTENCE, verdict=admin.DIAGNOSIS_VERDICT_NOTHING_WRONG)
        return GetMessageClass(_METHODS[method].output_type)()


@pytest.mark.parametrize("at_once", [True, False])
async def test_the_first_screen_waits_for_no_slow_diagnosis(*, at_once: bool) -> None:
    """One that is made at once is in it; else the screen says that it is being computed, and the next one has it."""
    calls = _Calls()
    if at_once:
        calls.diagnosed.set()
    screens: asyncio.Queue[Any] = asyncio.Queue()
    poller = ScreenPoller(calls, lambda message: screens.put_nowait(json.loads(message.data)))
    poller.start()
    try:
        first = await screens.get()
        assert first["now"] == first["dataTime"] == 1_800_000_000_000
        if not at_once:
            assert first["verdict"]["state"] == "unknown"
            assert "being computed" in first["verdict"]["sentence"]
            calls.diagnosed.set()
            first = await screens.get()
        assert (first["verdict"]["state"], first["verdict"]["sentence"]) == ("ok", SENTENCE)
    finally:
        await poller.stop()


@pytest.mark.parametrize("turns", range(12))
async def test_the_end_is_not_lost_as_the_diagnosis_comes(turns: int) -> None:
    """The last tab leaves while the first screen waits: at each turn of the loop after the answer, the work ends."""
    calls = _Calls()
    poller = ScreenPoller(calls, lambda _: None)
    poller.start()
    for _ in range(50):  # to the wait for the diagnosis
        await asyncio.sleep(0)
    calls.diagnosed.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await poller.stop()
