"""The owner of an engine's policy stream, over real gRPC."""

from __future__ import annotations

import grpc
import pytest
from penstock.agent.model import digest
from structlog.testing import capture_logs

from tests.support.policy.feed import (
    Engine,
    FeedServer,
    answered,
    eventually,
    subscriber_of,
)
from tests.support.policy.policies import action, manifest

_FAIL = action("fail")


async def test_a_second_stream_of_the_same_engine_takes_over(served: FeedServer) -> None:
    """A new stream of an engine ends its earlier one with ABORTED."""
    async with Engine(served.address) as old:
        await old.push()
        async with Engine(served.address) as new:
            await new.push()
            assert await old.ended() is grpc.StatusCode.ABORTED
            assert subscriber_of(served, new).connected


async def test_two_engines_of_one_name_are_logged(served: FeedServer) -> None:
    """Another process under the same engine key is logged as a warning; a reconnect is not."""
    async with Engine(served.address) as old:
        await old.push()
        with capture_logs() as logs:
            async with Engine(served.address) as again:
                await again.push()
                assert not [line for line in logs if line["log_level"] == "warning"]
                other = Engine(served.address)
                await other.connect(epoch=2)
                await other.push()
                (warning,) = [line for line in logs if line["log_level"] == "warning"]
                await other.disconnect()
    assert "PENSTOCK_SERVER" in warning["event"]


@pytest.mark.parametrize("secret", [b"x" * 16, b""], ids=["another secret", "none"])
async def test_a_stranger_does_not_take_an_engine_s_policy_stream(served: FeedServer, secret: bytes) -> None:
    """A subscription with a wrong secret gets PERMISSION_DENIED; the owner's stream continues."""
    engine, stranger = Engine(served.address), Engine(served.address)
    await engine.connect(secret=b"o" * 16)
    await engine.ack(await engine.push())
    await answered(served, engine)
    with capture_logs() as logs:
        await stranger.connect(epoch=2, secret=secret)
        assert await stranger.ended() is grpc.StatusCode.PERMISSION_DENIED
        await stranger.disconnect()
    (warning,) = [line for line in logs if line["log_level"] == "warning"]
    assert "PENSTOCK_SERVER" in warning["error"]
    assert served.refused == ["held"]
    await served.store.apply(manifest(kvLoadFailure=_FAIL), author="me")
    push = await engine.push()
    assert push.nonce == 2
    await engine.ack(push)
    assert (await answered(served, engine)).in_force
    await engine.disconnect()


async def test_the_ingest_s_holder_is_the_feed_s(served: FeedServer) -> None:
    """The process that holds an engine key in the ingest holds it in the feed, before it subscribes."""
    engine = Engine(served.address)
    hold = served.owners.enter(engine.key, digest(b"o" * 16), lambda: None)
    await engine.connect(secret=b"x" * 16)
    assert await engine.ended() is grpc.StatusCode.PERMISSION_DENIED
    await engine.disconnect()
    await engine.connect(secret=b"o" * 16)
    await engine.push()
    served.owners.leave(hold)
    await engine.disconnect()


async def test_an_engine_takes_its_policy_stream_back(served: FeedServer) -> None:
    """The owner's return to the ingest ends a stranger's stream with ABORTED; the owner subscribes again."""
    engine, stranger = Engine(served.address), Engine(served.address)
    await engine.connect(secret=b"o" * 16)
    await engine.push()
    await engine.disconnect()
    await eventually(lambda: not subscriber_of(served, engine).connected, "the agent noticed")
    await stranger.connect(secret=b"x" * 16)
    await stranger.push()
    hold = served.owners.enter(engine.key, digest(b"o" * 16), lambda: None)
    assert await stranger.ended() is grpc.StatusCode.ABORTED
    await engine.connect(secret=b"o" * 16)
    await engine.ack(await engine.push())
    assert (await answered(served, engine)).in_force
    served.owners.leave(hold)
    await engine.disconnect()
    await stranger.disconnect()
