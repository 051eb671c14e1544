"""Tabs that open while another one does share what is asked for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from penstock.agent.page.live import Hub
from penstock.agent.page.live import follower as module
from penstock.agent.page.live.follower import Follower
from penstock.agent.page.live.tab import WHOLE, Position, Tab
from penstock.agent.page.wire import AdminCalls
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminServicer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from google.protobuf.message import Message

_METHODS = admin.DESCRIPTOR.services_by_name["Admin"].methods_by_name


class _Calls(AdminCalls):
    """An agent with one failure in its log and *logged* of them in its stream; its log answers when a test says so."""

    def __init__(self, logged: int = 0) -> None:
        super().__init__(AdminServicer(), clock=lambda: 1_800_000_000.0)
        self.asked = Counter[str]()
        self.reading = asyncio.Event()
        self.readable = asyncio.Event()
        self._logged = logged

    async def call(self, method: str, request: Message, seconds: float = 0.0) -> Any:
        """Return an empty answer, but for a failure where events are listed."""
        self.asked[method] += 1
        if method == "ListEvents":
            self.reading.set()
            await self.readable.wait()
            return admin.ListEventsResponse(events=[_failure(1)])
        if method == "GetStatus":
            return admin.AgentStatus(state_dir="/state", log_last=1)
        return GetMessageClass(_METHODS[method].output_type)()

    async def stream(
        self, method: str, request: Message, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yield the failures, then nothing for ever."""
        for number in range(self._logged):
            yield _failure(number + 2)
        await asyncio.Event().wait()


def _failure(batch: int) -> admin.LoggedEvent:
    return admin.LoggedEvent(batch=batch, event={"request_id": f"r{batch}", "transfer_failure": {}})


async def _begun(tab: Tab) -> list[str]:
    """Return the kinds of messages up to the earlier entries, but for screens and maps, which come when they are made."""
    found: list[str] = []
    while not found or found[-1] != "earlier":
        item = await tab.next()
        assert item is not None
        found += [item.event] if item.event not in {"screen", "map"} else []
    return found


async def test_tabs_that_come_meanwhile_join_together() -> None:
    """Each has all of it; the log is read for the first one, and once more for all others."""
    calls = _Calls()
    hub = Hub(calls, None)
    first, *others = tabs = [hub.admit() for _ in range(10)]
    try:
        async with asyncio.timeout(60):
            hub.join(first, None, 900)
            await calls.reading.wait()
            for tab in others:
                hub.join(tab, None, 900)
            calls.readable.set()
            begun = [await _begun(tab) for tab in tabs]
    finally:
        await hub.close()

    assert begun == [["pulse", "history", "signals", "log", "earlier"]] * 10
    assert calls.asked["ListEvents"] == 4


@pytest.mark.parametrize("seconds", [[60, 900, 900], [900, 900, 900]])
async def test_a_tab_has_the_history_that_it_asks_for(seconds: Sequence[int]) -> None:
    """Also where others ask for another one; one that goes on has no earlier entries."""
    calls = _Calls()
    calls.readable.set()
    hub = Hub(calls, None)
    tabs = [hub.admit() for _ in seconds]
    again = hub.admit()
    try:
        async with asyncio.timeout(60):
            for tab, wanted in zip(tabs, seconds, strict=True):
                hub.join(tab, None, wanted)
            hub.join(again, {"": Position(1, WHOLE)}, 900)
            for tab in tabs:
                assert await _begun(tab) == ["pulse", "history", "signals", "log", "earlier"]
    finally:
        await hub.close()
    kinds = []
    while (item := await again.next()) is not None:
        kinds.append(item.event)

    assert calls.asked["ListEvents"] == 2 * len({*seconds})
    assert "earlier" not in kinds


async def test_a_tab_comes_in_as_the_last_one_leaves() -> None:
    """The end of the one that joins is not the end of the other."""
    calls = _Calls()
    hub = Hub(calls, None)
    leaving = hub.admit()
    try:
        async with asyncio.timeout(60):
            hub.join(leaving, None, 900)
            await calls.reading.wait()
            left = asyncio.ensure_future(hub.leave(leaving))
            await asyncio.sleep(0)
            coming = hub.admit()
            hub.join(coming, None, 900)
            calls.readable.set()
            await left
            assert await _begun(coming) == ["pulse", "history", "signals", "log", "earlier"]
    finally:
        await hub.close()


async def test_a_follower_rests_only_where_it_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream has many entries that a tab has missed: they come as fast as they are read."""
    rests: list[float] = []
    monkeypatch.setattr(module, "_rest", _noting(rests))
    tab = Tab()
    follower = Follower(_Calls(logged=1000), lambda: (tab,))
    await follower.join({tab: {"": Position(1, WHOLE)}})
    found = 0
    try:
        async with asyncio.timeout(60):
            while found < 1000:
                item = await tab.next()
                assert item is not None
                found += item.data.count(b'"request"')
    finally:
        await follower.stop()

    assert len(rests) == 1


def _noting(rests: list[float]) -> Any:
    async def rest() -> None:
        rests.append(1.0)

    return rest
