"""What the agents of a fleet say about their policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.relay.status.object_status import AgentWord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.proto.v1 import admin_pb2 as admin


class FleetWords:
    """What the agents said at one time.

    Attributes:
        missing: the agents that did not answer.

    """

    def __init__(
        self,
        policies: Mapping[str, Iterable[admin.Policy]],
        statuses: Mapping[str, admin.AgentStatus],
        missing: Iterable[str],
    ) -> None:
        """Keep the answers by agent.

        Args:
            policies: of each agent that answers.
            statuses: with its policy sources.
            missing: names of those that do not answer.

        """
        # Who says which policies it has, and not which it refuses, has not answered.
        self.missing = tuple(sorted({*missing, *(policies.keys() - statuses.keys())}))
        self._policies = {
            agent: {each.name: each for each in found}
            for agent, found in policies.items()
            if agent in statuses
        }
        self._refusals = {
            agent: {
                refusal.name: refusal.sentence
                for source in status.policy_sources
                if source.kind == "kubernetes"
                for refusal in source.refusals
            }
            for agent, status in statuses.items()
        }

    def about(self, name: str, content: str) -> list[AgentWord]:
        """Return what each agent says about policy *name*, whose canonical manifest is *content*."""
        found = []
        for agent, policies in self._policies.items():
            policy, refusal = policies.get(name), self._refusals.get(agent, {}).get(name, "")
            if policy is None or policy.manifest_json != content:
                found.append(AgentWord(agent, current=False, refusal=refusal))
            else:
                found.append(
                    AgentWord(
                        agent,
                        current=True,
                        matched=policy.engines_selected,
                        in_force=policy.engines_in_force,
                        refusal=refusal,
                    )
                )
        return found
