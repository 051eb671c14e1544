"""The log of engines' answers: one line for all engines that acknowledge the same policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.model import EngineKey
from penstock.agent.parsing.label_selector import Target
from penstock.agent.policy.distribution.service import AnswerLog
from penstock.agent.policy.distribution.subscriber import DesiredState, Subscriber
from penstock.proto.v1.policy_pb2 import PolicyAck
from structlog.testing import capture_logs

from tests.support.policy.feed import Engine, eventually, hash_of

if TYPE_CHECKING:
    from tests.support.policy.feed import FeedServer


def _acknowledged(engine: str, policy: str) -> Subscriber:
    subscriber = Subscriber(Target(EngineKey("", engine), "tiny", {}), 1, frozenset(), "")
    subscriber.set_desired(DesiredState((policy,)), 1.0)
    assert subscriber.on_ack(PolicyAck(nonce=subscriber.record_push(1.0), hash=policy), 2.0)
    return subscriber


async def test_engines_that_come_to_the_same_share_a_line() -> None:
    """A line lists each engine once, up to 16, and counts the others."""
    log = AnswerLog(lambda engine, hash_: f"{hash_}/1" if hash_ else "")
    with capture_logs() as lines:
        for engine in ("0", "1", "0"):
            log.add(_acknowledged(engine, "a"))
        for number in range(20):
            log.add(_acknowledged(str(number), "b"))
        assert not lines
        log.flush()
        log.flush()
    assert [(line["hash"], line["paused"], line.get("more")) for line in lines] == [
        ("a", False, None),
        ("b", False, 4),
    ]
    assert lines[0]["engines"] == ["0", "1"]
    assert lines[1]["engines"] == [str(number) for number in range(16)]


async def test_a_pause_is_no_policy_in_force() -> None:
    """The acknowledgement of a pause is logged as a pause, without a policy in force."""
    log, subscriber = (
        AnswerLog(lambda *_: "a/1"),
        Subscriber(Target(EngineKey("", "0"), "tiny", {}), 1, frozenset(), ""),
    )
    subscriber.set_desired(DesiredState(("a",), paused=True), 1.0)
    assert subscriber.on_ack(PolicyAck(nonce=subscriber.record_push(1.0), hash="a", paused=True), 2.0)
    with capture_logs() as lines:
        log.add(subscriber)
        log.flush()
    assert [line["event"] for line in lines] == ["pause acknowledged; the policy is held back"]


async def test_a_line_comes_by_itself_and_a_refusal_is_in_none(served: FeedServer) -> None:
    """Lines are flushed by a timer; a refusal is logged at once, in a line of its own."""
    with capture_logs() as lines:
        async with Engine(served.address, "0") as one, Engine(served.address, "1") as two:
            push = await one.push()
            await one.ack(push)
            await two.nack(await two.push(), "no")
            await eventually(
                lambda: {line["event"] for line in lines} >= {"policy acknowledged", "policy refused"},
                "both are in the log",
            )
    told = [line for line in lines if line["event"] == "policy acknowledged"]
    assert [(line["engines"], line["hash"]) for line in told] == [(["0"], hash_of(push))]
