"""What runs on a client of NATS ends when it is cancelled, though the client swallows a cancellation while it sends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from nats.aio.client import Client
from penstock.agent.policy.sources.nats.connection import NatsAccess
from penstock.agent.policy.sources.nats.registry import AgentRegistration, RegisteredAgent
from penstock.agent.policy.sources.nats.source import NatsSource
from penstock.agent.relay.object_status.nats_lease import NatsLease

from tests.support.nats.following import BUCKET, bucket_of
from tests.support.nats.server import NatsServer
from tests.support.policy.feed import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Run a server."""
    started = NatsServer(tmp_path_factory.mktemp("nats")).start()
    yield started
    started.kill()


class _Sink:
    def connected(self) -> None: ...
    def away(self, _reason: str) -> None: ...
    async def hand_over(self, _found: object) -> float:
        return 0.0


def _running(kind: str, access: NatsAccess) -> Coroutine[None, None, None]:
    if kind == "source":
        return NatsSource("nats", access, BUCKET).run(_Sink())
    if kind == "registration":
        return AgentRegistration(access, "agents", RegisteredAgent("a", "h:1")).run()
    return NatsLease(access, BUCKET, 1).run()


@pytest.mark.parametrize("sent", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["source", "registration", "lease"])
async def test_a_cancellation_while_the_client_sends(
    kind: str, sent: int, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever message it comes."""
    send = Client._flush_pending
    task: asyncio.Task[None] | None = None
    messages = 0

    async def cancelled_meanwhile(client: Client, force_flush: bool = False) -> object:
        nonlocal messages
        if asyncio.current_task() is task and task is not None:
            messages += 1
            if messages == sent:
                task.cancel()
                # This is where it is swallowed.
                force_flush = True
        return await send(client, force_flush)

    async with bucket_of(server):
        monkeypatch.setattr(Client, "_flush_pending", cancelled_meanwhile)
        task = asyncio.ensure_future(_running(kind, NatsAccess((server.url,))))
        _, others = await asyncio.wait({task}, timeout=DEADLINE)
        assert not others, f"it goes on after its cancellation at message {sent}, and has sent {messages}"
        assert task.cancelled()
    assert messages >= sent
