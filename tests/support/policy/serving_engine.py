"""A simulated engine that serves requests, worse with a policy than without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.proto.v1.common_pb2 import OUTCOME_FAILED

from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.stories import closed, outcome
from tests.support.policy.feed import Engine, hash_of

if TYPE_CHECKING:
    from tests.support.agent.agent import AgentProcess

REQUESTS = 300


class ServingEngine:
    """An engine that serves; with the policy half of its requests fail.

    Attributes:
        had: it had a policy in force at some time.

    """

    def __init__(self, agent: AgentProcess, number: int) -> None:
        labels = {"POD_NAME": f"decode-{number}"}
        self.feed = Engine(agent.listen, str(number), **labels)
        self.ingest = FakeEngine(agent.listen, engine=str(number), labels=labels)
        self.hash, self.had = "", False

    async def obey(self) -> None:
        """Acknowledge each push."""
        while True:
            push = await self.feed._stream.read()
            self.hash = hash_of(push)
            self.had = self.had or bool(self.hash)
            await self.feed.ack(push)

    def serve(self) -> None:
        """End some requests."""
        failing = REQUESTS // 2 if self.hash else 3
        self.ingest.publish(
            *(closed(f"r{number}") for number in range(REQUESTS)),
            *(outcome(f"r{number}", OUTCOME_FAILED) for number in range(failing)),
        )
