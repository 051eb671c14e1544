"""What a bundle keeps of the agent's memory: sources with their last snapshots, subscriptions with their answers, stalls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.admin.lookups.messages import key_message, stall_message, timestamp_message
from penstock.proto.v1.bundle_pb2 import (
    BundledAnswer,
    BundledLook,
    BundledSource,
    BundledStall,
    BundledSubscription,
    BundledWeights,
)
from penstock.proto.v1.policy_pb2 import OrderRefusal, Subscribe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.agent.admin.lookups.context import AgentContext
    from penstock.agent.policy.distribution import Subscriber
    from penstock.agent.sources import LiveSource
    from penstock.proto.v1.admin_pb2 import Source


def bundled_sources(agent: AgentContext, message: Callable[[LiveSource], Source]) -> Iterator[BundledSource]:
    """Yield all sources; *message* describes one as ``ListEngines`` does."""
    for live in agent.registry.sources():
        kept = BundledSource(
            source=message(live),
            snapshot=live.snapshot,
            said_goodbye=live.said_goodbye,
            kill_switch_unread=live.kill_switch_unread,
            accounted=live.account is not None,
            awaited=agent.is_awaited(live.source.epoch),
        )
        if not live.connected:
            kept.retires_after_seconds = agent.retirement.seconds_left(live.source.key)
        yield kept


def bundled_subscriptions(agent: AgentContext) -> Iterator[BundledSubscription]:
    """Yield the subscription of each engine."""
    for subscriber in agent.feed.subscribers():
        target = subscriber.target
        yield BundledSubscription(
            subscribe=Subscribe(
                schema_version=1,
                epoch=subscriber.epoch,
                key=key_message(target.key),
                model=target.model,
                labels=target.labels,
                hash_in_force=subscriber.hash_taken,
                supported_fields=sorted(subscriber.supported),
                faults_allowed=subscriber.faults_allowed,
                paused=subscriber.paused_before,
                takes_policy_names=subscriber.takes_policy_names,
            ),
            connected=subscriber.connected,
            hash_taken=subscriber.hash_taken,
            answer=_answer(subscriber),
        )


def bundled_stalls(agent: AgentContext) -> Iterator[BundledStall]:
    """Yield the stalls of all engines, also those that are over."""
    for key, stalls in (*agent.stalls().items(), *agent.ended_stalls().items()):
        for stall in stalls:
            yield BundledStall(key=key_message(key), stall=stall_message(stall))


def bundled_looks(agent: AgentContext) -> Iterator[BundledLook]:
    """Yield how often the workers of each engine look at their transfers, where that is known."""
    for key, seconds in agent.look_seconds().items():
        yield BundledLook(key=key_message(key), seconds=seconds)


def bundled_weights(agent: AgentContext) -> Iterator[BundledWeights]:
    """Yield which engines had read from peers with other weights, as far as that is over."""
    for (key, address), each in agent.weights.ended:
        yield BundledWeights(
            key=key_message(key),
            peer=address,
            peer_key=key_message(each.peer_key),
            evidence=each.evidence,
            since_unix_nano=each.since,
            until_unix_nano=each.until,
        )


def _answer(subscriber: Subscriber) -> BundledAnswer | None:
    answer = subscriber.answer
    if answer is None:
        return None
    return BundledAnswer(
        settled=subscriber.settled,
        hash=answer.hash,
        paused=answer.paused,
        error=answer.error,
        field=answer.field,
        refused_orders=[OrderRefusal(id=name, error=text) for name, text in answer.refused_orders.items()],
        time=timestamp_message(int(answer.time * 1e9)),
        took_seconds=answer.took,
    )
