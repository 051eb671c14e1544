"""What the policy feed has of each engine at one moment: an answer that takes several turns of the loop is of one version."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.admin.lookups.context import AgentContext
    from penstock.agent.model import EngineKey
    from penstock.agent.policy.distribution import EngineAck
    from penstock.agent.policy.orders import Pause


class FeedState(NamedTuple):
    """One engine's.

    Attributes:
        pause: what the kill switch orders for it.
        wanted: hash of the policy that it should have, empty for vLLM's own configuration; None before it subscribes.
        connected: its stream is open.
        answer: its answer to the state that it should have; None before, and without a stream.
        hash_in_force: as it reports it.

    """

    pause: Pause | None
    wanted: str | None = None
    connected: bool = False
    answer: EngineAck | None = None
    hash_in_force: str = ""

    @property
    def refusal(self) -> str:
        """Why the engine refuses its policy; empty if it does not."""
        if self.answer is None or not self.answer.error:
            return ""
        return f"{self.answer.field}: {self.answer.error}" if self.answer.field else self.answer.error


def feed_states(agent: AgentContext, keys: Iterable[EngineKey]) -> dict[EngineKey, FeedState]:
    """Return the state of each engine now. On the loop."""
    return {key: _feed_state(agent, key) for key in keys}


def _feed_state(agent: AgentContext, key: EngineKey) -> FeedState:
    pause, subscriber = agent.pauses.of(key), agent.feed.subscriber(key)
    if subscriber is None:
        return FeedState(pause)
    settled = subscriber.connected and subscriber.settled
    return FeedState(
        pause,
        agent.feed.wanted(key),
        subscriber.connected,
        subscriber.answer if settled else None,
        subscriber.hash_in_force,
    )
